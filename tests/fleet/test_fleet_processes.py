"""A fleet as its users and service managers see it: drivers, signals, files, and what is left of it at its end."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from helpers.fleets import fleet_process, is_there
from helpers.processes import run_program
from helpers.waiting import until_blocking

if TYPE_CHECKING:
    from helpers.site import Site


def files(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} - {"gateway.ini", "userlist.txt", "output.0"}


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment in which processes run on that event loop."""
    if request.param == "uvloop":
        return {}
    (tmp_path / "uvloop.py").write_text("raise ImportError\n")
    return {"PYTHONPATH": str(tmp_path)}


def test_from_start_to_end(site: Site, loop: dict[str, str]) -> None:
    place = site.place()
    with fleet_process(site, place=place, environment=loop, pidfile=place / "pid", logfile=place / "log") as fleet:
        port = fleet.port()
        fleet.until_logged("process up: pgtrunk-gateway ")
        assert (place / "pid").read_text() == f"{fleet.process.pid}\n"
        assert files(place) == {"pid", "pid.takeover", "log", f".s.PGSQL.{port}"}
        workers = fleet.workers
        assert len(workers) == 2
        for way in ("tcp", "unix"):
            with fleet.connect(way) as one, fleet.connect(way) as other:
                for session in (one, other):
                    with session.transaction():
                        assert session.execute("SELECT 1").fetchone() == (1,)
            done = run_program("psql", fleet.conninfo(way), "-Atc", "SELECT 2", "-c", "SELECT 3")
            assert done.stdout == "2\n3\n"
        assert fleet.stop(signal.SIGTERM) == 0
        until_blocking(lambda: not [pid for pid in workers if is_there(pid)])
    assert files(place) == {"log"}
    # All of them write to both.
    assert sorted((place / "log").read_text().splitlines()) == sorted(fleet.said.splitlines())
    told = "\n".join(fleet.log)
    assert ", workers: 2" in told
    assert f"({'asyncio' if loop else 'uvloop'})" in told
    assert "closing because: client close request (age=" in told
    # Once, and not by each of them.
    for words in ("process up", "listening on tcp", "listening on unix", "got SIGTERM"):
        assert told.count(words) == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_with_nobody_there_each_signal_ends_it(site: Site, signum: signal.Signals) -> None:
    with fleet_process(site) as fleet:
        fleet.port()
        assert fleet.stop(signum) == 0


def test_sigterm_waits_for_clients(site: Site) -> None:
    with fleet_process(site) as fleet, fleet.connect("tcp") as idle, fleet.connect("unix") as busy:
        conninfo = fleet.conninfo("tcp")
        fleet.send(signal.SIGTERM)
        fleet.until_logged("got SIGTERM, shutting down, waiting for all clients disconnect")
        for session in (idle, busy):
            with session.transaction():
                assert session.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="Connection refused"):
            psycopg.connect(**conninfo)
        # The unix socket is there for the console alone.
        with pytest.raises(psycopg.OperationalError, match="pooler is shutting down"):
            psycopg.connect(**conninfo | {"host": str(fleet.place)})
        idle.close()
        assert busy.execute("SELECT 1").fetchone() == (1,)
        assert fleet.process.poll() is None
        busy.close()
        assert fleet.wait() == 0


def test_sigint_waits_for_transactions(site: Site) -> None:
    with fleet_process(site) as fleet, fleet.connect() as idle, fleet.connect() as held:
        held.execute("BEGIN")
        held.execute("SELECT 1")
        fleet.send(signal.SIGINT)
        fleet.until_logged("got SIGINT, shutting down, waiting for all servers connections to be released")
        # The worker without a transaction has ended.
        until_blocking(lambda: len(fleet.workers) == 1)
        with pytest.raises(psycopg.errors.AdminShutdown):
            idle.execute("SELECT 1")
        assert held.execute("SELECT 2").fetchone() == (2,)
        assert fleet.process.poll() is None
        held.execute("COMMIT")
        assert fleet.wait() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT])
