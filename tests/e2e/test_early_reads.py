"""Queries that come as early data, and may be replays: what runs of them before the handshake, and that nothing writes.

The sessions are those of a real gateway, before a real Postgres; their transport is the test's, which says when the
handshake is complete.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from helpers.certificates import CLIENT_AUTH, authority
from helpers.early import EarlyTransport
from helpers.replaying import first_flight, recording_relay, replay
from helpers.site import DATABASE, USER
from helpers.transcript import transcript
from helpers.waiting import until
from pgtrunk.wire import frontend as client
from pgtrunk.wire.backend import BACKEND_KEY_DATA, parse_backend_key_data
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import CancelRequest, StartupMessage
from pgtrunk_gateway.relay.session import Session
from pgtrunk_gateway.session.early import OPTION, READ_ONLY
from pgtrunk_gateway.session.state import State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from helpers.gateways import LocalGateway, Start
    from helpers.site import Site

ALLOWED: Final = {"auth_type": "trust", "quic_early_data": "read-only", "default_pool_size": 2}
CA: Final = "the site's"
COUNT: Final = client.query(b"select count(*) from early_orders")

FUNCTIONS: Final = {
    "writes": "DELETE FROM early_orders",
    "escapes": "PERFORM set_config('transaction_read_only', 'off', false); DELETE FROM early_orders",
    "begins": "EXECUTE 'SET TRANSACTION READ WRITE'; DELETE FROM early_orders",
    "commits": "COMMIT; DELETE FROM early_orders",
    "notifies": "PERFORM pg_notify('early', 'replayed')",
    "sets": "PERFORM set_config('work_mem', '77MB', false)",
    "zone": "PERFORM set_config('TimeZone', 'Asia/Tokyo', false)",
    "locks": "PERFORM pg_advisory_xact_lock(7777)",
}
"""What they do, all of which a text that calls them does not show."""


@pytest.fixture(autouse=True, scope="module")
def _orders(site: Site) -> Iterator[None]:
    site.admin.execute("CREATE TABLE early_orders (id int)")
    site.admin.execute("INSERT INTO early_orders VALUES (1), (2), (3)")
    site.admin.execute("GRANT ALL ON early_orders TO PUBLIC")
    for name, body in FUNCTIONS.items():
        text = f"CREATE FUNCTION early_{name}() RETURNS int LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN 7; END $$"
        site.admin.execute(text)  # pyright: ignore[reportArgumentType]
    yield
    site.admin.execute("DROP TABLE early_orders")
    for name in FUNCTIONS:
        site.admin.execute(f"DROP FUNCTION early_{name}()")  # pyright: ignore[reportArgumentType]


OPEN: Final[set[EarlySession]] = set()


@pytest.fixture(autouse=True)
async def _closed(start: Start) -> AsyncIterator[None]:
    """A test that fails leaves no session, or nobody could drop the table."""
    yield
    for early in list(OPEN):
        await early.close()


class EarlySession:
    """One stream of a connection whose handshake is not complete."""

    def __init__(self, gateway: LocalGateway, **extra: Any) -> None:
        self.gateway = gateway.gateway
        self.transport = EarlyTransport(**extra)
        self.session = Session(self.gateway.context, "quic")
        self.received = b""
        OPEN.add(self)
        self.session.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self.session.data_received(data)

    def start(self, behind: bytes = b"", *, declared: bool = True, user: str = USER, **parameters: str) -> None:
        options = {OPTION: READ_ONLY} if declared else {}
        packet = StartupMessage(parameters={"user": user, "database": DATABASE, **parameters}, options=options)
        self.send(packet.encode() + behind)

    def heard(self) -> list[str]:
        self.received += self.transport.take()
        return transcript(self.received)

    async def hears(self, last: str) -> list[str]:
        """What the gateway has said, as soon as it ends so."""
        await until(lambda: (heard := self.heard()) and heard[-1] == last)
        heard = self.heard()
        self.received = b""
        return heard

    async def close(self) -> None:
        OPEN.discard(self)
        self.session.connection_lost(None)
        await asyncio.sleep(0)


def done(gateway: LocalGateway) -> tuple[int, ...]:
    """What the gateway has done for clients."""
    counters = gateway.counters()
    leases = sum(pool.counters.leases for pool in gateway.gateway.pools)
    assert counters["total_early_queries"] <= leases
    return leases, counters["total_admitted"], counters["total_refused"]


async def is_idle(gateway: LocalGateway) -> None:
    """Returns when all backends are free for the next session."""
    await until(lambda: all(len(pool.idle) == len(pool.backends) for pool in gateway.gateway.pools))


def count(site: Site) -> int:
    found: int = site.admin.value("SELECT count(*) FROM early_orders")
    return found


@pytest.mark.parametrize("form", ["simple", "extended"])
async def test_a_query_that_only_reads_runs_before_the_handshake_is_complete(
    site: Site, start: Start, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(**ALLOWED)
    early = EarlySession(gateway)
    batch = client.parse(b"", b"select count(*) from early_orders where id > $1") + client.bind(b"", b"", [b"1"])
    batch += client.describe_portal(b"") + client.execute() + client.SYNC_MESSAGE
    early.start(COUNT if form == "simple" else batch)
    await until(lambda: early.heard().count("ReadyForQuery I") == 2)
    heard = early.heard()
    assert "DataRow 3" in heard or "DataRow 2" in heard
    assert "CommandComplete SELECT 1" in heard
    assert done(gateway) == (1, 0, 0)
    assert gateway.counts(total_early_queries=1)
    assert early.session.state is State.LOGIN
    assert "login attempt" not in caplog.text
    await until(lambda: gateway.counts(leased=0))
    # And from then on it is a session like any other.
    early.received = b""
    early.transport.confirm()
    early.send(client.query(b"delete from early_orders where id = 99"))
    await until(lambda: early.heard()[-1:] == ["ReadyForQuery I"])
    assert done(gateway)[1] == 1
    assert gateway.counts(total_early_queries=1)
    assert "login attempt" in caplog.text
    await early.close()


@pytest.mark.parametrize(
    "flight",
    [
        "delete from early_orders",
        "set transaction read write; delete from early_orders",
        "commit; delete from early_orders",
        "select 1; commit; delete from early_orders",
        "with gone as (delete from early_orders returning 1) select * from gone",
        "do $$ begin delete from early_orders; end $$",
        "begin",
        "notify early",
        "select pg_notify('early', 'replayed')",
        "select pg_advisory_lock(7777)",
        "select set_config('default_transaction_read_only', 'off', false)",
        "select pg_sleep(0)",
    ],
)
async def test_what_is_not_seen_to_read_waits(site: Site, start: Start, flight: str) -> None:
    gateway = await start(**ALLOWED)
    for data in (client.query(flight.encode()), COUNT + client.query(flight.encode())):
        early = EarlySession(gateway)
        early.start(data)
        await until(lambda early=early: "ReadyForQuery I" in early.heard())  # type: ignore[misc]
        await asyncio.sleep(0.02)
        assert early.heard().count("ReadyForQuery I") == 1
        assert done(gateway) == (0, 0, 0)
        await early.close()
    assert count(site) == 3
    assert gateway.counts(leased=0, admitted=0)


@pytest.mark.parametrize(
    ("function", "sqlstate"), [("writes", "25006"), ("escapes", "25001"), ("begins", "25001"), ("commits", "2D000")]
)
async def test_a_function_that_writes_fails(site: Site, start: Start, function: str, sqlstate: str) -> None:
    gateway = await start(**ALLOWED)
    early = EarlySession(gateway)
    early.start(client.query(f"select early_{function}()".encode()))
    await until(lambda: early.heard().count("ReadyForQuery I") == 2)
    assert [each for each in early.heard() if each.startswith("ErrorResponse") and sqlstate in each], early.heard()
    await early.close()
    assert count(site) == 3


@pytest.mark.parametrize("form", ["simple", "extended"])
async def test_what_a_function_leaves_is_rolled_back(site: Site, start: Start, form: str) -> None:
    """NOTIFY, settings and locks of a transaction, which READ ONLY does not stop."""
    gateway = await start(**{**ALLOWED, "default_pool_size": 1})
    listener = await gateway.connect("direct")
    heard: list[object] = []
    await listener.add_listener("early", lambda *args: heard.append(args))
    for name in ("notifies", "sets", "locks"):
        early = EarlySession(gateway)
        text = f"select early_{name}()".encode()
        batch = client.parse(b"", text) + client.bind(b"", b"") + client.execute() + client.SYNC_MESSAGE
        early.start(client.query(text) if form == "simple" else batch)
        await until(lambda early=early: early.heard().count("ReadyForQuery I") == 2)  # type: ignore[misc]
        assert "DataRow 7" in early.heard()
        await early.close()
        await is_idle(gateway)
    early = EarlySession(gateway)
    early.start(client.query(b"show work_mem"))
    await until(lambda: early.heard().count("ReadyForQuery I") == 2)
    assert "DataRow 77MB" not in early.heard()
    await early.close()
    assert site.admin.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
    assert await listener.fetchval("select 1") == 1
    assert heard == []


async def test_what_the_client_was_told_of_settings_is_taken_back(start: Start) -> None:
    gateway = await start(**ALLOWED)
    early = EarlySession(gateway)
    early.start(client.query(b"select early_zone()"))
    await until(lambda: early.heard().count("ReadyForQuery I") == 2)
    told = [each for each in early.heard() if each.startswith("ParameterStatus TimeZone=")]
    assert told[1:2] == ["ParameterStatus TimeZone=Asia/Tokyo"]
    assert told[2:] == told[:1]
    await early.close()


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"quic_early_data": "login"}, {}),
        ({"quic_early_data": "off"}, {}),
        ({}, {"declared": False}),
        ({"pool_mode": "session"}, {}),
        ({"pool_mode": "statement"}, {}),
        ({"auth_type": "scram-sha-256"}, {}),
        ({"auth_type": "plain"}, {}),
        ({"auth_type": "cert", "quic_client_ca_file": CA}, {}),
        ({}, {"search_path": "shop", "work_mem": "7MB"}),
    ],
)
async def test_where_it_is_not_allowed_nothing_runs(
    site: Site, start: Start, settings: dict[str, Any], how: dict[str, Any]
) -> None:
    if CA in settings.values():
        settings = {**settings, "quic_client_ca_file": str(site.certificates.ca_cert)}
    gateway = await start(**{**ALLOWED, **settings})
    early = EarlySession(gateway)
    early.start(COUNT, **how)
    await asyncio.sleep(0.05)
    assert not [each for each in early.heard() if each.startswith("DataRow")]
    assert done(gateway) == (0, 0, 0)
    assert gateway.counts(leased=0)
    await early.close()


async def test_one_with_settings_that_the_server_reports_runs_under_them(start: Start) -> None:
    gateway = await start(**ALLOWED)
    early = EarlySession(gateway)
    early.start(client.query(b"show application_name"), application_name="early")
    await until(lambda: early.heard().count("ReadyForQuery I") == 2)
    assert "DataRow early" in early.heard()
    await early.close()


async def test_the_certificate_of_the_ticket_is_enough(start: Start, site: Site) -> None:
    """Who it names is known without a proof; a name that is not in it is refused later."""
    certificate = authority().issue(USER, usage=[CLIENT_AUTH]).certificate
    gateway = await start(**{**ALLOWED, "auth_type": "cert", "quic_client_ca_file": str(site.certificates.ca_cert)})
    for user, runs in ((USER, True), ("nobody", False)):
        early = EarlySession(gateway, peercert=certificate)
        early.start(COUNT, user=user)
        if runs:
            await until(lambda early=early: early.heard().count("ReadyForQuery I") == 2)  # type: ignore[misc]
        else:
            await asyncio.sleep(0.05)
            assert early.heard() == []
        await early.close()
    assert done(gateway) == (1, 0, 0)


async def test_replays_read_and_do_nothing_else(start: Start, site: Site) -> None:
    gateway = await start(**ALLOWED)
    for _ in range(20):
        await is_idle(gateway)
        early = EarlySession(gateway)
        early.start(COUNT)
        await until(lambda early=early: early.heard().count("ReadyForQuery I") == 2)  # type: ignore[misc]
        await early.close()
    assert count(site) == 3
    await until(lambda: gateway.counts(leased=0, admitted=0, sessions=0))
    assert done(gateway)[1:] == (0, 0)


async def test_a_captured_query_reads_and_does_nothing_else(start: Start, site: Site, tmp_path: Path) -> None:
    """Over QUIC: its packets, sent again to the gateway that they were for and to another that has the same keys."""
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text(secrets.token_hex(32))
    gateway, other = [await start(**ALLOWED, quic_ticket_keys_file=keys) for _ in range(2)]
    for each in (gateway, other):
        await (await each.connect("tcp")).fetchval("SELECT 1")
    listener = await gateway.connect("direct")
    heard: list[object] = []
    await listener.add_listener("early", lambda *args: heard.append(args))
    async with recording_relay(gateway.quic.port, delay=0.02) as (between, carried):
        for text in ("SELECT 7", "SELECT early_notifies()"):
            carried.clear()
            trunk = await gateway.trunk(port=between.port, early_data="read-only", tickets=tmp_path / "tickets")
            assert await trunk.fetch_early(text, user=USER, database=DATABASE) == [("7",)]
            await until((tmp_path / "tickets").exists)
            await trunk.close()
        await until(lambda: gateway.counts(quic_handshakes_early=1))
        flight = first_flight(carried)
    # A connection that has ended still knows its own packets for a while.
    await until(lambda: gateway.counts(sessions=1, leased=0) and not gateway.quic.listener.connection_ids)
    before = done(gateway), done(other)
    for each in (gateway, other):
        # So that what is half open is over in time.
        each.quic.listener.reload_limits(replace(each.quic.listener.door.limits, handshake_timeout=0.5), "auto")
        async with replay(each.quic.port) as again:
            again.send(flight)
            await until(lambda again=again: bool(again.answers))  # type: ignore[misc]
            again.send(flight * 3)
            await asyncio.sleep(0.1)
    # The gateway knows the ticket as used up; the other runs the query, once, to nobody.
    leases, admitted, refused = before[1]
    assert (done(gateway), done(other)) == (before[0], (leases + 1, admitted, refused))
    await until(lambda: other.counts(leased=0, admitted=1, sessions=1, quic_half_open=0))
    assert count(site) == 3
    assert await listener.fetchval("select 1") == 1
    assert heard == []


async def test_a_replay_that_vanishes_leaves_its_backend_as_new(start: Start, site: Site) -> None:
    gateway = await start(**ALLOWED)
    early = EarlySession(gateway)
    early.start(client.query(b"select count(*) from generate_series(1, 10000000000)"))
    await until(lambda: site.admin.running("generate_series(1, 10000000000)"))
    await early.close()
    await until(lambda: gateway.counts(leased=0, sessions=0))
    await until(lambda: not site.admin.running("generate_series(1, 10000000000)"))
    assert await (await gateway.connect("tcp")).fetchval("select 1") == 1


async def test_one_that_runs_when_the_handshake_ends_goes_on_and_can_be_cancelled(start: Start, site: Site) -> None:
    gateway = await start(**ALLOWED)
    early = EarlySession(gateway)
    early.start(client.query(b"select count(*) from generate_series(1, 10000000001)") + b"")
    await until(lambda: site.admin.running("generate_series(1, 10000000001)"))
    early.transport.confirm()
    early.send(COUNT)
    await asyncio.sleep(0.02)
    assert early.session.state is State.LOGIN
    early.heard()
    key = next(
        parse_backend_key_data(early.received[at + 5 : end])
        for kind, at, end in messages(early.received)
        if kind == BACKEND_KEY_DATA
    )
    await gateway.gateway.cancels.serve(CancelRequest(key.pid, key.secret))
    await until(lambda: early.heard().count("ReadyForQuery I") == 3)
    heard = early.heard()
    assert [each for each in heard if "57014" in each]
    assert "DataRow 3" in heard
    await early.close()


async def test_it_waits_for_no_backend(start: Start, site: Site) -> None:
    gateway = await start(**{**ALLOWED, "default_pool_size": 1})
    holder = await gateway.connect("tcp")
    async with holder.transaction():
        await holder.execute("select 1")
        early = EarlySession(gateway)
        early.start(COUNT)
        await until(lambda: "ReadyForQuery I" in early.heard())
        await asyncio.sleep(0.02)
        assert early.heard().count("ReadyForQuery I") == 1
        assert gateway.counts(waiting=0)
        early.transport.confirm()
        await until(lambda: gateway.counts(waiting=1))
    await until(lambda: early.heard().count("ReadyForQuery I") == 2)
    await early.close()


async def test_a_backend_that_dies_under_it_is_told_when_somebody_is_there(start: Start, site: Site) -> None:
    gateway = await start(**ALLOWED)
    early = EarlySession(gateway)
    early.start(client.query(b"select count(*) from generate_series(1, 10000000002)"))
    await until(lambda: site.admin.running("generate_series(1, 10000000002)"))
    (pid,) = site.admin.running("generate_series(1, 10000000002)")
    site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
    await until(lambda: gateway.counts(leased=0))
    assert not early.transport.closing
    early.transport.confirm()
    await until(lambda: early.transport.closing)
    assert done(gateway)[1:] == (0, 1)
    await early.close()


async def test_a_client_that_does_not_read_stops_it(start: Start) -> None:
    gateway = await start(**ALLOWED)
    early = EarlySession(gateway)
    early.start(client.query(b"select repeat('a', 1000) from generate_series(1, 100000)"))
    await until(lambda: gateway.counts(leased=1))
    await until(early.transport.take)
    early.session.pause_writing()
    before = len(early.transport.take())
    await asyncio.sleep(0.1)
    assert len(early.transport.take()) == 0
    assert before < 50_000_000
    early.session.resume_writing()
    await until(lambda: early.transport.take().endswith(b"SELECT 100000\0Z\0\0\0\5I"))
    await early.close()


async def test_query_timeout_holds(start: Start) -> None:
    gateway = await start(**{**ALLOWED, "query_timeout": 0.2, "client_login_timeout": 0.1})
    early = EarlySession(gateway)
    early.start(client.query(b"select count(*) from generate_series(1, 10000000003)"))
    await until(lambda: gateway.counts(leased=1))
    await until(lambda: gateway.counts(leased=0))
    assert not early.transport.closing
    early.transport.confirm()
    await until(lambda: early.transport.closing)
    assert [each for each in early.heard() if "57014" in each]
    await early.close()


async def test_over_tcp_the_option_is_known_and_means_nothing(start: Start) -> None:
    gateway = await start(**ALLOWED)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    packet = StartupMessage(parameters={"user": USER, "database": DATABASE}, options={OPTION: READ_ONLY})
    writer.write(packet.encode() + COUNT)
    heard = b""
    while transcript(heard).count("ReadyForQuery I") < 2:
        heard += await reader.read(65536)
    assert transcript(heard)[0].startswith("Authentication")
    writer.close()
    await writer.wait_closed()
