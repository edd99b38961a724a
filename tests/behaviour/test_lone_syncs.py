"""A batch, a query inside it, and a Sync right behind the query: PostgreSQL 18 leaves a transaction half open there.

Execute marks the transaction as a pipeline's. So the query, which would end it, makes it an implicit block instead, and
that goes on, as ReadyForQuery says. Then Sync ends the block, but takes the transaction for ended: ReadyForQuery says
so, nothing is committed, and the next query fails. The gateway lets no session get there: with pools, that query would
be somebody else's. A function call is as a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

from behaviour.differences import NO_BLOCKS
from behaviour.fronts import Front
from behaviour.portal_conversations import PLUS, call
from behaviour.wire import lines, wires
from helpers.processes import gateway_process
from helpers.site import DATABASE
from pgtrunk.wire.frontend import FLUSH_MESSAGE, SYNC_MESSAGE, bind, execute, parse, query

if TYPE_CHECKING:
    from helpers.site import Site

SYNC, FLUSH = SYNC_MESSAGE, FLUSH_MESSAGE
SELECT: Final = query(b"select 2")
THROUGH: Final = ("tcp", "quic", "sidecar-unix")


def insert(table: str) -> bytes:
    return parse(b"", b"insert into " + table.encode() + b" values (1)") + bind(b"", b"") + execute()


@pytest.fixture
def numbers(site: Site, table: str) -> str:
    """A table for everybody."""
    site.admin.execute(f"CREATE TABLE {table} (n int)")
    site.admin.execute(f"GRANT ALL ON {table} TO PUBLIC")
    return table


@pytest.mark.parametrize("mode", ["", "_session", "_statement"])
@pytest.mark.parametrize("through", THROUGH)
async def test_the_next_query_is_answered_and_all_is_committed(
    site: Site, fronts: dict[str, Front], numbers: str, through: str, mode: str
) -> None:
    batch = insert(numbers)
    async with wires(fronts[through]) as wire:
        session, other = await wire.log_in(DATABASE + mode), await wire.log_in(DATABASE + mode)
        for count, (asked, told) in enumerate(
            (
                ((batch + SELECT + SYNC,), "12CTDCZZI"),
                ((batch + FLUSH, SELECT, SYNC), "12CTDCZZI"),
                ((batch + SELECT, SYNC + SYNC), "12CTDCZZZI"),
                ((batch + SELECT + SELECT + FLUSH + SYNC,), "12CTDCZTDCZZI"),
                ((batch + query(b"") + SYNC,), "12CIZZI"),
                ((batch + call(PLUS, b"1", b"2") + SYNC,), "12CVZZI"),
            ),
            start=1,
        ):
            # A block that is open when the query is answered is refused in statement mode: so all comes at once.
            for data in (b"".join(asked),) if mode == "_statement" else asked:
                session.send(data)
            assert session.kinds(await session.until_ready(told.count("Z"))) == told
            assert site.admin.value(f"SELECT count(*) FROM {numbers}") == count
            for one in (other, session):
                assert await one.ask(SELECT) == "TDCZI"
                assert await one.ask(parse(b"", b"select 3"), bind(b"", b""), execute(), SYNC) == "12DCZI"


@pytest.mark.parametrize("through", THROUGH)
async def test_so_it_is_where_the_query_fails(site: Site, fronts: dict[str, Front], numbers: str, through: str) -> None:
    async with wires(fronts[through]) as wire:
        session = await wire.log_in()
        session.send(insert(numbers) + query(b"select 1/0") + SYNC)
        assert session.kinds(await session.until_ready(2)) == "12CEZZI"
        assert site.admin.value(f"SELECT count(*) FROM {numbers}") == 0
        assert await session.ask(SELECT) == "TDCZI"


@pytest.mark.parametrize("through", THROUGH)
async def test_statement_mode_has_no_place_for_such_a_block(
    site: Site, fronts: dict[str, Front], numbers: str, through: str
) -> None:
    """Without its Sync, the query leaves a transaction open, and that is over with the session."""
    async with wires(fronts[through]) as wire:
        session, other = await wire.log_in(DATABASE + "_statement"), await wire.log_in(DATABASE + "_statement")
        session.send(insert(numbers) + FLUSH + SELECT)
        assert lines(await session.until("E"))[-1].startswith(NO_BLOCKS)
        assert await other.ask(SELECT) == "TDCZI"
        assert site.admin.value(f"SELECT count(*) FROM {numbers}") == 0


async def test_what_postgres_itself_does(fronts: dict[str, Front], numbers: str) -> None:
    """Where this fails, Postgres has been mended, and `Requests._sync` can do without its Parse."""
    async with wires(fronts["direct"]) as wire:
        session = await wire.log_in()
        session.send(insert(numbers) + SELECT + SYNC)
        assert session.kinds(await session.until_ready(2)) == "12CTDCZZI"
        session.send(SELECT)
        assert [line for line in lines(await session.until("Z")) if "unexpected state STARTED" in line]


# -- what the query does not end is still the session's own -----------------------------------------------------------


INSIDE: Final = {
    "query": (SELECT, "TDCZT"),
    "function call": (call(PLUS, b"1", b"2"), "VZT"),
}
inside = pytest.mark.parametrize("kind", INSIDE)


@pytest.fixture(scope="module")
def narrow(site: Site) -> Iterator[Front]:
    """A gateway with one backend."""
    with gateway_process(site, default_pool_size=1) as gateway:
        yield Front("127.0.0.1", gateway.port())


@inside
async def test_nobody_else_gets_into_its_transaction(narrow: Front, site: Site, numbers: str, kind: str) -> None:
    """What another did in it would be committed, or not, with the batch."""
    data, told = INSIDE[kind]
    async with wires(narrow) as wire:
        session, other = await wire.log_in(), await wire.log_in()
        session.send(insert(numbers) + FLUSH)
        assert session.kinds(await session.until("C")) == "12C"
        assert await session.ask(data) == told
        other.send(query(f"insert into {numbers} values (2)".encode()))
        assert await session.ask(data) == told
        assert not other.has_answer
        assert site.admin.rows(f"SELECT n FROM {numbers}") == []
        assert await session.ask(SYNC) == "ZI"
        assert other.kinds(await other.until_ready()) == "CZI"
        assert site.admin.rows(f"SELECT n FROM {numbers} ORDER BY n") == [(1,), (2,)]


@inside
async def test_a_client_that_leaves_it_has_committed_nothing(
    narrow: Front, site: Site, numbers: str, kind: str
) -> None:
    data, told = INSIDE[kind]
    async with wires(narrow) as wire:
        session, other = await wire.log_in(), await wire.log_in()
        session.send(insert(numbers) + FLUSH)
        assert session.kinds(await session.until("C")) == "12C"
        assert await session.ask(data) == told
        session.abort()
        assert await other.ask(query(f"insert into {numbers} values (2)".encode())) == "CZI"
        assert site.admin.rows(f"SELECT n FROM {numbers}") == [(2,)]


@inside
@pytest.mark.parametrize("through", ["direct", *THROUGH])
async def test_an_error_behind_it_undoes_what_came_before_it(
    site: Site, fronts: dict[str, Front], numbers: str, through: str, kind: str
) -> None:
    data, told = INSIDE[kind]
    async with wires(fronts[through]) as wire:
        session = await wire.log_in()
        session.send(insert(numbers) + FLUSH)
        assert session.kinds(await session.until("C")) == "12C"
        assert await session.ask(data) == told
        assert await session.ask(parse(b"", b"select 1/0"), bind(b"", b""), execute(), SYNC) == "1EZI"
        assert site.admin.rows(f"SELECT n FROM {numbers}") == []
        # And without an error, it is one transaction up to its Sync.
        session.send(insert(numbers) + FLUSH)
        assert session.kinds(await session.until("C")) == "12C"
        assert await session.ask(data) == told
        assert site.admin.rows(f"SELECT n FROM {numbers}") == []
        session.send(insert(numbers), SYNC)
        assert session.kinds(await session.until_ready()) == "12CZI"
        assert site.admin.value(f"SELECT count(*) FROM {numbers}") == 2
        assert await session.ask(SELECT) == "TDCZI"
