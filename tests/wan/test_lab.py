"""A real laboratory on this machine: its link is as long as it says, and nothing of it is left, whatever ends it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.waiting import until_blocking
from netem.errors import LabError
from netem.hosts import Hosts, require_root
from netem.lab import Lab
from netem.links import choose
from netem.measure import interval, measure
from netem.spec import LinkSpec

ROOT = Path(__file__).resolve().parents[2]
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces and devices")
pytestmark = [pytest.mark.wan, pytest.mark.alone]
_MARK = "PGTRUNK_TEST_LAB"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What all processes that this test starts, and theirs, have in their environment: others may have a lab too."""
    name = uuid.uuid4().hex
    monkeypatch.setenv(_MARK, name)
    return f"{_MARK}={name}".encode()


def processes(mark: bytes) -> set[int]:
    found = set()
    for name in os.listdir("/proc"):
        # One that is ending has no environment any more, and no namespace either.
        with contextlib.suppress(OSError):
            if name.isdigit() and mark in Path("/proc", name, "environ").read_bytes():
                found.add(int(name))
    return found


def namespaces(mark: bytes) -> set[str]:
    """The network namespaces, but for ours, in which some process of the test is."""
    found = set()
    for pid in processes(mark):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found - {os.readlink("/proc/self/ns/net")}


# -- the link ----------------------------------------------------------------------------------------------------------


@NEEDS_ROOT
def test_a_round_trip_takes_30_ms(lab: Lab) -> None:
    lab.configure(LinkSpec.parse(""))
    report = measure(lab, bulk=0)
    if not 29.8 <= report.wan.median <= 31.5:  # once more: somebody else may have had the machine
        report = measure(lab, bulk=0)
    assert 29.8 <= report.wan.median <= 31.5, report
    assert report.wan.lost == 0
    assert report.lan.median < 2


@NEEDS_ROOT
def test_as_many_packets_are_lost_as_asked_for(lab: Lab) -> None:
    lab.configure(LinkSpec.parse("rtt=1,loss=5"))
    lowest, highest = interval(1 - 0.95**2, 2000)
    lost = measure(lab, pings=2000, pause=0.0005, bulk=0).wan.lost
    if not lowest <= lost <= highest:  # once more: chance, or a queue that ran over while others had the machine
        lost = measure(lab, pings=2000, pause=0.0005, bulk=0).wan.lost
    assert lowest <= lost <= highest


@NEEDS_ROOT
def test_a_rate_bounds_a_transfer(lab: Lab) -> None:
    lab.configure(LinkSpec.parse("rtt=10,rate=20,buffer=100"))
    rate = measure(lab, pings=5, bulk=1.5).mbit_s_there
    if rate is None or rate < 12:  # once more: somebody else may have had the machine
        rate = measure(lab, pings=5, bulk=1.5).mbit_s_there
    assert rate is not None
    assert 12 <= rate <= 20


@NEEDS_ROOT
def test_a_client_reaches_the_database_over_both_links(lab: Lab) -> None:
    lab.configure(LinkSpec.parse(""))
    ping = [sys.executable, "-m", "netem.probe", "ping", "10.78.0.2", "5", "0.01"]
    process = lab.hosts.popen("client", ping, stdout=subprocess.PIPE, cwd=ROOT)
    out, _ = process.communicate(timeout=20)
    trips = json.loads(out)["trips"]
    assert len(trips) == 5
    assert min(trips) >= 0.0298  # the link looks at the time every 0.25 ms


# -- its end -----------------------------------------------------------------------------------------------------------


@NEEDS_ROOT
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_one_that_is_killed(signum: signal.Signals, mark: bytes) -> None:
    code = (
        "import netem.lab, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # whatever started us
        "lab = netem.lab.Lab(); lab.open(); print('up', flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == b"up\n"
        assert len(namespaces(mark)) == 3
        it.send_signal(signum)
    until_blocking(lambda: not processes(mark))


SERVERS = """
import signal
from netem.lab import Lab
from netem.plan import Arm
from netem.servers import Servers

lab = Lab()
lab.open()
servers = Servers(lab)
servers.open()
servers.address(Arm(kind="sidecar", sessions=2, connections=1, streams=2))
print("up", flush=True)
signal.pause()
"""


@NEEDS_ROOT
def test_no_folder_is_left_of_one_that_is_killed(mark: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates, logs and sockets, nor what Postgres has: all of it is below the folder for temporary files."""
    # One in which Postgres' account may look.
    with tempfile.TemporaryDirectory(prefix="lab-") as place:
        os.chmod(place, 0o755)
        monkeypatch.setenv("TMPDIR", place)
        with subprocess.Popen([sys.executable, "-c", SERVERS], cwd=ROOT, stdout=subprocess.PIPE) as it:
            assert it.stdout is not None
            assert it.stdout.readline() == b"up\n"
            (folder,) = Path(place).glob("pgtrunk-wan-*")
            assert {"certs", "secrets.txt"} < {path.name for path in folder.iterdir()}
            it.kill()
        until_blocking(lambda: not processes(mark))
        until_blocking(lambda: not os.listdir(place))


@NEEDS_ROOT
def test_up_and_down(mark: bytes) -> None:
    def netem(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "netem", *words], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
        )
        return done.returncode, done.stdout + done.stderr

    if netem("status") != (0, "nothing is up\n"):
        pytest.fail("a laboratory is up already: `python -m netem down`")
    try:
        code, said = netem("up", "--wan", "rtt=50")
        assert (code, "50 ms round trip" in said) == (0, True), said
        code, said = netem("up")
        assert (code, "is up already" in said) == (1, True), said
        assert len(namespaces(mark)) == 3
    finally:
        assert netem("down") == (0, "ended\n")
    assert netem("down") == (0, "nothing was up\n")
    until_blocking(lambda: not processes(mark))


@NEEDS_ROOT
def test_a_link_that_cannot_be_had_leaves_nothing(mark: bytes) -> None:
    hosts = Hosts()
    hosts.open()
    try:
        link, _ = choose(hosts, None)
    finally:
        hosts.close()
    if link.kind == "tun":
        with pytest.raises(LabError, match="no netem"), Lab(link="tc"):
            pass
    until_blocking(lambda: not processes(mark))


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user: root may make namespaces")
def test_without_root_it_says_so() -> None:
    with pytest.raises(LabError, match="needs root"):
        require_root()
