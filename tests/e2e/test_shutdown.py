"""SHUTDOWN from the console, the console while the gateway drains, signals that pause, and who is told what."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from helpers.processes import GatewayProcess, gateway_process, run_program
from helpers.site import DATABASE, USER
from helpers.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helpers.site import Site


@contextlib.contextmanager
def console(gateway: GatewayProcess) -> Iterator[psycopg.Connection[Any]]:
    """An administrator on the unix socket, who needs no password."""
    options = {"dbname": "pgbouncer", "user": "pgbouncer", "password": ""}
    with psycopg.connect(**gateway.conninfo("unix", **options), autocommit=True) as session:
        yield session


def state(session: psycopg.Connection[Any]) -> dict[str, str]:
    return dict(session.execute("SHOW STATE").fetchall())


def in_background(session: psycopg.Connection[Any], query: str) -> tuple[threading.Thread, list[Any]]:
    """Runs a query in a thread, with its rows or its error in the list."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.extend(session.execute(query).fetchall())
        except psycopg.Error as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


# -- SHUTDOWN


def test_now(site: Site) -> None:
    with gateway_process(site) as gateway, gateway.connect() as session, console(gateway) as admin:
        session.execute("BEGIN")
        with pytest.raises(psycopg.OperationalError):
            admin.execute("SHUTDOWN")
        assert gateway.wait() == 0
        gateway.until_logged("SHUTDOWN command issued")
        with pytest.raises(psycopg.errors.AdminShutdown):
            session.execute("SELECT 1")


def test_wait_for_clients(site: Site) -> None:
    with gateway_process(site, shutdown_timeout=600) as gateway, gateway.connect() as session:
        with console(gateway) as admin:
            admin.execute("SHUTDOWN WAIT_FOR_CLIENTS")
        with pytest.raises(psycopg.OperationalError, match="Connection refused"):
            gateway.connect("tcp")
        with pytest.raises(psycopg.OperationalError, match="pooler is shutting down"):
            gateway.connect("unix")
        # For the console the unix socket stays. It is no client that would be waited for, either.
        with console(gateway) as admin:
            assert admin.execute("SHOW VERSION").fetchone() is not None
            with pytest.raises(psycopg.Error, match="pooler is shutting down"):
                admin.execute("RESUME")
            assert session.execute("SELECT 1").fetchone() == (1,)
            session.close()
            assert gateway.wait() == 0
        gateway.until_logged("client connections dropped, exiting")
        assert not (gateway.place / f".s.PGSQL.{gateway.port()}").exists()


def test_wait_for_servers(site: Site) -> None:
    with (
        gateway_process(site, shutdown_timeout=600, default_pool_size=1) as gateway,
        gateway.connect() as holder,
        gateway.connect() as waiting,
        console(gateway) as admin,
    ):
        holder.execute("BEGIN")
        holder.execute("SELECT 1")
        thread, results = in_background(waiting, "SELECT 1")
        until_blocking(lambda: [row for row in admin.execute("SHOW POOLS") if row[0] == DATABASE and row[3] == 1])
        admin.execute("SHUTDOWN WAIT_FOR_SERVERS")
        gateway.until_logged("LOG SHUTDOWN WAIT_FOR_SERVERS command issued")
        thread.join(20)
        assert isinstance(results[0], psycopg.errors.AdminShutdown)
        gateway.until_logged("closing because: server shutting down (age=")
        assert holder.execute("SELECT 2").fetchone() == (2,)
        assert gateway.process.poll() is None
        holder.execute("COMMIT")
        assert gateway.wait() == 0
        gateway.until_logged("server connections dropped, exiting")


def test_a_session_in_session_mode_is_waited_for(site: Site) -> None:
    with (
        gateway_process(site, shutdown_timeout=600, pool_mode="session") as gateway,
        gateway.connect() as session,
    ):
        session.execute("SELECT 1")
        gateway.send(signal.SIGINT)
        gateway.until_logged("got SIGINT, shutting down, waiting for all servers connections to be released")
        assert session.execute("SELECT 1").fetchone() == (1,)
        assert gateway.process.poll() is None
        session.close()
        assert gateway.wait() == 0


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGTERM", "SIGQUIT")])
def test_the_second_signal_is_the_last(site: Site, first: str, second: str) -> None:
    with gateway_process(site, shutdown_timeout=600) as gateway, gateway.connect() as session:
        session.execute("BEGIN")
        session.execute("SELECT 1")
        gateway.send(signal.Signals[first])
        gateway.until_logged(f"got {first}, shutting down")
        assert session.execute("SELECT 1").fetchone() == (1,)
        assert gateway.stop(signal.Signals[second]) == 0
        with pytest.raises(psycopg.errors.AdminShutdown):
            session.execute("SELECT 1")


# -- pausing by signals and by the console


