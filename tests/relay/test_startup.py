"""TLS at the beginning of a session: asked for or begun at once, and what must not come before it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from helpers.certificates import CLIENT_AUTH, authority
from helpers.lobby import Lobby
from helpers.tls_peers import client_context, own_certificate
from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import CancelRequest, GSSENCRequest, SSLRequest, StartupMessage
from pgtrunk_gateway.relay import authentication
from pgtrunk_gateway.relay.session import Session
from pgtrunk_gateway.tls import end_point
from pgtrunk_gateway.tls.contexts import make_door
from pgtrunk_gateway.tls.settings import TlsSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STARTUP = StartupMessage(parameters={"user": "app", "database": "shop"}).encode()
SSL_REQUEST = SSLRequest().encode()


class Site:
    """A gateway that listens on a socket, with a door of the test's choice."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.own = own_certificate()
        (folder / "ca.pem").write_bytes(self.ca.pem)
        self._folder = folder
        self._cert, self._key = self.own.save(folder, "own")
        self.lobby = Lobby()
        self.sessions: list[Session] = []
        self.port = 0

    def open(self, mode: Any, *, front: str = "tcp") -> None:
        settings = TlsSettings(
            mode=mode,
            cert_file=self._cert,
            key_file=self._key,
            ca_file=str(self._folder / "ca.pem"),
            protocols=None,
            ciphers=None,
        )
        self.lobby.context.tls.door = make_door(settings)
        self.front = front

    def client(self, *, alpn: str | None = None, ca: Any = None) -> ssl.SSLContext:
        context = client_context(ca or self.ca)
        if alpn is not None:
            context.set_alpn_protocols([alpn])
        return context

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        def session() -> Session:
            self.sessions.append(Session(self.lobby.context, self.front))
            return self.sessions[-1]

        listening = await asyncio.get_running_loop().create_server(session, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            listening.close()
            await self.lobby.end()
            for each in self.sessions:
                each.transport.abort()
            assert await self.lobby.context.sessions_end(20)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def encrypted(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A session in TLS, begun by SSLRequest."""
        reader, writer = await self.connect()
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(1) == b"S"
        try:
            await writer.start_tls(context, server_hostname="localhost")
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    async def direct(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def welcome(reader: asyncio.StreamReader) -> str:
    """The kinds of the messages until ReadyForQuery."""
    data = b""
    while not data.endswith(server.ready()):
        more = await asyncio.wait_for(reader.read(1 << 16), 20)
        assert more, f"only {data!r}"
        data += more
    return "".join(chr(kind) for kind, _, _ in messages(data))


async def refusal(reader: asyncio.StreamReader) -> server.ErrorFields:
    """The error that is the last thing said."""
    data = await asyncio.wait_for(reader.read(-1), 20)
    *_, (kind, start, end) = messages(data)
    assert chr(kind) == "E"
    return server.parse_error(data[start + 5 : end])


@pytest.mark.parametrize("mode", ["allow", "prefer", "require"])
async def test_a_session_in_tls(site: Site, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    site.open(mode)
    async with site.serve():
        reader, writer = await site.encrypted(site.client())
        writer.write(STARTUP)
        assert (await welcome(reader)).endswith("KZ")
        (session,) = site.sessions
        assert session.tls.startswith("TLSv1.3/TLS_")
        assert f"login attempt: db=shop user=app tls={session.tls} front=tcp" in caplog.text
        writer.close()


@pytest.mark.parametrize("mode", ["allow", "prefer", "require"])
async def test_a_session_in_direct_tls(site: Site, mode: str) -> None:
    site.open(mode)
    async with site.serve():
        reader, writer = await site.direct(site.client(alpn="postgresql"))
        writer.write(STARTUP)
        assert (await welcome(reader)).endswith("KZ")
        writer.close()


@pytest.mark.parametrize("alpn", [None, "h2"])
async def test_direct_tls_without_the_right_alpn_is_refused(site: Site, alpn: str | None) -> None:
    site.open("prefer")
    async with site.serve():
        reader, writer = await site.direct(site.client(alpn=alpn))
        writer.write(STARTUP)
        error = await refusal(reader)
        assert (error.sqlstate, "ALPN" in error.message) == ("08P01", True)
        writer.close()


async def test_gss_is_declined_before_tls(site: Site) -> None:
    site.open("require")
    async with site.serve():
        reader, writer = await site.connect()
        writer.write(GSSENCRequest().encode())
        assert await reader.readexactly(1) == b"N"
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(1) == b"S"
        await writer.start_tls(site.client(), server_hostname="localhost")
        writer.write(STARTUP)
        await welcome(reader)
        writer.close()


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_who_must_come_in_tls_and_does_not(site: Site, mode: str) -> None:
    site.open(mode)
    async with site.serve():
        reader, writer = await site.connect()
        writer.write(STARTUP)
        error = await refusal(reader)
        assert (error.severity, error.sqlstate, error.message) == ("FATAL", "28000", "SSL required")
        assert error.detail == f"client_tls_sslmode = {mode}."
        writer.close()


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer"])
async def test_who_need_not(site: Site, mode: str) -> None:
    site.open(mode)
    async with site.serve():
        reader, writer = await site.connect()
        writer.write(STARTUP)
        await welcome(reader)
        assert site.sessions[0].tls == ""
        writer.close()


@pytest.mark.parametrize(("mode", "front"), [("disable", "tcp"), ("require", "unix"), ("require", "quic")])
async def test_where_there_is_no_tls(site: Site, mode: str, front: str) -> None:
    site.open(mode, front=front)
    async with site.serve():
        reader, writer = await site.connect()
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(1) == b"N"
        writer.write(STARTUP)
        await welcome(reader)
        writer.close()


async def test_direct_tls_where_there_is_none(site: Site) -> None:
    site.open("disable")
    async with site.serve():
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await site.direct(site.client(alpn="postgresql"))


# -- cancel requests ---------------------------------------------------------------------------------------------------


async def test_a_cancel_request_in_tls(site: Site) -> None:
    site.open("require")
    async with site.serve():
        reader, writer = await site.encrypted(site.client())
        writer.write(CancelRequest(7, b"1234").encode())
        assert await asyncio.wait_for(reader.read(), 20) == b""
        assert site.lobby.cancels.served == [CancelRequest(7, b"1234")]
        writer.close()


async def test_a_cancel_request_in_clear_is_served_always(site: Site) -> None:
    site.open("require")
    async with site.serve():
        reader, writer = await site.connect()
        writer.write(CancelRequest(7, b"1234").encode())
        assert await asyncio.wait_for(reader.read(), 20) == b""
        assert site.lobby.cancels.served == [CancelRequest(7, b"1234")]
        writer.close()


# -- what comes in clear and should not --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["disable", "require"])
@pytest.mark.parametrize("request_", [SSL_REQUEST, GSSENCRequest().encode()])
async def test_nothing_may_follow_a_request_before_its_answer(site: Site, mode: str, request_: bytes) -> None:
    site.open(mode)
    async with site.serve():
        reader, writer = await site.connect()
        writer.write(request_ + STARTUP)
        error = await refusal(reader)
        assert error.message == "received unencrypted data after a request for encryption"
        assert not site.lobby.cancels.keys
        writer.close()


async def test_what_is_sent_in_clear_where_a_handshake_is_due(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    site.open("prefer")
    async with site.serve():
        reader, writer = await site.connect()
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(1) == b"S"
        writer.write(STARTUP)
        said = await asyncio.wait_for(reader.read(), 20)
        assert b"SSL" not in said  # an alert of TLS at most, and no word in clear
        assert "TLS handshake error: " in caplog.text
        assert "closing because: TLS handshake failed" in caplog.text
        writer.close()


async def test_tls_is_not_begun_twice(site: Site) -> None:
    site.open("prefer")
    async with site.serve():
        reader, writer = await site.encrypted(site.client())
        writer.write(SSL_REQUEST)
        assert (await refusal(reader)).message == "encryption was asked for twice"
        writer.close()


async def test_a_client_that_leaves_in_the_handshake(site: Site) -> None:
    site.open("prefer")
    async with site.serve():
        for said in (SSL_REQUEST, SSL_REQUEST, b"\x16\x03\x01"):
            reader, writer = await site.connect()
            writer.write(said)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 20)
            writer.close()


async def test_a_handshake_that_does_not_go_on_has_the_login_s_deadline(site: Site) -> None:
    site.lobby.context.config = replace(site.lobby.context.config, client_login_timeout=0.05)
    site.open("prefer")
    async with site.serve():
        reader, writer = await site.connect()
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(1) == b"S"
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


# -- certificates ------------------------------------------------------------------------------------------------------


async def test_a_client_without_a_certificate_where_one_is_due(site: Site) -> None:
    site.open("verify-full")
    async with site.serve():
        reader, writer = await site.encrypted(site.client())
        writer.write(STARTUP)
        # In TLS 1.3 the client is through before the server has looked for the certificate.
        with pytest.raises(ssl.SSLError, match="certificate required"):
            await asyncio.wait_for(reader.read(), 20)
        writer.transport.abort()


@pytest.mark.parametrize("mode", ["verify-full", "require"])
@pytest.mark.parametrize("who", ["another authority's", "out of date"])
async def test_a_wrong_certificate(site: Site, tmp_path: Path, mode: str, who: str) -> None:
    wrong = authority("other").issue("app") if who == "another authority's" else site.ca.issue("app", days=(-9, -1))
    context = site.client()
    context.load_cert_chain(*wrong.save(tmp_path, "wrong"))
    site.open(mode)
    async with site.serve():
        reader, writer = await site.encrypted(context)
        writer.write(STARTUP)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.wait_for(reader.read(), 20)
        writer.transport.abort()


async def test_what_a_login_gets_to_know(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel binding and the client's certificate, for whoever authenticates by them."""
    seen: list[Any] = []

    async def authenticate(context: Any, dialogue: Any, *more: Any, **named: Any) -> Any:
        seen.append((dialogue.channel_binding, dialogue.peer_certificate))
        return await authentication.authenticate(context, dialogue, *more, **named)

    monkeypatch.setattr("pgtrunk_gateway.relay.entering.authenticate", authenticate)
    own = site.ca.issue("app", usage=[CLIENT_AUTH])
    context = site.client()
    context.load_cert_chain(*own.save(tmp_path, "client"))
    site.open("verify-full")
    async with site.serve():
        reader, writer = await site.encrypted(context)
        writer.write(STARTUP)
        await welcome(reader)
        assert seen == [(end_point(site.own.der), own.certificate)]
        writer.close()
