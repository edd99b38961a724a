"""What PgBouncer's CVEs of 2026 were, and that the gateway has none of them: whatever comes, it serves the next one.

Most have in common what is C: lengths that wrap, buffers that are too short, pointers to nothing. Python has none of
these, so what is left to show is that the same octets are refused with words, at once, and without being collected.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

import asyncpg
import pytest

from helpers.raw_session import RawSession
from helpers.scripted_server import scripted_server
from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk.wire import backend, frontend
from pgtrunk.wire.framing import encode
from pgtrunk.wire.startup import StartupMessage
from pgtrunk_gateway.auth import NONCE_LENGTH, ClientExchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.gateways import LocalGateway, Start
    from helpers.raw_session import Message
    from helpers.site import Site

CLIENT_FIRST = b"n,,n=,r=abcdefgh"
REFUSAL = backend.error("28P01", "no", severity="FATAL")
SCRAM = backend.authentication_sasl(["SCRAM-SHA-256"])


async def serves_the_next(gateway: LocalGateway) -> None:
    session = await gateway.connect("tcp")
    assert await session.fetchval("SELECT 1") == 1
    await session.close()


async def offered_scram(gateway: LocalGateway, user: str = USER, database: str = DATABASE) -> RawSession:
    """A login that has come to the offer of SCRAM."""
    session = await RawSession.open(gateway, "tcp")
    session.startup({"user": user, "database": database})
    assert (await session.until("R"))[-1].body[:4] == struct.pack("!i", 10)
    return session


async def prove(session: RawSession) -> None:
    """The rest of a login."""
    exchange = ClientExchange(nonce=bytes(NONCE_LENGTH))
    session.send(frontend.sasl_initial_response("SCRAM-SHA-256", exchange.first()))
    challenge = (await session.until("R"))[-1].body[4:]
    session.send(frontend.sasl_response(exchange.final(exchange.challenge(challenge, PASSWORD).run())))


def was_refused(messages: list[Message]) -> bool:
    """Whether a login ended with an error, and nothing else: not with AuthenticationOk, nor a key."""
    return [message.kind for message in messages] == ["E"] and messages[0].error.severity == "FATAL"


async def test_cve_2026_6664_a_length_inside_a_sasl_message_that_wraps(start: Start) -> None:
    """PgBouncer added the client's length to its position in 32 bits, found the sum small enough, and copied 4 GiB."""
    gateway = await start(login_failure_limit=0)
    for length in (0xFFFFFFFE, 0xFFFFFFF0, 0x80000000, 0x7FFFFFFF, len(CLIENT_FIRST) + 1, 0):
        session = await offered_scram(gateway)
        session.send(encode(b"p", b"SCRAM-SHA-256\0" + struct.pack("!I", length) + CLIENT_FIRST))
        assert was_refused(await session.until_lost())
    await serves_the_next(gateway)


async def test_cve_2026_6664_no_first_message_at_all(start: Start) -> None:
    """The length -1 is the protocol's word for it, and read without a sign is the longest of all."""
    gateway = await start()
    session = await offered_scram(gateway)
    session.send(encode(b"p", b"SCRAM-SHA-256\0\xff\xff\xff\xff"))
    answer = (await session.until("RE"))[-1]
    if answer.kind == "R":
        session.send(frontend.sasl_response(b""))
        assert was_refused(await session.until_lost())
    await serves_the_next(gateway)


def _challenge(more: bytes, iterations: bytes = b"4096") -> Callable[[bytes], bytes]:
    """The server's answer to client-first, with ``more`` as its part of the nonce."""

    def answer(body: bytes) -> bytes:
        nonce = body.rpartition(b"r=")[2]
        return backend.authentication_sasl_continue(b"r=%b%b,s=c2FsdA==,i=%b" % (nonce, more, iterations))

    return answer


async def _refused_behind(start: Start, site: Site, port: int) -> asyncpg.PostgresError:
    """What a client is told whose database's server listens there; others are served."""
    bad = f"host=127.0.0.1 port={port} user=app password=x"
    gateway = await start(databases={"bad": bad, DATABASE: site.target()})
    with pytest.raises(asyncpg.PostgresError) as caught:
        await gateway.connect("tcp", database="bad")
    await serves_the_next(gateway)
    return caught.value


async def test_cve_2026_6665_a_servers_long_nonce_comes_back_whole(start: Start, site: Site) -> None:
    """PgBouncer put its answer together in an array on the stack, and did not look whether there was room."""
    async with scripted_server(SCRAM, _challenge(b"x" * 3900), REFUSAL) as server:
        await _refused_behind(start, site, server.port)
        (answer, *_) = (body for body in server.heard if body.startswith(b"c="))
    assert answer.startswith(b"c=biws,r=")
    assert b"x" * 3900 + b",p=" in answer


async def test_cve_2026_6665_a_nonce_that_no_server_has_is_refused(start: Start, site: Site) -> None:
    async with scripted_server(SCRAM, _challenge(b"x" * 100_000), b"") as server:
        error = await _refused_behind(start, site, server.port)
        assert not [body for body in server.heard if body.startswith(b"c=")]
    assert "SCRAM" in str(error)


@pytest.mark.parametrize("fields", [b"SFATAL\0Mgo away\0\0", b"\0", b""])
async def test_cve_2026_6666_a_servers_error_without_a_sqlstate(start: Start, site: Site, fields: bytes) -> None:
    """PgBouncer compared the SQLSTATE of a refused login without looking whether there was one."""
    async with scripted_server(encode(b"E", fields)) as server:
        error = await _refused_behind(start, site, server.port)
    assert len(error.sqlstate or "") == 5
    assert "go away" in str(error) or b"go away" not in fields


