"""What holds of the state of sessions before any PostgreSQL: scenes that are played with several servers."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import pytest_asyncio

from helpers.postgres import create_user
from helpers.site import DATABASE
from helpers.waiting import until

if TYPE_CHECKING:
    import asyncpg

    from helpers.gateways import LocalGateway, Way
    from helpers.site import Site
    from pgtrunk_gateway.relay.lifecycle import Lifecycle

__all__ = ["EVERYTHING", "PINS", "backend_of", "pinned", "play_pins", "play_settings", "root", "sessions"]

PINS: Final = {
    "LISTEN": ("LISTEN news", "UNLISTEN news"),
    "temporary table": ("CREATE TEMP TABLE mine (a int)", "DROP TABLE mine"),
    "advisory lock": ("SELECT pg_advisory_lock(77)", "SELECT pg_advisory_unlock(77)"),
    "cursor WITH HOLD": ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", "CLOSE c"),
}
"""By their words: what pins a session, and what frees it."""
EVERYTHING: Final = "; ".join(pins for pins, _ in PINS.values())

_LONG: Final = ", ".join(f"schema_{number}" for number in range(2000))
_WISHES: Final[list[dict[str, str]]] = [
    {},
    {"lock_timeout": "5s", "app.tenant": "größe 'of' \\ 1", "search_path": '"$user", public, pg_catalog'},
    {"lock_timeout": "6s", "work_mem": "1234kB", "app.tenant": "two", "TimeZone": "Asia/Tokyo"},
    {"statement_timeout": "9min", "search_path": _LONG, "DateStyle": "German, DMY", "app.long": "x" * 50_000},
    {"default_transaction_isolation": "repeatable read", "extra_float_digits": "2", "application_name": "me"},
]
_NAMES: Final = tuple(sorted({name for wishes in _WISHES for name in wishes}))
_LOOK: Final = "SELECT " + ", ".join(f"coalesce(current_setting('{name}', true), '')" for name in _NAMES)


@pytest_asyncio.fixture
async def root(site: Site) -> str:
    """An entry of [databases] whose backends are a superuser's."""
    await create_user(site.postgres, "state_root", "secret", "SUPERUSER")
    return site.target(f"user=state_root password=secret dbname={DATABASE}")


def sessions(gateway: LocalGateway) -> list[Lifecycle]:
    """All of them, the oldest first."""
    return sorted(gateway.gateway.context.sessions, key=lambda session: session.id)


def pinned(gateway: LocalGateway) -> list[str]:
    """For what sessions keep their backends."""
    return [session.pins.words for session in sessions(gateway) if session.pins]


async def backend_of(session: asyncpg.Connection) -> int:
    return int(await session.fetchval("SELECT pg_backend_pid()") or 0)


async def play_settings(gateway: LocalGateway, way: Way, *, rounds: int = 12) -> None:
    """Sessions set, reset and roll back at the same time over few backends: each has its own, and nobody else's."""
    dice = random.Random(rounds)
    opened = [await gateway.connect(way, statement_cache_size=0) for _ in _WISHES]
    unset = dict(zip(_NAMES, await _look(opened[0]), strict=True))

    async def play(session: asyncpg.Connection, wishes: dict[str, str]) -> None:
        own: dict[str, str] = {}
        for _ in range(rounds):
            assert dict(zip(_NAMES, await _look(session), strict=True)) == {**unset, **own}
            what = dice.choice(["set", "set", "roll back", "reset", "reset all", "nothing"] if wishes else ["nothing"])
            if what == "set":
                for name, value in wishes.items():
                    await _set(session, name, value, dice)
                own = dict(wishes)
            elif what == "roll back":
                transaction = session.transaction()
                await transaction.start()
                await session.execute("SET lock_timeout = '1234ms'; SET app.tenant = 'rolled back'")
                await transaction.rollback()
            elif what == "reset" and own:
                name = dice.choice(sorted(own))
                await session.execute(f"RESET {name}")
                del own[name]
            elif what == "reset all":
                await session.execute("RESET ALL" if dice.random() < 0.5 else "DISCARD ALL")
                own.clear()

    await asyncio.gather(*map(play, opened, _WISHES))
    assert not pinned(gateway)


async def _look(session: asyncpg.Connection) -> list[Any]:
    row = await session.fetchrow(_LOOK)
    assert row is not None
    return list(row)


async def _set(session: asyncpg.Connection, name: str, value: str, dice: random.Random) -> None:
    if dice.random() < 0.5:
        await session.execute("SELECT set_config($1, $2, false)", name, value)
    elif name == "search_path":
        await session.execute(f"SET search_path = {value}")
    else:
        literal = value.replace("'", "''")
        await session.execute(f"SET {name} = '{literal}'")


async def play_pins(gateway: LocalGateway, way: Way) -> None:
    """Before one backend: whoever pins it has it until it is freed, and whoever waits gets it then."""
    session, other = [await gateway.connect(way, statement_cache_size=0) for _ in range(2)]
    pid = await backend_of(other)
    for words, (pins, frees) in PINS.items():
        for text in (frees, "DISCARD ALL"):
            await session.execute(pins)
            await until(lambda words=words: pinned(gateway) == [words])  # type: ignore[misc]
            waiting = asyncio.ensure_future(backend_of(other))
            await until(lambda: gateway.counts(waiting=1))
            assert await backend_of(session) == pid
            assert not waiting.done()
            await session.execute(text)
            assert await waiting == pid
            assert not pinned(gateway)
