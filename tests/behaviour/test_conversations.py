"""The wire, message by message: what each front answers in each pool mode is what Postgres answers when it is spoken to
directly. Where that is not so is in :mod:`behaviour.differences`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from behaviour.block_conversations import BLOCKS
from behaviour.copy_conversations import COPIES
from behaviour.differences import NO_BLOCKS, PINNED
from behaviour.driver_conversations import DRIVERS
from behaviour.fronts import FRONTS
from behaviour.message_conversations import MESSAGES, PIPELINES
from behaviour.odd_conversations import ODD
from behaviour.portal_conversations import PORTALS
from behaviour.role_conversations import ROLES
from behaviour.setting_conversations import ROLE, SETTINGS
from behaviour.startup_conversations import STARTUPS
from behaviour.state_conversations import PINS, STATES
from behaviour.statement_conversations import STATEMENTS
from behaviour.transaction_conversations import TRANSACTIONS
from behaviour.wire import lines, wires
from helpers import conversations as modelled
from helpers.postgres_model import PostgresModel
from helpers.site import DATABASE
from helpers.transcript import transcript
from pgtrunk.wire.frontend import parse, query

if TYPE_CHECKING:
    from behaviour.fronts import Front
    from behaviour.portal_conversations import Step
    from helpers.raw_session import RawSession
    from helpers.site import Site

_CUT: Final = 4000
"""Octets of a step from which on it is not cut into pieces."""

CONVERSATIONS: Final[dict[str, list[Step]]] = {
    f"{group}: {name}": steps
    for group, conversations in {
        "portals": PORTALS,
        "copy": COPIES,
        "odd": ODD,
        "statements": STATEMENTS,
        "settings": SETTINGS,
        "roles": ROLES,
        "startups": {name: steps for name, (_, steps) in STARTUPS.items()},
        "pins": PINS,
        "states": STATES,
        "transactions": TRANSACTIONS,
        "blocks": BLOCKS,
        "messages": MESSAGES,
        "pipelines": PIPELINES,
        "drivers": DRIVERS,
    }.items()
    for name, steps in conversations.items()
}
MODELLED: Final = {
    **{f"all: {name}": steps for name, steps in modelled.CONVERSATIONS.items()},
    **{
        f"malformed: {message!r}": [
            parse(b"s", b"select $1::int") + modelled.SYNC,
            message + modelled.SYNC + query(b"select 1"),
            modelled.run(b"s", b"1") + modelled.SYNC,
        ]
        for message in modelled.MALFORMED
    },
}
"""Those of the model of Postgres, which says how many messages answer each step."""
ALL: Final = [*CONVERSATIONS, *MODELLED]
SOME: Final = ALL[::6]
"""Those that several fronts hold in every run of the tests; one holds all."""
FEW: Final = ALL[2::17]
"""And those that are held in the other pool modes too."""
ALWAYS: Final = ("tcp", "unix", "quic", "sidecar-unix")
OFTEN: Final = {front: ALL if front == "tcp" else SOME for front in ALWAYS}
LATER: Final = tuple(front for front in FRONTS if front not in ("direct", *ALWAYS))
MODES: Final = {
    "transaction": DATABASE,
    "session": f"{DATABASE}_session",
    "statement": f"{DATABASE}_statement",
}
"""The database of each pool mode."""
_FIELDS: Final = "DHWpqsctdn"
"""What errors say beside the usual: all but where in the source code of the server they come from."""


@pytest.fixture(scope="module", autouse=True)
def t(site: Site) -> Iterator[None]:
    """The table and the role that the conversations use."""
    site.admin.execute("CREATE TABLE t (n int)")
    site.admin.execute("ALTER TABLE t OWNER TO app")
    site.admin.execute(f"CREATE ROLE {ROLE}; GRANT {ROLE} TO app; GRANT SELECT ON t TO {ROLE}")
    yield
    site.admin.execute("DROP TABLE t")
    site.admin.execute(f"DROP ROLE {ROLE}")


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

    async def compare(self, name: str, through: str, *, mode: str = "transaction", cut: int = 0) -> None:
        """Holds this conversation by the front ``through`` against Postgres's own.

        In statement mode, up to the step with which a transaction block is opened: that ends the session.
        """
        expected = await self._said(name)
        heard = await self._transcript(through, name, mode, cut)
        notices = [text for text in heard if text.startswith(PINNED)]
        heard = [text for text in heard if not text.startswith(PINNED)]
        if mode == "statement" and (end := _opens_block(expected)) is not None:
            assert heard[:end] == expected[:end]
            # In a pipeline a block may be over before anybody has seen it.
            assert any(text.startswith(NO_BLOCKS) for text in heard) or not _ends_in_block(expected[end + 1 :])
            return
        assert heard == expected
        assert bool(notices) == (mode != "session" and _pins(name))

    async def _said(self, name: str) -> list[str]:
        if name not in self.said:
            self.said[name] = await self._transcript("direct", name, "transaction", 0)
        return self.said[name]

    async def _transcript(self, through: str, name: str, mode: str, cut: int) -> list[str]:
        self.site.admin.execute("TRUNCATE t")
        group, _, own = name.partition(": ")
        startup = STARTUPS[own][0] if group == "startups" else {}
        async with wires(self.fronts[through]) as wire:
            session = await wire.log_in(MODES[mode], **startup)
            told = [f"{parameter}={value}" for parameter, value in sorted(session.parameters.items())]
            told += await run(session, name, cut)
            if _pins(name) and through != "direct" and mode != "session" and not _is_pinned(told):
                # It comes when it is known, however little the session has still to say.
                told += lines(await session.until("N"))
            return told


def _pins(name: str) -> bool:
    """Whether the session has to keep its backend, which it is told."""
    return name.startswith("pins: ")


def _is_pinned(told: list[str]) -> bool:
    return any(text.startswith(PINNED) for text in told)


def _opens_block(told: list[str]) -> int | None:
    """Where in a transcript the first step begins with which a transaction block is open; None: there is none."""
    begins = None
    for at, text in enumerate(told):
        if text.startswith("-- "):
            begins = at
        elif text in ("ReadyForQuery T", "ReadyForQuery E"):
            return begins
    return None


def _ends_in_block(told: list[str]) -> bool:
    """Whether a block is open at the end of the first step of a transcript."""
    step = itertools.takewhile(lambda text: not text.startswith("-- "), told)
    return [text for text in step if text.startswith("ReadyForQuery")][-1] != "ReadyForQuery I"


@pytest.fixture
def stage(site: Site, fronts: dict[str, Front], said: dict[str, list[str]]) -> Stage:
    return Stage(site, fronts, said)


async def run(session: RawSession, name: str, cut: int) -> list[str]:
    """The transcript of a conversation; it is written in pieces of ``cut`` octets, or each step whole."""
    told: list[str] = []
    # Positions count the characters of names that are others in SQL's PREPARE and EXECUTE.
    fields = _FIELDS if name.startswith("statements: ") else _FIELDS + "P"
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
            told += lines(await session.take(len(transcript(model.feed(data)))), fields)
        else:
            for end in ends:
                told += lines(await session.until(end), fields)
    return told


async def write(session: RawSession, data: bytes, cut: int) -> None:
    """Writes ``data``; in pieces, the beginning of it at least is read before the next piece comes."""
    step = cut or len(data)
    for at in range(0, len(data) if len(data) < _CUT else 0, step):
        session.send(data[at : at + step])
        await asyncio.sleep(0.0002 if cut else 0)
    if len(data) >= _CUT:
        session.send(data)


def test_there_are_enough() -> None:
    assert len(ALL) >= 150


@pytest.mark.parametrize(
    ("through", "name"),
    [
        pytest.param(through, name, marks=() if name in OFTEN.get(through, ()) else pytest.mark.long)
        for through in (*ALWAYS, *LATER)
        for name in ALL
    ],
)
async def test_each_front_says_what_postgres_says(stage: Stage, through: str, name: str) -> None:
    await stage.compare(name, through)


@pytest.mark.parametrize(
    ("mode", "through", "name"),
    [
        pytest.param(mode, through, name, marks=() if through in ALWAYS[:1] and name in FEW else pytest.mark.long)
        for mode in ("session", "statement")
        for through in ALWAYS
        for name in ALL
    ],
)
async def test_so_it_is_in_the_other_modes(stage: Stage, mode: str, through: str, name: str) -> None:
    await stage.compare(name, through, mode=mode)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("cut", [1, 7])
@pytest.mark.parametrize("through", ["tcp", "quic"])
async def test_messages_may_be_cut_anywhere(stage: Stage, name: str, through: str, cut: int) -> None:
    await stage.compare(name, through, cut=cut)


@pytest.mark.parametrize("name", ["portals: several portals", "copy: in, inside a pipeline", "copy: in, at once"])
@pytest.mark.parametrize("through", ["tcp", "quic", "sidecar-unix"])
async def test_messages_may_be_cut_at_each_octet(stage: Stage, name: str, through: str) -> None:
    await stage.compare(name, through, cut=1)