async def test_cve_2026_6667_only_admins_may_kill(start: Start) -> None:
    """PgBouncer let those who may only look, stats_users, run KILL_CLIENT."""
    gateway = await start(stats_users=USER, admin_users="root")
    victim = await gateway.connect("tcp")
    looking = await gateway.connect("tcp", database="pgbouncer")
    ids = [record["id"] for record in await looking.fetch("SHOW CLIENTS") if record["database"] == DATABASE]
    assert len(ids) == 1
    verbs = [f"KILL_CLIENT {ids[0]}", f"KILL {DATABASE}", "KILL", f"DISABLE {DATABASE}", "PAUSE", "SUSPEND", "RELOAD"]
    verbs += [f"RECONNECT {DATABASE}", "SHUTDOWN", "SET verbose = 1", f"WAIT_CLOSE {DATABASE}", "RESUME"]
    for command in verbs:
        with pytest.raises(asyncpg.PostgresError, match="admin access needed"):
            await looking.execute(command)
    assert await victim.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("user", [USER, "nobody"])
async def test_cve_2026_19888_a_final_message_without_a_nonce(start: Start, user: str) -> None:
    """PgBouncer compared the nonce of the client's last message without looking whether there was one, and so could be
    brought down by anybody, as a user who does not even exist."""
    gateway = await start(login_failure_limit=0)
    proof = base64.b64encode(bytes(32))
    for final in (b"c=biws,p=%", b"c=biws,r=,p=%", b"c=biws,r,p=%", b"p=%", b"c=biws", b"r=%", b"", b",,,", b"\0"):
        session = await offered_scram(gateway, user)
        session.send(frontend.sasl_initial_response("SCRAM-SHA-256", CLIENT_FIRST))
        assert (await session.until("RE"))[-1].kind == "R"
        session.send(frontend.sasl_response(final.replace(b"%", proof)))
        assert was_refused(await session.until_lost())
    await serves_the_next(gateway)


@pytest.mark.parametrize("largest", [2147483647, 4294967295])
async def test_cve_2026_6668_and_107348_lengths_for_which_no_buffer_is_there(start: Start, largest: int) -> None:
    """PgBouncer doubled a size in 32 bits until it was large enough, which never came. Here, what is too long before or
    during the login is refused by its header; behind it a message may be long, and is passed on, not collected."""
    gateway = await start(max_packet_size=largest, login_failure_limit=0)
    for length in (0x7FFFFFFF, -0x80000000, -0x7FFFFFFF, -2, -1, 0, 3):
        header = struct.pack("!i", length)
        for kind in (b"", b"p"):
            login = await offered_scram(gateway) if kind else await RawSession.open(gateway, "tcp")
            login.send(kind + header + bytes(4096))
            assert was_refused(await login.until_lost())
        for kind in (b"Q", b"P", b"d"):
            session = await offered_scram(gateway)
            await prove(session)
            await session.until_ready()
            session.send(kind + header + b"select 1" * 512)
            if length < 4:
                assert [message.kind for message in await session.until_lost()][-1:] in ([], ["E"])
            session.abort()
    await serves_the_next(gateway)


async def test_cve_2026_6669_a_server_that_asks_for_endless_work(start: Start, site: Site) -> None:
    """PgBouncer computed as many iterations as a server asked for, and served nobody until it was done. Here there is
    a limit, and what is below it is computed in a thread."""
    for iterations in (b"10000001", b"4294967296", b"9999999999", b"0", b"-1"):
        async with scripted_server(SCRAM, _challenge(b"x", iterations), b"") as server:
            bad = f"host=127.0.0.1 port={server.port} user=app password=x"
            gateway = await start(databases={"bad": bad, DATABASE: site.target()})
            with pytest.raises(asyncpg.PostgresError, match="SCRAM"):
                await gateway.connect("tcp", database="bad")
            await serves_the_next(gateway)
            assert not [body for body in server.heard if body.startswith(b"c=")]


async def test_cve_2026_107350_a_second_startup_message(start: Start) -> None:
    """Where a login by SCRAM was for a database that does not exist, PgBouncer took a second StartupMessage, and with
    it another user's name, before the first user's password was proved: who knew one password was whom he liked."""
    gateway = await start(login_failure_limit=0)
    for database in ("nowhere", DATABASE):
        for chosen in (False, True):
            session = await offered_scram(gateway, database=database)
            if chosen:
                session.send(frontend.sasl_initial_response("SCRAM-SHA-256", CLIENT_FIRST))
                assert (await session.until("RE"))[-1].kind == "R"
            second = StartupMessage(parameters={"user": "other", "database": DATABASE}).encode()
            # As a message with a type octet it is longer than it is: the rest, so that it is looked at.
            session.send(second + bytes(1 << 15))
            assert was_refused(await session.until_lost())
    await serves_the_next(gateway)


@pytest.mark.parametrize("ignored", ["extra_float_digits", "extra_float_digits, options"])
async def test_cve_2026_107349_options_without_a_name(start: Start, ignored: str) -> None:
    """PgBouncer looked an empty name up in the list of what it ignores, and never came to the list's end."""
    gateway = await start(ignore_startup_parameters=ignored, login_failure_limit=0)
    for options in (
        "-c=",
        "-c =",
        "-c =x",
        "--=",
        "--=x",
        "-c",
        "--",
        "-",
        "=",
        "-c a",
        "-c a=",
        "-c \\",
        "\\",
        " ",
        "-c\t=",
    ):
        session = await RawSession.open(gateway, "tcp")
        session.startup({"options": options})
        answer = (await session.until("RE"))[-1]
        if answer.kind == "R":
            await prove(session)
            assert (await session.until("ZE"))[-1].kind in "ZE"
        session.abort()
    await serves_the_next(gateway)
