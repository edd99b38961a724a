"""How long the next worker is waited with, how many there are to be, and what keeps a fleet from starting."""

from __future__ import annotations

import errno
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.certificates import authority
from helpers.fleets import children, fleet_process
from helpers.waiting import until_blocking
from pgtrunk_gateway.config import Config
from pgtrunk_gateway.errors import ConfigError
from pgtrunk_gateway.fleet.post import Post, _told, next_pause
from pgtrunk_gateway.fleet.supervisor import worker_count

if TYPE_CHECKING:
    from helpers.site import Site
    from pgtrunk_gateway.fleet.bus import Bus
    from pgtrunk_gateway.fleet.charter import Charter


@pytest.mark.parametrize(
    ("last", "served", "pause"),
    [
        (0.0, 0.0, 1.0),
        (1.0, 0.0, 2.0),
        (2.0, 29.9, 4.0),
        (16.0, 5.0, 30.0),
        (30.0, 5.0, 30.0),
        (30.0, 30.0, 0.0),
        (0.0, 3600.0, 0.0),
        # It is young again.
        (0.0, 1.0, 1.0),
    ],
)
def test_who_dies_young_is_followed_later_each_time(last: float, served: float, pause: float) -> None:
    assert next_pause(last, served) == pause


@pytest.mark.parametrize(
    ("code", "late", "words"),
    [
        (0, False, "ended with exit code 0"),
        (-9, False, "was killed by SIGKILL"),
        (-70, False, "was killed by signal 70"),
        (-9, True, "and was killed"),
    ],
)
def test_an_end_is_told_in_words(code: int, late: bool, words: str) -> None:
    assert words in _told(code, late=late)


def test_as_many_as_the_key_says_or_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 7})
    assert [worker_count(Config(workers=workers)) for workers in (1, 2, 256, 0)] == [1, 2, 256, 3]


def test_one_worker_is_no_fleet(site: Site) -> None:
    with fleet_process(site, workers=1) as gateway:
        gateway.until_logged("process up")
        assert children(gateway.process.pid) == []
        assert "workers" not in gateway.said
        assert gateway.stop() == 0


class House:
    """One in which nothing works."""

    def charter(self, index: int) -> Charter:
        raise RuntimeError("broken")

    def enters(self, index: int, bus: Bus) -> None: ...

    def serves(self, index: int, bus: Bus, pid: int) -> None: ...

    def leaves(self, index: int) -> None: ...


async def test_a_fault_of_the_supervisors_own_ends_its_start(caplog: pytest.LogCaptureFixture) -> None:
    post = Post(3, House())
    with pytest.raises(ConfigError, match="worker 3: was lost before it served"):
        await post.begun()
    await post.close()
    assert "RuntimeError: broken" in caplog.text


async def test_a_worker_for_which_there_is_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def socketpair() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", socketpair)
    post = Post(3, House())
    with pytest.raises(ConfigError, match="worker 3: cannot be started: Too many open files before it served"):
        await post.begun()
    await post.close()


# -- what it cannot start with -----------------------------------------------------------------------------------------


def refused(site: Site, **settings: Any) -> str:
    """What it says instead of starting, with "INI" for the name of its file."""
    with fleet_process(site, **settings) as fleet:
        assert fleet.wait() == 1
        assert {path.name for path in fleet.place.iterdir()} == {"gateway.ini", "userlist.txt", "output.0"}
        return fleet.said.replace(str(fleet.ini), "INI")


@pytest.mark.parametrize(
    ("kind", "key", "line"), [("TCP", "listen_port", 5), ("UDP", "quic_listen_port", 12)], ids=["TCP", "UDP"]
)
def test_a_taken_port(site: Site, kind: str, key: str, line: int) -> None:
    with socket.socket(type=socket.SOCK_STREAM if kind == "TCP" else socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == "TCP":
            taken.listen()
        port = taken.getsockname()[1]
        said = refused(site, **{key: port})
    words = f"pgtrunk-gateway: INI:{line}: {key}: cannot listen on {kind} 127.0.0.1 port {port}: Address already in use"
    assert said.splitlines()[-1].startswith(words)


def test_a_certificate_that_only_a_worker_looks_at(site: Site) -> None:
    _, other = authority("another").save(site.place(), "another")
    said = refused(site, quic_key_file=other)
    assert said.splitlines()[-1].startswith(
        f'pgtrunk-gateway: INI:8: quic_key_file "{other}" is not the key of the certificate in '
    )


def test_more_than_there_may_be(site: Site) -> None:
    assert "workers: bad value" in refused(site, workers=257)
    assert "expected a whole number from 1 to 256, or auto" in refused(site, workers="many")


def _runs_a_worker(pid: int) -> bool:
    return b"pgtrunk_gateway.fleet.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_an_end_while_it_starts_waits_for_no_worker(site: Site) -> None:
    with fleet_process(site, pidfile=site.place() / "pid") as fleet:
        # Until it is a program of its own, the supervisor is stopped with it.
        until_blocking(lambda: fleet.workers and _runs_a_worker(fleet.workers[0]))
        os.kill(fleet.workers[0], signal.SIGSTOP)
        # Means nothing yet.
        fleet.send(signal.SIGHUP)
        fleet.send(signal.SIGTERM)
        assert fleet.wait() == 0
        assert "got SIGTERM before it served" in fleet.said
        assert {path.name for path in fleet.place.iterdir()} == {"gateway.ini", "userlist.txt", "output.0"}


def test_a_worker_that_dies_before_it_serves_ends_the_start(site: Site) -> None:
    with fleet_process(site, workers=2) as fleet:
        until_blocking(lambda: fleet.workers)
        os.kill(fleet.workers[0], signal.SIGKILL)
        assert fleet.wait() == 1
        assert "was killed by SIGKILL before it served" in fleet.said
