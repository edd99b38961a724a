"""What only QUIC has: client certificates, addresses of both families, a gateway that dies and comes back."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from helpers.certificates import authority
from helpers.datagrams import relay
from helpers.processes import gateway_process
from helpers.raw_session import RawSession
from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk import CertificateError, GatewayUnreachable, SessionLost, StreamManager
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import Start
    from helpers.site import Site

LOGIN: dict[str, Any] = {"user": USER, "password": PASSWORD, "database": DATABASE, "timeout": 20}


async def test_client_certificates_are_asked_for_and_verified(start: Start) -> None:
    files = (await start()).site.certificates
    gateway = await start(quic_client_ca_file=files.ca_cert)
    stranger_cert, stranger_key = authority("a stranger").issue("app").save(gateway.place, "stranger")
    known = await gateway.trunk(cert_file=str(files.client_cert), key_file=str(files.client_key))
    session = await known.connect(**LOGIN)
    assert await session.fetchval("SELECT 1") == 1
    await session.close()
    for identity in ({}, {"cert_file": stranger_cert, "key_file": stranger_key}):
        trunk = await gateway.trunk(**identity)
        with pytest.raises(CertificateError):
            await trunk.connect(**LOGIN)
    # Nor does a password make up for it, nor is TCP asked for one.
    assert await (await gateway.connect("tcp")).fetchval("SELECT 1") == 1
    await until(lambda: gateway.counts(quic_half_open=0))


async def test_a_client_that_trusts_another_authority_stays_away(start: Start) -> None:
    gateway = await start()
    trunk = await gateway.trunk(ca_file=None, ca_data=authority("another").pem)
    with pytest.raises(CertificateError):
        await trunk.connect(**LOGIN)
    trunk = await gateway.trunk(server_name="gw.example.net")
    with pytest.raises(CertificateError):
        await trunk.connect(**LOGIN)
    await until(lambda: gateway.counts(quic_connections=0, quic_half_open=0))


@pytest.mark.both_loops
async def test_all_addresses_have_one_port(start: Start) -> None:
    addresses = ["127.0.0.1", "::1"] if _has_ipv6() else ["127.0.0.1", "127.0.0.2"]
    gateway = await start(listen_addr=", ".join(addresses), unix_socket_dir="")
    for address in addresses:
        host = f"[{address}]" if ":" in address else address
        ca_file = str(gateway.site.certificates.ca_cert)
        async with StreamManager(f"{host}:{gateway.quic.port}", ca_file=ca_file, server_name="localhost") as trunk:
            session = await trunk.connect(**LOGIN)
            assert await session.fetchval("SELECT 1") == 1
            await session.close()
        session = await asyncpg.connect(host=address, port=gateway.port, ssl=False, **LOGIN)
        assert await session.fetchval("SELECT 1") == 1
        await session.close()
    assert len(gateway.quic.addresses) == 2


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.mark.both_loops
async def test_tcp_sessions_do_not_wait_for_nagle(start: Start) -> None:
    gateway = await start(auth_type="trust")
    await RawSession.start(gateway, "tcp")
    (served,) = gateway.gateway.context.sessions
    option = served.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert option != 0


async def test_a_gateway_that_is_killed_and_comes_back(site: Site) -> None:
    place = site.place()
    ca_file = str(site.certificates.ca_cert)
    # The gateway's idle timeout is the client's, too, where it is the shorter one.
    with gateway_process(site, place=place, quic_idle_timeout=2) as first:
        port = await asyncio.to_thread(first.port, "quic")
        async with (
            StreamManager(f"127.0.0.1:{port}", ca_file=ca_file, acquire_timeout=20) as trunk,
            trunk.create_pool(**LOGIN, min_size=5, max_size=5) as pool,
        ):
            assert await asyncio.gather(*(pool.fetchval("SELECT 1") for _ in range(20))) == [1] * 20
            lost = await trunk.connect(**LOGIN)
            running = asyncio.create_task(lost.execute("SELECT pg_sleep(60)"))
            await until(lambda: site.admin.running("pg_sleep"))
            first.process.kill()
            first.process.wait()
            with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
                await running
            assert isinstance(caught.value.__cause__, SessionLost)
            with gateway_process(site, place=place, quic_listen_port=port) as second:
                await asyncio.to_thread(second.port, "quic")
                # The pool's sessions are gone, and it opens others.
                answers: list[object] = []
                while len(answers) < 20:
                    try:
                        answers.append(await pool.fetchval("SELECT 1"))
                    except (asyncpg.InterfaceError, asyncpg.PostgresConnectionError, OSError):
                        await asyncio.sleep(0.05)
                assert answers == [1] * 20
                assert trunk.stats().connections_lost == 1
                await pool.close()
                assert await asyncio.to_thread(second.stop) == 0
    for pid in site.admin.running("pg_sleep"):
        site.admin.execute("SELECT pg_terminate_backend(%s)", pid)


async def test_a_gateway_that_is_killed_and_comes_back_at_once_says_so(site: Site) -> None:
    """Its client does not wait for an idle timeout: the new process can say that the old one's connections are gone."""
    ca_file = str(site.certificates.ca_cert)
    with socket.socket(type=socket.SOCK_DGRAM) as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    with gateway_process(site, quic_listen_port=port) as first:
        await asyncio.to_thread(first.port, "quic")
        # By a relay, so that the kernel does not say that nobody listens.
        async with relay(port) as way, StreamManager(f"127.0.0.1:{way.port}", ca_file=ca_file) as trunk:
            lost = await trunk.connect(**LOGIN)
            running = asyncio.create_task(lost.execute("SELECT pg_sleep(60)"))
            await until(lambda: site.admin.running("pg_sleep"))
            first.process.kill()
            first.process.wait()
            with gateway_process(site, quic_listen_port=port) as second:
                await asyncio.to_thread(second.port, "quic")
                with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
                    await running
                assert "stateless reset" in str(caught.value.__cause__)
                session = await trunk.connect(**LOGIN)
                assert await session.fetchval("SELECT 1") == 1
                await session.close()
                await trunk.close()
                assert await asyncio.to_thread(second.stop) == 0
    for pid in site.admin.running("pg_sleep"):
        site.admin.execute("SELECT pg_terminate_backend(%s)", pid)


