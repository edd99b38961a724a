"""SCRAM with the real ones: our client logs in to PostgreSQL, libpq and asyncpg log in to our server."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from helpers.postgres import create_user, stored_secret
from pgtrunk.wire import backend, frontend
from pgtrunk.wire.startup import SSLRequest, StartupMessage, parse_startup
from pgtrunk_gateway.auth import (
    NONCE_LENGTH,
    Accepted,
    Action,
    ClientExchange,
    Derivation,
    Derive,
    Login,
    LoginPolicy,
    Plain,
    Refused,
    ScramKeys,
    ScramSecret,
    SendSasl,
    SendSaslContinue,
    SendSaslFinal,
    ServerExchange,
    Userlist,
    parse_secret,
)

if TYPE_CHECKING:
    from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

PASSWORDS = [
    "secret",
    "with 'quotes' and \"more\"",
    "größe",
    "I\u00adX",
    "\u2168",
    "a\u00a0b\u200bc",
    "\u00e9\x07",
    "\u0627\u0628",
    "\u0627a",
    "\U0001f600\u00aa",
    "\U0002f868",  # a character whose normalization Unicode has corrected since 3.2
    "x" * 1000,
]


class Wire:
    """One blocking connection, message by message."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(20.0)

    def receive(self) -> tuple[int, bytes]:
        kind, length = struct.unpack("!Bi", self.exactly(5))
        return kind, self.exactly(length - 4)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.sock.recv(count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data


# -- our client, their server ----------------------------------------------------------------------------------------


def log_in(server: EmbeddedPostgres, user: str, password: str, keys: ScramKeys | None = None) -> str:
    """Logs in to Postgres as the gateway does -> "ok", or the SQLSTATE of the refusal."""
    with socket.create_connection((server.host, server.port), timeout=20.0) as sock:
        wire, exchange = Wire(sock), ClientExchange(nonce=os.urandom(NONCE_LENGTH))
        sock.sendall(StartupMessage(parameters={"user": user, "database": "postgres"}).encode())
        while True:
            kind, body = wire.receive()
            if kind == backend.ERROR:
                return backend.parse_error(body).sqlstate
            request = backend.parse_authentication(body)
            match request.code:
                case 0:
                    return "ok"
                case 10:
                    assert backend.parse_sasl_mechanisms(request.data) == ["SCRAM-SHA-256"]
                    sock.sendall(frontend.sasl_initial_response("SCRAM-SHA-256", exchange.first()))
                case 11:
                    derivation = exchange.challenge(request.data, password)
                    sock.sendall(frontend.sasl_response(exchange.final(keys or derivation.run())))
                case 12:
                    exchange.verify(request.data)


@pytest.mark.parametrize("password", PASSWORDS, ids=ascii)
async def test_we_log_in_to_postgres(postgres: EmbeddedPostgres, password: str) -> None:
    await create_user(postgres, "scram_client", password)
    assert await asyncio.to_thread(log_in, postgres, "scram_client", password) == "ok"
    assert await asyncio.to_thread(log_in, postgres, "scram_client", password + "x") == "28P01"


@pytest.mark.parametrize("iterations", [1, 100, 50_000])
async def test_iteration_counts_that_a_server_may_have(postgres: EmbeddedPostgres, iterations: int) -> None:
    secret = Derivation("secret", b"short", iterations).secret()
    await create_user(postgres, "scram_count", secret.encode())
    assert await asyncio.to_thread(log_in, postgres, "scram_count", "secret") == "ok"


async def test_we_log_in_by_the_keys_that_a_client_has_proved(postgres: EmbeddedPostgres) -> None:
    """Pass-through: the gateway knows the stored secret only, and gets the client's key from the client's proof."""
    await create_user(postgres, "scram_through", "secret")
    stored = parse_secret(await stored_secret(postgres, "scram_through"))
    assert isinstance(stored, ScramSecret)

    client, front = ClientExchange(nonce=b"c" * 18), ServerExchange(stored.salt, stored.iterations, nonce=b"s" * 18)
    front.final(client.final(client.challenge(front.first(client.first()), "secret").run()), stored)
    assert await asyncio.to_thread(log_in, postgres, "scram_through", "not known", front.keys) == "ok"


@pytest.fixture(scope="module")
def secrets_of_postgres(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute("SET scram_iterations = 1")
        connection.execute("CREATE ROLE saslprep")
        yield connection
        connection.execute("DROP ROLE saslprep")


def assert_postgres_agrees(connection: psycopg.Connection[Any], password: str) -> None:
    statement = sql.SQL("ALTER ROLE saslprep PASSWORD {}").format(sql.Literal(password))
    connection.execute(statement)
    row = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'saslprep'").fetchone()
    assert row is not None
    stored = parse_secret(row[0])
    assert isinstance(stored, ScramSecret) and stored.iterations == 1
    assert Derivation(password, stored.salt, stored.iterations).secret() == stored


odd = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
odder = st.sampled_from(
    "a1 \u00a0\u00ad\u200b\u1806\u0301\u00aa\u2168\u0340\u0627\u05d0\u0660\u2028\ufeff\u0221\ufffd\U0002f868\U000e0001"
)


@given(st.text(st.one_of(odd, odder), min_size=1, max_size=12))
def test_postgres_prepares_passwords_as_we_do(secrets_of_postgres: psycopg.Connection[Any], password: str) -> None:
    assert_postgres_agrees(secrets_of_postgres, password)


@pytest.mark.long
def test_postgres_prepares_every_character_as_we_do(secrets_of_postgres: psycopg.Connection[Any]) -> None:
    for code in range(0x80, 0x30000):
        if not 0xD800 <= code < 0xE000:
            assert_postgres_agrees(secrets_of_postgres, f"{chr(code)}\u00aa")


# -- our server, their clients ---------------------------------------------------------------------------------------

USERS = Userlist({"plain": Plain("sécret"), "scram": Derivation("sécret", b"sixteen octets..", 4096).secret()})


@contextmanager
def login_server() -> Iterator[int]:
    """A server for one client after another that lets them log in, and no more -> its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def serve(listener: socket.socket) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock:
            serve_login(Wire(sock))


def serve_login(wire: Wire) -> None:
    login = Login(
        LoginPolicy(auth_type="scram-sha-256", userlist=USERS, mock_key=b"k" * 32),
        read_user(wire),
        nonce=os.urandom(NONCE_LENGTH),
        retry_after=lambda: 0.0,
    )
    actions = login.start()
    while perform(wire, login, actions):
        kind, body = wire.receive()
        assert kind == frontend.PASSWORD
        actions = login.message(body)


def read_user(wire: Wire) -> str:
    while True:
        head = wire.exactly(4)
        packet = parse_startup(head + wire.exactly(struct.unpack("!i", head)[0] - 4))
        assert packet is not None
        if isinstance(packet[0], StartupMessage):
            return packet[0].parameters["user"]
        assert isinstance(packet[0], SSLRequest)
        wire.sock.sendall(b"N")


def perform(wire: Wire, login: Login, actions: tuple[Action, ...]) -> bool:
    """-> whether the login goes on."""
    for action in actions:
        match action:
            case SendSasl(mechanisms):
                wire.sock.sendall(backend.authentication_sasl(mechanisms))
            case SendSaslContinue(data):
                wire.sock.sendall(backend.authentication_sasl_continue(data))
            case SendSaslFinal(data):
                wire.sock.sendall(backend.authentication_sasl_final(data))
            case Derive(derivation):
                perform(wire, login, login.derived(derivation.run()))
            case Accepted():
                key = backend.backend_key_data(1, b"1234")
                version = backend.parameter_status("server_version", "18.0")
                wire.sock.sendall(backend.authentication_ok() + version + key + backend.ready())
                return False
            case Refused(error):
                wire.sock.sendall(backend.error(error.sqlstate, error.message, severity=error.severity))
                return False
    return True


@pytest.mark.parametrize("user", ["plain", "scram"])
def test_libpq_logs_in(user: str) -> None:
    with login_server() as port:
        options: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": port,
            "user": user,
            "dbname": "x",
            "connect_timeout": 20,
        }
        psycopg.connect(password="sécret", **options).close()
        with pytest.raises(psycopg.OperationalError, match="FATAL:  SASL authentication failed"):
            psycopg.connect(password="secret", **options)


@pytest.mark.parametrize("user", ["plain", "scram"])
async def test_asyncpg_logs_in(user: str) -> None:
    with login_server() as port:
        options: dict[str, Any] = {"host": "127.0.0.1", "port": port, "user": user, "database": "x", "timeout": 20}
        connection = await asyncpg.connect(password="sécret", **options)
        connection.terminate()
        with pytest.raises(asyncpg.InvalidPasswordError, match="SASL authentication failed"):
            await asyncpg.connect(password="secret", **options)


def test_libpq_cannot_tell_that_a_user_is_unknown() -> None:
    with login_server() as port:
        options: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": port,
            "dbname": "x",
            "connect_timeout": 20,
            "password": "wrong",
        }
        said = set()
        for user in ("plain", "scram", "unknown"):
            with pytest.raises(psycopg.OperationalError) as caught:
                psycopg.connect(user=user, **options)
            said.add(str(caught.value))
    assert len(said) == 1
