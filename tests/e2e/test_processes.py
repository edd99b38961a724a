"""The gateway as a process: how it starts, what its signals mean, how it ends and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from helpers.processes import gateway_process
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until, until_blocking
from pgtrunk import GatewayUnreachable, StreamManager

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.site import Site

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}


def in_thread(session: psycopg.Connection[Any], query: str) -> tuple[threading.Thread, list[Any]]:
    """Runs a query meanwhile -> the thread, and where its rows or its error will be."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.extend(session.execute(query.encode()).fetchall())
        except psycopg.Error as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def files(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} - {"gateway.ini", "userlist.txt"}


def test_start_and_end(site: Site) -> None:
    place = site.place()
    with gateway_process(site, place=place, pidfile=place / "pid", logfile=place / "log") as gateway:
        port = gateway.port()
        assert (place / "pid").read_text() == f"{gateway.process.pid}\n"
        with gateway.connect("tcp") as one, gateway.connect("unix") as other:
            for session in (one, other):
                assert session.execute("SELECT 1").fetchone() == (1,)
        assert files(place) == {"pid", "log", "output.0", f".s.PGSQL.{port}"}
        assert gateway.stop(signal.SIGTERM) == 0
    assert files(place) == {"log", "output.0"}
    assert (place / "log").read_text() == gateway.said
    told = "\n".join(gateway.log)
    for words in (
        "listening on quic",
        "listening on unix",
        "process up: pgtrunk-gateway ",
        "login attempt: db=e2e user=app tls=no front=tcp",
        "new connection",
    ):
        assert words in told
    assert "closing because: client close request (age=" in told
    assert ("running as root" in told) == (os.geteuid() == 0)
    assert PASSWORD not in gateway.said
    assert "Traceback" not in gateway.said


def test_quiet(site: Site) -> None:
    place = site.place()
    with gateway_process(site, "-q", place=place, logfile=place / "log") as gateway:
        until_blocking(lambda: (place / "log").exists() and "listening on unix" in (place / "log").read_text())
        assert gateway.stop() == 0
        assert gateway.said == ""


def test_version_and_help() -> None:
    for flag, words in (("-V", "pgtrunk-gateway 0."), ("--help", "SIGTERM waits for clients")):
        command = [sys.executable, "-m", "pgtrunk_gateway", flag]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert words in done.stdout


# -- signals


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_with_nobody_there_each_signal_ends_it(site: Site, signum: signal.Signals) -> None:
    with gateway_process(site) as gateway:
        gateway.port()
        assert gateway.stop(signum) == 0


def test_sigterm_waits_for_clients(site: Site) -> None:
    with gateway_process(site) as gateway, gateway.connect("tcp") as idle, gateway.connect("unix") as busy:
        conninfo = gateway.conninfo("tcp")
        gateway.send(signal.SIGTERM)
        gateway.until_logged("got SIGTERM, shutting down, waiting for all clients disconnect")
        # Those who are there can go on, with new transactions too.
        for session in (idle, busy):
            with session.transaction():
                assert session.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="Connection refused"):
            psycopg.connect(**conninfo)
        # The unix socket is there for the console alone.
        with pytest.raises(psycopg.OperationalError, match="pooler is shutting down"):
            psycopg.connect(**conninfo | {"host": str(gateway.place)})
        idle.close()
        assert busy.execute("SELECT 1").fetchone() == (1,)
        assert gateway.process.poll() is None
        busy.close()
        assert gateway.wait() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT])
def test_a_second_signal_ends_it_at_once(site: Site, second: signal.Signals) -> None:
    with gateway_process(site, shutdown_timeout=600) as gateway, gateway.connect("tcp") as session:
        session.execute("BEGIN")
        gateway.send(signal.SIGTERM)
        gateway.until_logged("waiting for all clients")
        assert gateway.stop(second) == 0
        with pytest.raises(psycopg.errors.AdminShutdown, match="pooler is shutting down"):
            session.execute("SELECT 1")


def test_signals_while_it_closes_are_no_matter(site: Site) -> None:
    with gateway_process(site, shutdown_timeout=600) as gateway, gateway.connect("tcp"):
        gateway.send(signal.SIGTERM)
        gateway.until_logged("waiting for all clients")
        for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            gateway.send(signum)
        assert gateway.wait() == 0
        assert files(gateway.place) == {"output.0"}
        assert "Traceback" not in gateway.said


