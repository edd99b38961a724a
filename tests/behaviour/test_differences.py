"""Each known difference from Postgres is one, in each pool mode that it is in; and the document has all of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from behaviour.differences import ALL_MODES, DIFFERENCES, SHARING
from behaviour.fronts import MODES, Front
from behaviour.wire import lines, wires
from helpers.documents import DOCUMENTS, section
from helpers.pipeline_differences import IN_PIPELINES
from helpers.processes import gateway_process
from helpers.site import DATABASE
from pgtrunk.wire.frontend import query
from pgtrunk_gateway.errors import BackendRefused

if TYPE_CHECKING:
    from behaviour.differences import Difference
    from behaviour.portal_conversations import Step
    from helpers.raw_session import RawSession
    from helpers.site import Site

BACKENDS = 3


def database(mode: str) -> str:
    return DATABASE if mode == "transaction" else f"{DATABASE}_{mode}"


@pytest.fixture(scope="module")
def things(site: Site) -> Iterator[None]:
    site.admin.execute("CREATE SEQUENCE counted; ALTER SEQUENCE counted OWNER TO app")
    site.admin.execute(
        "CREATE FUNCTION sets_out_of_sight() RETURNS text LANGUAGE sql"
        " AS $$ SELECT set_config('unseen.value', 'x', false) $$"
    )
    yield
    site.admin.execute("DROP FUNCTION sets_out_of_sight(); DROP SEQUENCE counted")


@pytest.fixture(scope="module")
def turning(site: Site, things: None) -> Iterator[Front]:
    """A gateway with a database for each mode, whose transactions have another backend each time."""
    modes = {f"{DATABASE}_{mode}": site.target(f"dbname={DATABASE} pool_mode={mode}") for mode in MODES}
    databases = {DATABASE: site.target(), **modes}
    with gateway_process(site, databases=databases, server_round_robin=1, default_pool_size=BACKENDS) as gateway:
        yield Front("127.0.0.1", gateway.port())


@pytest_asyncio.fixture
async def warm(turning: Front) -> Front:
    """With all backends open."""
    async with asyncio.timeout(30), wires(turning) as wire:
        for mode in SHARING:
            sessions = [await wire.log_in(database(mode)) for _ in range(BACKENDS)]
            while len({await pid(sessions[0]) for _ in range(BACKENDS)}) < BACKENDS:
                await asyncio.gather(*(session.ask(query(b"select pg_sleep(0.1)")) for session in sessions))
    return turning


async def pid(session: RawSession) -> str:
    """Of the backend that it has just now."""
    session.send(query(b"select pg_backend_pid()"))
    return next(text for text in lines(await session.until_ready()) if text.startswith("DataRow"))


async def answered(front: Front, database: str, difference: Difference, *, late: str = "") -> list[str]:
    """How the last step is answered, with what comes of the kind ``late``; or the login, where that fails."""
    async with wires(front) as wire:
        try:
            session = await wire.log_in(database, **difference.startup)
        except BackendRefused as refused:
            return [f"ErrorResponse FATAL {refused.sqlstate} {refused.message}"]
        for step in difference.steps[:-1]:
            await ask(session, difference, step)
        await asyncio.sleep(difference.pause)
        told = await ask(session, difference, difference.steps[-1])
        return told + (lines(await session.until(late)) if late else [])


async def ask(session: RawSession, difference: Difference, step: Step | Callable[[int], Step]) -> list[str]:
    assert session.key is not None
    data, ends = step(session.key.pid) if callable(step) else step
    session.send(data)
    return [text for end in ends for text in lines(await session.until(end), difference.fields)]


@pytest.mark.parametrize(
    ("mode", "name"), [(mode, name) for mode in ALL_MODES for name, each in DIFFERENCES.items() if mode in each.modes]
)
async def test_a_difference(fronts: dict[str, Front], warm: Front, mode: str, name: str) -> None:
    difference = DIFFERENCES[name]
    assert await answered(fronts["direct"], DATABASE, difference) == difference.theirs
    assert await answered(warm, database(mode), difference, late=difference.late) == difference.ours


@pytest.mark.parametrize("name", [name for name, each in DIFFERENCES.items() if "session" not in each.modes])
async def test_there_are_fewer_in_session_mode(fronts: dict[str, Front], warm: Front, name: str) -> None:
    difference = DIFFERENCES[name]
    assert await answered(warm, database("session"), difference) == difference.theirs


def test_the_document_has_the_same_table() -> None:
    told = section(DOCUMENTS["ARCHITECTURE.md"], "Where a client can tell")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", told, re.MULTILINE)[1:]
    known = [(name, modes(each.modes), each.why) for name, each in DIFFERENCES.items()]
    known += [(name, modes(SHARING), each.why) for name, each in IN_PIPELINES.items()]
    assert rows == known


def modes(names: tuple[str, ...]) -> str:
    return "all" if set(names) == set(ALL_MODES) else ", ".join(names)