def test_a_second_signal_ends_it_at_once(site: Site, second: signal.Signals) -> None:
    with fleet_process(site, shutdown_timeout=600) as fleet, fleet.connect() as one, fleet.connect() as other:
        for session in (one, other):
            session.execute("BEGIN")
        fleet.send(signal.SIGTERM)
        fleet.until_logged("waiting for all clients")
        assert fleet.stop(second) == 0
        for session in (one, other):
            with pytest.raises(psycopg.errors.AdminShutdown, match="pooler is shutting down"):
                session.execute("SELECT 1")


def test_without_its_supervisor_a_fleet_ends_and_the_next_one_starts(site: Site) -> None:
    place = site.place()
    with fleet_process(site, place=place, pidfile=place / "pid") as fleet:
        port, quic_port = fleet.port(), fleet.port("quic")
        with fleet.connect("tcp") as one, fleet.connect("unix") as other:
            workers = fleet.workers
            fleet.process.kill()
            fleet.process.wait()
            for session in (one, other):
                with pytest.raises(psycopg.errors.AdminShutdown):
                    session.execute("SELECT 1")
        until_blocking(lambda: not [pid for pid in workers if is_there(pid)])
        assert fleet.said.count("the supervisor has gone") == 2
        assert (place / f".s.PGSQL.{port}").exists()
    with fleet_process(site, place=place, pidfile=place / "pid", listen_port=port, quic_listen_port=quic_port) as fleet:
        for way in ("tcp", "unix"):
            with fleet.connect(way) as session:
                assert session.execute("SELECT 1").fetchone() == (1,)
        assert fleet.stop() == 0
    assert ".s.PGSQL" not in str(files(place))


def test_a_new_fleet_takes_the_name_of_one_that_drains(site: Site) -> None:
    place = site.place()
    plain: dict[str, Any] = {"place": place, "quic_cert_file": None, "quic_key_file": None}
    with fleet_process(site, **plain) as old:
        port = old.port()
        with old.connect("unix") as last:
            old.send(signal.SIGTERM)
            old.until_logged("waiting for all clients")
            with fleet_process(site, **plain, listen_port=port) as new:
                new.port()
                with new.connect("unix") as first:
                    assert last.execute("SELECT 1").fetchone() == first.execute("SELECT 1").fetchone()
                last.close()
                assert old.wait() == 0
                with new.connect("unix") as session:
                    assert session.execute("SELECT 1").fetchone() == (1,)
                assert new.stop() == 0
    assert not (place / f".s.PGSQL.{port}").exists()


def test_fleets_may_share_a_port(site: Site) -> None:
    shared: dict[str, Any] = {"so_reuseport": 1, "quic_cert_file": None, "quic_key_file": None}
    with fleet_process(site, **shared) as one, fleet_process(site, **shared, listen_port=one.port()) as other:
        assert one.port() == other.port()
        with fleet_process(site, listen_port=one.port(), quic_cert_file=None, quic_key_file=None) as third:
            assert third.wait() == 1
            assert "Address already in use" in third.said
        for fleet in (one, other):
            with fleet.connect("unix") as session:
                assert session.execute("SELECT 1").fetchone() == (1,)
            assert fleet.stop() == 0


def test_a_service_manager_is_told_when_all_serve(site: Site) -> None:
    place = site.place()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place / "notify"))
        manager.settimeout(30)
        with fleet_process(site, environment={"NOTIFY_SOCKET": str(place / "notify")}) as fleet:
            assert manager.recv(100) == b"READY=1"
            assert len(fleet.workers) == 2
            fleet.until_logged("process up")
            fleet.send(signal.SIGHUP)
            assert manager.recv(100).startswith(b"RELOADING=1\n")
            assert manager.recv(100) == b"READY=1"
            # As systemd stops a service: all of its processes are told.
            for pid in fleet.workers:
                os.kill(pid, signal.SIGTERM)
            assert fleet.stop(signal.SIGTERM) == 0
            assert manager.recv(100) == b"STOPPING=1"