async def test_a_gateway_that_is_not_there(start: Start, site: Site) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    async with StreamManager(
        f"127.0.0.1:{port}", ca_file=str(site.certificates.ca_cert), acquire_timeout=1, connect_timeout=1
    ) as trunk:
        with pytest.raises((GatewayUnreachable, TimeoutError), match=f"127.0.0.1:{port}"):
            await trunk.connect(**LOGIN)
        assert trunk.stats().waiting == 0


async def test_streams_of_a_connection_that_vanishes(start: Start) -> None:
    """The client is there, its packets are not: all of its sessions end, their transactions are rolled back."""
    gateway = await start(quic_idle_timeout=1, auth_type="trust", default_pool_size=5)
    await (await gateway.connect("tcp")).execute("CREATE TABLE IF NOT EXISTS vanished (n int); TRUNCATE vanished")
    trunk = await gateway.trunk()
    sessions = []
    for number in range(5):
        _, session = await trunk.open_stream(RawSession)
        session.startup({})
        await session.until_ready()
        await session.ask(frontend.query(b"BEGIN"))
        await session.ask(frontend.query(b"INSERT INTO vanished VALUES (%d)" % number))
        sessions.append(session)
    assert gateway.counts(leased=5, sessions=6)
    driver = sessions[0].transport.get_extra_info("quic_connection")
    driver._send = lambda *_: None
    await until(lambda: gateway.counts(leased=0, sessions=1, quic_streams=0, quic_connections=0))
    await until(lambda: not gateway.site.admin.is_locked("vanished"))
    assert gateway.site.admin.value("SELECT count(*) FROM vanished") == 0
    assert gateway.counters()["backends"] == 5
