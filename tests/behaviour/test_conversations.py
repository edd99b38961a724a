"""The wire, message by message: what each front answers is what Postgres answers when it is spoken to directly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from behaviour.copy_conversations import COPIES
from behaviour.fronts import FRONTS
from behaviour.odd_conversations import ODD
from behaviour.portal_conversations import PORTALS
from behaviour.statement_conversations import STATEMENTS
from behaviour.wire import lines, wires
from helpers import conversations as modelled
from helpers.postgres_model import PostgresModel
from helpers.site import DATABASE
from helpers.transcript import transcript
from pgtrunk.wire.frontend import query

if TYPE_CHECKING:
    from behaviour.fronts import Front
    from behaviour.portal_conversations import Step
    from helpers.raw_session import RawSession
    from helpers.site import Site

_CUT: Final = 4000
"""Octets of a step from which on it is not cut into pieces."""

CONVERSATIONS: Final[dict[str, list[Step]]] = {
    **{f"portals: {name}": steps for name, steps in PORTALS.items()},
    **{f"copy: {name}": steps for name, steps in COPIES.items()},
    **{f"odd: {name}": steps for name, steps in ODD.items()},
    **{f"statements: {name}": steps for name, steps in STATEMENTS.items()},
}


def opens_blocks(name: str) -> bool:
    """Whether a transaction block is opened, which statement mode refuses."""
    return any(b"begin" in data or b"savepoint" in data for data, _ in CONVERSATIONS[name])


MODELLED: Final = {f"all: {name}": steps for name, steps in modelled.CONVERSATIONS.items()}
"""Those of the model of Postgres, which says how many messages answer each step."""
ALWAYS: Final = ("tcp", "quic")
LATER: Final = tuple(front for front in FRONTS if front not in ("direct", *ALWAYS))


@pytest.fixture(scope="module", autouse=True)
def t(site: Site) -> Iterator[None]:
    site.admin.execute("CREATE TABLE t (n int)")
    site.admin.execute("ALTER TABLE t OWNER TO app")
    yield
    site.admin.execute("DROP TABLE t")


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """What Postgres has said, by conversation: it is asked once."""
    return {}


@dataclass
class Stage:
    """Where conversations take place."""

    site: Site
    fronts: dict[str, Front]
    said: dict[str, list[str]]

    async def compare(self, name: str, through: str, *, database: str = DATABASE, cut: int = 0) -> None:
        """Holds this conversation by the front ``through`` against Postgres's own."""
        if name not in self.said:
            self.said[name] = await self._transcript("direct", name)
        assert await self._transcript(through, name, database, cut) == self.said[name]

    async def _transcript(self, through: str, name: str, database: str = DATABASE, cut: int = 0) -> list[str]:
        self.site.admin.execute("TRUNCATE t")
        async with wires(self.fronts[through]) as wire:
            session = await wire.log_in(database)
            return await run(session, name, cut)


@pytest.fixture
def stage(site: Site, fronts: dict[str, Front], said: dict[str, list[str]]) -> Stage:
    return Stage(site, fronts, said)


async def run(session: RawSession, name: str, cut: int) -> list[str]:
    """The transcript of a conversation; it is written in pieces of ``cut`` octets, or each step whole."""
    told: list[str] = []
    model = PostgresModel(settings=session.parameters)
    steps: list[tuple[bytes, str | None]] = [*CONVERSATIONS.get(name, ())]
    steps += [(data, None) for data in MODELLED.get(name, ())]
    # Whatever is said beyond the end of a step is in front of the answer to the next, and the last.
    for at, (data, ends) in enumerate([*steps, (query(b"select 'the end'"), "Z")]):
        if session.is_lost.is_set() or model.closed:
            return [*told, "-- closed"]
        await write(session, data, cut)
        told.append(f"-- {at}")
        if ends is None:
            told += lines(await session.take(len(transcript(model.feed(data)))))
        else:
            for end in ends:
                told += lines(await session.until(end))
    return told


async def write(session: RawSession, data: bytes, cut: int) -> None:
    """Writes ``data``; in pieces, the beginning of it at least is read before the next piece comes."""
    step = cut or len(data)
    for at in range(0, len(data) if len(data) < _CUT else 0, step):
        session.send(data[at : at + step])
        await asyncio.sleep(0.0002 if cut else 0)
    if len(data) >= _CUT:
        session.send(data)


@pytest.mark.parametrize("name", [*CONVERSATIONS, *MODELLED])
@pytest.mark.parametrize("through", [*ALWAYS, *(pytest.param(front, marks=pytest.mark.long) for front in LATER)])
async def test_each_front_says_what_postgres_says(stage: Stage, name: str, through: str) -> None:
    await stage.compare(name, through)


@pytest.mark.parametrize("name", [*CONVERSATIONS, *(pytest.param(name, marks=pytest.mark.long) for name in MODELLED)])
@pytest.mark.parametrize("through", ["tcp", pytest.param("quic", marks=pytest.mark.long)])
async def test_so_it_is_in_session_mode(stage: Stage, name: str, through: str) -> None:
    await stage.compare(name, through, database=f"{DATABASE}_session")


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if not opens_blocks(name)])
@pytest.mark.parametrize("through", ["tcp", pytest.param("quic", marks=pytest.mark.long)])
async def test_so_it_is_in_statement_mode(stage: Stage, name: str, through: str) -> None:
    await stage.compare(name, through, database=f"{DATABASE}_statement")


@pytest.mark.long
@pytest.mark.parametrize("name", [*CONVERSATIONS, *MODELLED])
@pytest.mark.parametrize("cut", [1, 7])
@pytest.mark.parametrize("through", ALWAYS)
async def test_messages_may_be_cut_anywhere(stage: Stage, name: str, through: str, cut: int) -> None:
    await stage.compare(name, through, cut=cut)


@pytest.mark.parametrize("name", ["portals: several portals", "copy: in, inside a pipeline", "copy: in, at once"])
@pytest.mark.parametrize("through", [*ALWAYS, "sidecar-unix"])
async def test_messages_may_be_cut_at_each_octet(stage: Stage, name: str, through: str) -> None:
    await stage.compare(name, through, cut=1)
