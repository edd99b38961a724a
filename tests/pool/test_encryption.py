"""TLS to Postgres: what each sslmode asks for, falls back to and refuses; what goes over the wire; cancels in TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from helpers.cancelling import MOMENTS, Moment, cancel_at
from helpers.certificates import SERVER_AUTH, Identity, authority
from helpers.tls_peers import own_certificate, server_context
from pgtrunk.wire import backend as b
from pgtrunk.wire.startup import CancelRequest, SSLRequest, parse_startup
from pgtrunk_gateway.auth import Derivation, Plain
from pgtrunk_gateway.auth.scram_server import ServerExchange
from pgtrunk_gateway.errors import BackendRefused, BackendUnavailable, LoginRefused
from pgtrunk_gateway.pool.connect import Opened, dial_like, log_in
from pgtrunk_gateway.pool.target import Target
from pgtrunk_gateway.tls import TlsTransport, end_point
from pgtrunk_gateway.tls.contexts import make_server_tls
from pgtrunk_gateway.tls.settings import TlsSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pgtrunk_gateway.auth import ScramKeys

WELCOME = b.authentication_ok() + b.backend_key_data(7, b"key!") + b.ready()
REJECTED = b.error("28000", "pg_hba.conf rejects connection", severity="FATAL")


@dataclass
class Server:
    """A server of Postgres's manners. ``heard``: by connection, what came in clear, and what in TLS."""

    context: ssl.SSLContext | None
    answer: bytes = b""
    """To SSLRequest, in place of what it would be."""
    clear: bytes = WELCOME
    tls: bytes = WELCOME
    heard: list[list[str]] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    """The names that clients have asked for (SNI)."""
    certificates: list[bytes | None] = field(default_factory=list)
    binding: bytes | None = None
    """Given: SCRAM is asked for, with this channel binding."""
    mechanism: str = ""
    """That was chosen."""
    port: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.context is not None:
            self.context.sni_callback = lambda _socket, name, _context: self.names.append(name)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.ensure_future(self._run(reader, writer)))

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard: list[str] = []
        self.heard.append(heard)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, LoginRefused):
                await self._serve(reader, writer, heard)
                while await reader.read(1000):
                    pass
        finally:
            # Its end is not waited for: asyncio forgets to tell of it where a handshake has failed.
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: list[str]) -> None:
        packet = await self._packet(reader)
        encrypted = False
        if isinstance(packet, SSLRequest):
            heard.append("SSLRequest")
            writer.write(self.answer or (b"S" if self.context is not None else b"N"))
            if self.context is not None:
                await writer.start_tls(self.context)
                self.certificates.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
                encrypted = True
            packet = await self._packet(reader)
        heard.append(f"{type(packet).__name__} in {'TLS' if encrypted else 'clear'}")
        if isinstance(packet, CancelRequest):
            writer.close()
            return
        if self.binding is not None:
            await self._authenticate(reader, writer)
        writer.write(self.tls if encrypted else self.clear)

    async def _authenticate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = ServerExchange(b"salt" * 4, 4096, nonce=b"n" * 18, channel_binding=self.binding)
        writer.write(b.authentication_sasl(["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]))
        mechanism, first = (await self._message(reader)).split(b"\0", 1)
        self.mechanism = mechanism.decode()
        challenge = exchange.first(first[4:], plus=self.mechanism.endswith("-PLUS"))
        writer.write(b.authentication_sasl_continue(challenge))
        final = exchange.final(await self._message(reader), Derivation("secret", b"salt" * 4, 4096).run())
        writer.write(b.authentication_sasl_final(final))

    @staticmethod
    async def _message(reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(5)
        return await reader.readexactly(int.from_bytes(head[1:], "big") - 4)

    @staticmethod
    async def _packet(reader: asyncio.StreamReader) -> Any:
        head = await reader.readexactly(4)
        parsed = parse_startup(head + await reader.readexactly(int.from_bytes(head, "big") - 4))
        assert parsed is not None
        return parsed[0]


@asynccontextmanager
async def serving(context: ssl.SSLContext | None, **options: Any) -> AsyncIterator[Server]:
    """Ends only when all connections have ended: the gateway has to have closed its own."""
    mine = Server(context, **options)
    server = await asyncio.start_server(mine.accept, "127.0.0.1", 0)
    mine.port = server.sockets[0].getsockname()[1]
    try:
        yield mine
        async with asyncio.timeout(20):
            await asyncio.gather(*mine.tasks)
    finally:
        server.close()
        for task in mine.tasks:
            task.cancel()
        await asyncio.gather(*mine.tasks, return_exceptions=True)
        await server.wait_closed()


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.own = own_certificate()
        self.trust(self.ca)

    def trust(self, ca: Identity) -> None:
        (self.folder / "ca.pem").write_bytes(ca.pem)

    @property
    def server(self) -> ssl.SSLContext:
        return server_context(self.folder, self.own)

    def target(self, server: Server, mode: Any, *, host: str = "127.0.0.1", own: Identity | None = None) -> Target:
        cert, key = own.save(self.folder, "client") if own is not None else (None, None)
        settings = TlsSettings(
            mode=mode,
            cert_file=cert,
            key_file=key,
            ca_file=str(self.folder / "ca.pem"),
            protocols=None,
            ciphers=None,
        )
        return Target(host=host, port=server.port, dbname="shop", user="app", tls=make_server_tls(settings))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def derive(derivation: Derivation) -> ScramKeys:
    return derivation.run()


def ignore(_: Any) -> None: ...


async def connect(target: Target, timeout: float = 10.0) -> Opened:
    return await log_in(target, timeout=timeout, derive=derive, tune=ignore)


async def connected(target: Target) -> str | None:
    """Connects, and ends that -> the version of TLS, None without TLS."""
    opened = await connect(target)
    tls = opened.transport.get_extra_info("ssl_object")
    opened.transport.abort()
    return tls.version() if tls is not None else None


IN_TLS = ["SSLRequest", "StartupMessage in TLS"]
DECLINED = ["SSLRequest", "StartupMessage in clear"]
IN_CLEAR = ["StartupMessage in clear"]


@pytest.mark.parametrize(
    ("mode", "heard"),
    [
        ("disable", IN_CLEAR),
        ("allow", IN_CLEAR),
        ("prefer", IN_TLS),
        ("require", IN_TLS),
        ("verify-ca", IN_TLS),
        ("verify-full", IN_TLS),
    ],
)
async def test_a_server_with_tls(certificates: Certificates, mode: str, heard: list[str]) -> None:
    async with serving(certificates.server) as server:
        assert await connected(certificates.target(server, mode)) == ("TLSv1.3" if heard is IN_TLS else None)
        assert server.heard == [heard]


@pytest.mark.parametrize(("mode", "heard"), [("disable", IN_CLEAR), ("allow", IN_CLEAR), ("prefer", DECLINED)])
async def test_a_server_without_tls(certificates: Certificates, mode: str, heard: list[str]) -> None:
    async with serving(None) as server:
        assert await connected(certificates.target(server, mode)) is None
        assert server.heard == [heard]


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_server_without_tls_where_it_must_have_it(certificates: Certificates, mode: str) -> None:
    async with serving(None) as server:
        with pytest.raises(BackendUnavailable, match="server refused SSL") as raised:
            await connect(certificates.target(server, mode))
        assert raised.value.detail == f"server_tls_sslmode = {mode}."
        assert server.heard == [["SSLRequest"]]


# -- the other way -----------------------------------------------------------------------------------------------------


async def test_allow_goes_on_in_tls_where_the_server_wants_that(certificates: Certificates) -> None:
    async with serving(certificates.server, clear=REJECTED) as server:
        assert await connected(certificates.target(server, "allow")) == "TLSv1.3"
        assert server.heard == [IN_CLEAR, IN_TLS]


async def test_allow_has_no_other_way_where_there_is_no_tls(certificates: Certificates) -> None:
    async with serving(None, clear=REJECTED) as server:
        with pytest.raises(BackendRefused, match="rejects connection"):
            await connect(certificates.target(server, "allow"))


async def test_prefer_goes_on_in_clear_where_the_server_wants_that(certificates: Certificates) -> None:
    async with serving(certificates.server, tls=REJECTED) as server:
        assert await connected(certificates.target(server, "prefer")) is None
        assert server.heard == [IN_TLS, IN_CLEAR]


async def test_prefer_goes_on_in_clear_where_the_handshake_fails(certificates: Certificates) -> None:
    context = certificates.server
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-RSA-AES256-GCM-SHA384")  # which a key on a curve cannot do
    async with serving(context) as server:
        assert await connected(certificates.target(server, "prefer")) is None
        assert server.heard == [["SSLRequest"], IN_CLEAR]


async def test_prefer_does_not_say_the_same_twice(certificates: Certificates) -> None:
    async with serving(None, clear=REJECTED) as server:
        with pytest.raises(BackendRefused, match="rejects connection"):
            await connect(certificates.target(server, "prefer"))
        assert server.heard == [DECLINED]


@pytest.mark.parametrize("mode", ["require", "verify-full"])
async def test_there_is_no_other_way_from_require_on(certificates: Certificates, mode: str) -> None:
    async with serving(certificates.server, tls=REJECTED) as server:
        with pytest.raises(BackendRefused, match="rejects connection"):
            await connect(certificates.target(server, mode))
        assert server.heard == [IN_TLS]


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
async def test_a_server_that_nobody_vouches_for(certificates: Certificates, mode: str) -> None:
    certificates.trust(authority("another"))
    async with serving(certificates.server) as server:
        with pytest.raises(BackendUnavailable, match="certificate verify failed") as raised:
            await connect(certificates.target(server, mode))
        assert str(raised.value.log).startswith("TLS handshake error: certificate verify failed")
        assert server.heard == [["SSLRequest"]]


async def test_a_certificate_that_has_expired(certificates: Certificates) -> None:
    certificates.own = certificates.ca.issue("localhost", usage=[SERVER_AUTH], names=["127.0.0.1"], days=(-9, -1))
    async with serving(certificates.server) as server:
        with pytest.raises(BackendUnavailable, match="certificate has expired"):
            await connect(certificates.target(server, "verify-ca"))


async def test_only_verify_full_looks_at_the_name(certificates: Certificates) -> None:
    certificates.own = certificates.ca.issue("db", usage=[SERVER_AUTH], names=["db.example"])
    async with serving(certificates.server) as server:
        assert await connected(certificates.target(server, "verify-ca"))
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(BackendUnavailable, match=r"certificate verify failed: .*mismatch"):
                await connect(certificates.target(server, "verify-full", host=host))


@pytest.mark.parametrize(("host", "name"), [("localhost", "localhost"), ("127.0.0.1", None)])
@pytest.mark.parametrize("mode", ["prefer", "verify-full"])
async def test_names_are_always_sent_and_addresses_never(
    certificates: Certificates, mode: str, host: str, name: str | None
) -> None:
    async with serving(certificates.server) as server:
        assert await connected(certificates.target(server, mode, host=host))
        assert server.names == [name]


async def test_our_own_certificate(certificates: Certificates) -> None:
    context = certificates.server
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificates.ca.pem.decode())
    own = certificates.ca.issue("app")
    async with serving(context) as server:
        assert await connected(certificates.target(server, "require", own=own))
        assert server.certificates == [own.der]
        with pytest.raises(BackendUnavailable, match="lost during login"):
            await connect(certificates.target(server, "require"))


async def test_a_login_is_bound_to_the_server_s_certificate(certificates: Certificates) -> None:
    binding = end_point(certificates.own.der)
    async with serving(certificates.server, binding=binding) as server:
        target = replace(certificates.target(server, "require"), secret=Plain("secret"))
        assert await connected(target) == "TLSv1.3"
        assert server.mechanism == "SCRAM-SHA-256-PLUS"


async def test_a_login_through_somebody_with_another_certificate(certificates: Certificates) -> None:
    """Who forwards SCRAM between two connections in TLS, each with a certificate of its own, gets nowhere."""
    async with serving(certificates.server, binding=b"another certificate's hash") as server:
        target = replace(certificates.target(server, "require"), secret=Plain("secret"))
        with pytest.raises(BackendUnavailable, match="lost during login"):
            await connected(target)


# -- what breaks the protocol ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["prefer", "require"])
@pytest.mark.parametrize("answer", [b"S" + WELCOME, b"N" + WELCOME])
async def test_nothing_may_come_behind_the_answer(certificates: Certificates, mode: str, answer: bytes) -> None:
    async with serving(None, answer=answer) as server:
        with pytest.raises(BackendUnavailable) as raised:
            await connect(certificates.target(server, mode))
        assert raised.value.log == "received unencrypted data after SSL response"


async def test_an_error_in_place_of_an_answer(certificates: Certificates) -> None:
    async with serving(None, answer=b.error("53300", "sorry, too many clients already")) as server:
        with pytest.raises(BackendUnavailable) as raised:
            await connect(certificates.target(server, "require"))
        assert raised.value.log == "bad sslreq answer"
        assert "too many" not in str(raised.value)
        # In clear it may say the same to somebody who has not asked for more.
        assert await connected(certificates.target(server, "prefer")) is None


async def test_a_server_that_does_not_go_on_with_the_handshake(certificates: Certificates) -> None:
    async with serving(None, answer=b"S") as server:
        with pytest.raises(BackendUnavailable) as raised:
            await connect(certificates.target(server, "require"), timeout=0.05)
        assert raised.value.log == "connect timeout"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("at", range(1, 6))
async def test_a_login_that_is_cancelled_leaves_no_socket(certificates: Certificates, at: int, moment: Moment) -> None:
    async with serving(certificates.server) as server:
        opened: list[Opened] = []

        async def attempt() -> None:
            opened.append(await connect(certificates.target(server, "require")))

        cancelled = await cancel_at(attempt(), at, moment)
        assert cancelled is not bool(opened)
        for each in opened:
            each.transport.abort()


# -- one more connection like it ---------------------------------------------------------------------------------------


class Silent(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def cancel(model: Opened, target: Target) -> None:
    protocol = Silent()
    transport = await dial_like(model.transport, target, protocol, ignore)
    transport.write(CancelRequest(7, b"key!").encode())
    await asyncio.wait_for(protocol.lost, 20)


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-full"])
async def test_a_cancel_goes_the_way_of_its_backend(certificates: Certificates, mode: str) -> None:
    async with serving(certificates.server) as server:
        target = certificates.target(server, mode)
        opened = await connect(target)
        await cancel(opened, target)
        if isinstance(opened.transport, TlsTransport):
            assert server.heard[1] == ["SSLRequest", "CancelRequest in TLS"]
        else:
            assert server.heard[1] == ["CancelRequest in clear"]
        opened.transport.abort()


async def test_a_cancel_is_not_sent_in_clear_because_the_server_has_lost_its_tls(certificates: Certificates) -> None:
    async with serving(certificates.server) as server:
        target = certificates.target(server, "prefer")
        opened = await connect(target)
        server.context = None
        with pytest.raises(BackendUnavailable, match="server refused SSL"):
            await cancel(opened, target)
        assert server.heard[1] == ["SSLRequest"]
        opened.transport.abort()


async def test_a_server_that_hangs_up_right_after_the_handshake(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose end is told before anybody who would wait for it is there."""
    handshake = TlsTransport.handshake

    async def hung_up(transport: TlsTransport, received: bytes = b"") -> None:
        await handshake(transport, received)
        transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async with serving(certificates.server) as server:
        target = certificates.target(server, "require")
        opened = await connect(target)
        monkeypatch.setattr(TlsTransport, "handshake", hung_up)
        with pytest.raises(BackendUnavailable, match="lost: the server closed the connection"):
            await cancel(opened, target)
        opened.transport.abort()