def test_sigint_waits_for_transactions(site: Site) -> None:
    with (
        gateway_process(site, default_pool_size=2) as gateway,
        gateway.connect() as idle,
        gateway.connect() as busy,
        gateway.connect() as held,
        gateway.connect() as waiting,
    ):
        held.execute("BEGIN")
        held.execute("SELECT 1")
        running = in_thread(busy, "SELECT 'done', pg_sleep(1)")
        until_blocking(lambda: site.admin.running("done"))
        refused = in_thread(waiting, "SELECT 1")
        gateway.send(signal.SIGINT)
        gateway.until_logged("got SIGINT, shutting down, waiting for all servers connections to be released")
        refused[0].join(20)
        with pytest.raises(psycopg.errors.AdminShutdown):
            idle.execute("SELECT 1")
        running[0].join(20)
        assert running[1] == [("done", "")]
        # Told together with its answer, which libpq takes for a notice.
        with pytest.raises(psycopg.OperationalError):
            busy.execute("SELECT 1")
        assert held.execute("SELECT 2").fetchone() == (2,)
        assert gateway.process.poll() is None
        held.execute("COMMIT")
        assert gateway.wait() == 0
        # Whether it waited yet or not, it was told, or it was served.
        assert refused[1] == [(1,)] or isinstance(refused[1][0], psycopg.errors.AdminShutdown)


def test_sigint_after_sigterm_is_less_patient(site: Site) -> None:
    with gateway_process(site) as gateway, gateway.connect() as session:
        gateway.send(signal.SIGTERM)
        gateway.until_logged("waiting for all clients")
        gateway.send(signal.SIGINT)
        gateway.until_logged("waiting for all servers")
        assert gateway.wait() == 0
        with pytest.raises(psycopg.errors.AdminShutdown):
            session.execute("SELECT 1")


def test_sigterm_after_sigint_changes_nothing(site: Site) -> None:
    with gateway_process(site) as gateway, gateway.connect() as session:
        session.execute("BEGIN")
        session.execute("SELECT 1")
        gateway.send(signal.SIGINT)
        gateway.until_logged("waiting for all servers")
        gateway.send(signal.SIGTERM)
        gateway.until_logged("got SIGTERM, shutting down, waiting for all servers")
        assert session.execute("SELECT 1").fetchone() == (1,)
        session.execute("COMMIT")
        assert gateway.wait() == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_timeout(site: Site, signum: signal.Signals) -> None:
    with gateway_process(site, shutdown_timeout=0.5) as gateway, gateway.connect() as session:
        session.execute("CREATE TABLE IF NOT EXISTS shut (n int)")
        session.execute("BEGIN")
        session.execute("INSERT INTO shut VALUES (1)")
        assert gateway.stop(signum) == 0
        gateway.until_logged("WARNING shutdown_timeout = 0.5 s: 1 sessions have not ended and are closed")
        with pytest.raises(psycopg.errors.AdminShutdown):
            session.execute("SELECT 1")
        until_blocking(lambda: not site.admin.backends())
        assert site.admin.value("SELECT count(*) FROM shut") == 0


def test_sigquit_ends_it_now(site: Site) -> None:
    with gateway_process(site) as gateway, gateway.connect() as busy:
        thread, results = in_thread(busy, "SELECT pg_sleep(600)")
        until_blocking(lambda: site.admin.running("pg_sleep"))
        assert gateway.stop(signal.SIGQUIT) == 0
        thread.join(20)
        assert isinstance(results[0], psycopg.errors.AdminShutdown)
        until_blocking(lambda: not site.admin.backends())