def test_signals_pause_and_resume(site: Site) -> None:
    with gateway_process(site) as gateway, gateway.connect() as session, console(gateway) as admin:
        session.execute("SELECT 1")
        gateway.send(signal.SIGUSR1)
        gateway.until_logged("got SIGUSR1, pausing all activity")
        until_blocking(lambda: state(admin)["paused"] == "yes")
        thread, results = in_background(session, "SELECT 2")
        gateway.send(signal.SIGUSR1)
        gateway.until_logged("got SIGUSR1, but already paused/suspended")
        assert thread.is_alive()
        gateway.send(signal.SIGUSR2)
        gateway.until_logged("got SIGUSR2, continuing from PAUSE")
        thread.join(20)
        assert results == [(2,)]
        gateway.send(signal.SIGUSR2)
        gateway.until_logged("got SIGUSR2, but not paused/suspended")
        assert state(admin)["active"] == "yes"


def test_a_pause_that_is_cancelled_is_none(site: Site) -> None:
    with gateway_process(site) as gateway, gateway.connect() as holder, console(gateway) as admin:
        holder.execute("BEGIN")
        holder.execute("SELECT 1")
        thread, results = in_background(admin, "PAUSE")
        with console(gateway) as other:
            until_blocking(lambda: state(other)["paused"] == "yes")
            admin.cancel_safe()
            thread.join(20)
            assert isinstance(results[0], psycopg.errors.QueryCanceled)
            assert state(other)["paused"] == "no"
        with gateway.connect() as session:
            assert session.execute("SELECT 1").fetchone() == (1,)


def test_a_stop_while_it_is_paused_comes_to_its_end(site: Site) -> None:
    with (
        gateway_process(site, shutdown_timeout=0.5) as gateway,
        gateway.connect() as session,
        console(gateway) as admin,
    ):
        session.execute("SELECT 1")
        admin.execute("PAUSE")
        thread, results = in_background(session, "SELECT 2")
        gateway.send(signal.SIGTERM)
        assert gateway.wait() == 0
        thread.join(20)
        assert isinstance(results[0], psycopg.errors.AdminShutdown)


# -- what the log says, and the service manager


def matches(gateway: GatewayProcess, words: Sequence[str]) -> None:
    for each in words:
        gateway.until_logged(each)


def test_the_log_has_pgbouncers_words(site: Site) -> None:
    with gateway_process(site, default_pool_size=1, query_wait_timeout=0.2, idle_transaction_timeout=1) as gateway:
        with gateway.connect() as session:
            session.execute("SELECT 1")
        for options in ({"dbname": "nowhere"}, {"user": "nobody"}, {"password": "wrong"}):
            with pytest.raises(psycopg.OperationalError):
                gateway.connect(**options)
        with contextlib.closing(gateway.connect()) as holder, gateway.connect() as waiting:
            holder.execute("BEGIN")
            holder.execute("SELECT 1")
            with pytest.raises(psycopg.errors.TooManyConnections):
                waiting.execute("SELECT 1")
            gateway.until_logged("closing because: idle transaction timeout (age=")
        port = gateway.port()
        matches(
            gateway,
            [
                f"login attempt: db={DATABASE} user={USER} tls=no",
                "new connection to server (from 127.0.0.1:",
                "closing because: client close request (age=",
                "closing because: no such database: nowhere (age=",
                "closing because: SASL authentication failed (age=",
                "pooler error: query_wait_timeout",
            ],
        )
        assert gateway.stop() == 0
        assert f"unix: {gateway.place}/.s.PGSQL.{port}" in "\n".join(gateway.log)
        assert "closing because: pooler is shutting down (age=" in "\n".join(gateway.log) or not site.admin.backends()


def test_a_notice_for_each_login(site: Site) -> None:
    with gateway_process(site, login_notify_message="Welcome to the pool") as gateway:
        done = run_program("psql", gateway.conninfo(), "-Atc", "SELECT 1")
        assert (done.stdout, done.stderr) == ("1\n", "NOTICE:  Welcome to the pool\n")


def test_the_address_in_application_name(site: Site) -> None:
    with gateway_process(site, application_name_add_host=1) as gateway, gateway.connect(application_name="shop") as one:
        address = one.execute("SHOW application_name").fetchone()
        assert address is not None
        assert address[0].startswith("shop - 127.0.0.1:")
        with gateway.connect("unix") as other:
            assert other.execute("SHOW application_name").fetchone() == ("app - unix",)


def test_a_service_manager_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    place = site.place()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place / "notify"))
        with gateway_process(site) as gateway:
            assert manager.recv(100) == b"READY=1"
            gateway.send(signal.SIGHUP)
            assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert manager.recv(100) == b"READY=1"
            gateway.send(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert gateway.wait() == 0


def test_two_gateways_on_one_port(site: Site) -> None:
    with gateway_process(site, so_reuseport=1) as one:
        port = one.port()
        settings: dict[str, Any] = {"listen_port": port, "quic_cert_file": None, "quic_key_file": None}
        with gateway_process(site, so_reuseport=1, **settings) as other:
            other.until_logged("listening on tcp")
            assert one.stop() == 0
            with other.connect() as session:
                assert session.execute("SELECT 1").fetchone() == (1,)
