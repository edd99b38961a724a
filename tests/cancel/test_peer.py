"""Entries of [peers] as cancels see them, and how each is spoken to."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.tls_peers import own_certificate, server_context
from pgtrunk_gateway.cancel.keys import forwarded, mint
from pgtrunk_gateway.cancel.peer import Peer, peers_of
from pgtrunk_gateway.config.settings import Config, PeerConfig
from pgtrunk_gateway.errors import BackendUnavailable
from pgtrunk_gateway.pool.target import Target
from pgtrunk_gateway.tls.contexts import make_server_tls
from pgtrunk_gateway.tls.settings import peer_settings

if TYPE_CHECKING:
    from pgtrunk_gateway.tls import ServerTls

MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
SSL_REQUEST = bytes.fromhex("0000000804d2162f")


def _ignore(*_: Any) -> None: ...


def config(peer_id: int = 1, **settings: Any) -> Config:
    peers = {
        1: PeerConfig(peer_id=1, host="127.0.0.1"),
        2: PeerConfig(peer_id=2, host="gateway.example", port=6000, long_keys=True),
        3: PeerConfig(peer_id=3, host="/run/three", pool_size=2),
    }
    return Config(peer_id=peer_id, peers=peers, **settings)


def test_entries() -> None:
    two, three = peers_of(config(default_pool_size=7), lambda _: None).values()
    assert (two.id, str(two.target), two.size, two.long_keys) == (2, "gateway.example:6000", 7, True)
    assert (three.id, str(three.target), three.size, three.long_keys) == (3, "/run/three/.s.PGSQL.6432", 2, False)


def test_nobody_is_a_peer_of_his_own_nor_of_a_gateway_without_a_number() -> None:
    assert set(peers_of(config(9), lambda _: None)) == {1, 2, 3}
    assert set(peers_of(config(3), lambda _: None)) == {1, 2}
    assert peers_of(config(0), lambda _: None) == {}


def test_which_secrets_may_be_a_peers() -> None:
    target = Target(host="x", port=1, dbname="", user="")
    pgbouncer, ours = Peer(2, target, 0), Peer(2, target, 0, long_keys=True)
    short, long = mint(2, os.urandom(8)).secret, mint(2, os.urandom(36)).secret
    for secret, by_pgbouncer, by_ours in (
        (short, True, True),
        (forwarded(short), True, True),
        (long, False, True),
        (forwarded(long), False, True),
        (b"", False, False),
        (bytes(16), False, False),
        (bytes(256), False, False),
    ):
        assert (pgbouncer.takes(secret), ours.takes(secret)) == (by_pgbouncer, by_ours)


# -- TLS ---------------------------------------------------------------------------------------------------------------


class FakePeer:
    """Answers SSLRequest, and hangs up after whatever comes then. ``seen``: what came, with whether it was in TLS."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.seen: list[tuple[bytes, bool]] = []
        self.context = context
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self.serve(reader, writer))
        self.tasks.add(task)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_secured = False
        try:
            data = await reader.read(100)
            if data == SSL_REQUEST:
                writer.write(b"N" if self.context is None else b"S")
                if self.context is not None:
                    await writer.start_tls(self.context)
                    is_secured = True
                data = await reader.read(100)
            self.seen.append((data, is_secured))
        except OSError:
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def fake_peer(context: ssl.SSLContext | None) -> AsyncIterator[FakePeer]:
    peer = FakePeer(context)
    server = await asyncio.start_server(peer.accept, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        await server.wait_closed()
        async with asyncio.timeout(10):
            await asyncio.gather(*peer.tasks)


def speaking(port: int, mode: str, ca: Path, host: str = "127.0.0.1") -> Peer:
    entry = PeerConfig(
        peer_id=2,
        host=host,
        port=port,
        server_tls_sslmode=mode,  # type: ignore[arg-type]  # one of them
        server_tls_ca_file=str(ca) if mode.startswith("verify") else None,
    )
    (peer,) = peers_of(Config(peer_id=1, peers={2: entry}), made_of).values()
    return peer


def made_of(entry: PeerConfig) -> ServerTls | None:
    return make_server_tls(peer_settings(Config(), entry))


async def ask(peer: Peer) -> None:
    async with asyncio.timeout(20):
        transport, inbox = await peer.connect(_ignore)
        transport.write(b"a cancel request")
        with pytest.raises(OSError):
            await inbox.read()
        transport.abort()


@pytest.mark.parametrize("mode", MODES)
async def test_tls_where_the_peer_has_it(mode: str, tmp_path: Path) -> None:
    ca, identity = own_certificate()
    (tmp_path / "ca").write_bytes(ca.pem)
    async with fake_peer(server_context(tmp_path, identity)) as server:
        await ask(speaking(server.port, mode, tmp_path / "ca"))
    assert server.seen == [(b"a cancel request", mode not in ("disable", "allow"))]


@pytest.mark.parametrize("mode", MODES)
async def test_tls_where_the_peer_has_none(mode: str, tmp_path: Path) -> None:
    ca, _ = own_certificate()
    (tmp_path / "ca").write_bytes(ca.pem)
    async with fake_peer(None) as server:
        peer = speaking(server.port, mode, tmp_path / "ca")
        if mode in ("disable", "allow", "prefer"):
            await ask(peer)
            assert (b"a cancel request", False) in server.seen
        else:
            with pytest.raises(BackendUnavailable, match="has no TLS"):
                await ask(peer)
            assert all(data == b"" for data, _ in server.seen)


async def test_a_peer_with_another_certificate_is_told_nothing(tmp_path: Path) -> None:
    ca, _ = own_certificate()
    _, impostor = own_certificate()
    (tmp_path / "ca").write_bytes(ca.pem)
    async with fake_peer(server_context(tmp_path, impostor)) as server:
        with pytest.raises(BackendUnavailable, match="TLS handshake"):
            await ask(speaking(server.port, "verify-full", tmp_path / "ca"))
    assert [data for data, _ in server.seen if data] == []


async def test_one_that_is_not_there(tmp_path: Path) -> None:
    async with fake_peer(None) as server:
        port = server.port
    with pytest.raises(BackendUnavailable, match="cannot connect"):
        await ask(speaking(port, "disable", tmp_path))


def test_settings_of_tls_are_the_peers_own_but_for_files(tmp_path: Path) -> None:
    main = Config(
        server_tls_sslmode="verify-full", server_tls_ca_file="ca", server_tls_cert_file="c", server_tls_key_file="k"
    )
    plain = peer_settings(main, PeerConfig(peer_id=2, host="x"))
    assert plain.mode == "disable"
    secured = peer_settings(main, PeerConfig(peer_id=2, host="x", server_tls_sslmode="verify-ca"))
    assert (secured.mode, secured.ca_file, secured.cert_file, secured.key_file) == ("verify-ca", "ca", "c", "k")
    own = PeerConfig(
        peer_id=2,
        host="x",
        server_tls_sslmode="require",
        server_tls_ca_file="a",
        server_tls_cert_file="b",
        server_tls_key_file="d",
    )
    files = peer_settings(main, own)
    assert (files.ca_file, files.cert_file, files.key_file) == ("a", "b", "d")