async def test_quic_sessions_while_it_drains(site: Site) -> None:
    with gateway_process(site) as gateway:
        ca, port = str(site.certificates.ca_cert), await asyncio.to_thread(gateway.port, "quic")
        there: dict[str, Any] = {"ca_file": ca, "connections": 1, "acquire_timeout": 2}
        where = f"127.0.0.1:{port}"
        async with StreamManager(where, **there) as trunk, StreamManager(where, **there) as old:
            # One that knows no GOAWAY.
            old._dialer.quic._config = replace(old._dialer.quic._config, alpn=("postgresql",))
            session, other = await trunk.connect(**LOGIN), await old.connect(**LOGIN)
            gateway.send(signal.SIGTERM)
            await asyncio.to_thread(gateway.until_logged, "waiting for all clients")
            with pytest.raises(asyncpg.CannotConnectNowError, match="shutting down"):
                await old.connect(**LOGIN)
            # The other one looks for a gateway that lets it in.
            await until(lambda: trunk.stats().connections_leaving)
            with pytest.raises(GatewayUnreachable, match="CONNECTION_REFUSED"):
                await trunk.connect(**LOGIN)
            await other.close()
            assert await session.fetchval("SELECT 1") == 1
            with pytest.raises(TimeoutError):
                await session.fetchval("SELECT 1 FROM pg_sleep(60)", timeout=0.1)
            assert await session.fetchval("SELECT 1") == 1
            async with StreamManager(f"127.0.0.1:{port}", ca_file=ca, acquire_timeout=2, connect_timeout=1) as late:
                with pytest.raises(OSError):
                    await late.connect(**LOGIN)
            await session.close()
            assert await asyncio.to_thread(gateway.wait) == 0


# -- files


def test_a_new_gateway_takes_the_place_of_one_that_drains(site: Site) -> None:
    place = site.place()
    with gateway_process(site, place=place, quic_cert_file=None, quic_key_file=None) as old:
        port = old.port()
        with old.connect("unix") as last:
            old.send(signal.SIGTERM)
            old.until_logged("waiting for all clients")
            with gateway_process(site, place=place, listen_port=port, quic_cert_file=None, quic_key_file=None) as new:
                new.port()
                with new.connect("unix") as first:
                    assert last.execute("SELECT 1").fetchone() == first.execute("SELECT 1").fetchone()
                last.close()
                assert old.wait() == 0
                # The old one has left the new one's socket alone.
                with new.connect("unix") as session:
                    assert session.execute("SELECT 1").fetchone() == (1,)
                assert new.stop() == 0
        assert not (place / f".s.PGSQL.{port}").exists()


def test_a_stale_socket_is_replaced(site: Site) -> None:
    place = site.place()
    with gateway_process(site, place=place) as gateway:
        port = gateway.port()
        gateway.process.kill()
        gateway.process.wait()
    assert (place / f".s.PGSQL.{port}").exists()
    with gateway_process(site, place=place, listen_port=port) as gateway, gateway.connect("unix") as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("kind", ["listening", "full", "file"])
def test_a_socket_that_is_not_its_own_is_left_alone(site: Site, kind: str) -> None:
    place = site.place()
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    path = place / f".s.PGSQL.{port}"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as client:
        if kind == "file":
            path.write_text("something else")
        else:
            other.bind(str(path))
            other.listen(0)
        if kind == "full":
            client.connect(str(path))
        with gateway_process(site, place=place, listen_port=port) as gateway:
            assert gateway.wait() == 1
        reason = "is there already, and is no socket" if kind == "file" else "Address already in use"
        assert gateway.said.splitlines()[-1] == (
            f"pgtrunk-gateway: {gateway.ini}:6: unix_socket_dir: cannot listen on unix {place} port {port}: {reason}"
        )
        assert path.exists()


def test_pid_files(site: Site) -> None:
    place = site.place()
    pidfile = place / "pid"
    with gateway_process(site, place=place, pidfile=pidfile) as first:
        first.port()
        with gateway_process(site, place=place, pidfile=pidfile) as second:
            assert second.wait() == 1
            assert f'"{pidfile}" says that pid {first.process.pid} runs already' in second.said
        assert pidfile.read_text() == f"{first.process.pid}\n"
        first.process.kill()
        first.process.wait()
    with gateway_process(site, place=place, pidfile=pidfile) as third:
        third.port()
        # Somebody removed it, and another gateway has its pid there now.
        pidfile.write_text(f"{os.getpid()}\n")
        assert third.stop() == 0
    assert pidfile.read_text() == f"{os.getpid()}\n"


def test_an_end_while_it_starts_leaves_nothing(site: Site) -> None:
    for delay in (0, 20):
        place = site.place()
        with gateway_process(site, place=place, pidfile=place / "pid") as gateway:
            until_blocking(lambda: gateway.said or gateway.process.poll() is not None)
            threading.Event().wait(delay / 1000)
            gateway.send(signal.SIGTERM)
            assert gateway.wait() == 0, gateway.said
        assert files(place) == {"output.0"}
