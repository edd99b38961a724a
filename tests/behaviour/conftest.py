"""What the suite of behaviour has: the fronts, sessions by asyncpg and by psycopg, a table of the test's own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
import uvloop

from behaviour.fronts import FRONTS, LIBPQ, LOGIN, Front, login, open_fronts
from helpers.site import DATABASE
from pgtrunk import StreamManager

if TYPE_CHECKING:
    from helpers.site import Site

_numbers = itertools.count(1)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="package")
def fronts(site: Site) -> Iterator[dict[str, Front]]:
    """Open while this suite runs; other tests want Postgres for themselves."""
    with open_fronts(site) as opened:
        yield opened


@pytest.fixture(params=FRONTS)
def front(fronts: dict[str, Front], request: pytest.FixtureRequest) -> Front:
    """Each front, for asyncpg."""
    return fronts[request.param]


@pytest.fixture(params=LIBPQ)
def conninfo(fronts: dict[str, Front], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What libpq needs to log in by each front that it can use."""
    return {**fronts[request.param].libpq(), **LOGIN, "dbname": DATABASE}


@pytest_asyncio.fixture
async def connect(front: Front) -> AsyncIterator[Callable[..., Awaitable[asyncpg.Connection]]]:
    """Opens sessions by asyncpg, over QUIC all of them in one trunk; they are closed when the test is over."""
    sessions: list[asyncpg.Connection] = []
    trunk = StreamManager(front.gateway, **front.trunk) if front.gateway else None
    if trunk is not None:
        await trunk.open()

    async def connect(**options: Any) -> asyncpg.Connection:
        if trunk is not None:
            session = await trunk.connect(**login(**options))
        else:
            session = await asyncpg.connect(**front.asyncpg(), **login(**options))
        sessions.append(session)
        return session

    try:
        yield connect
        await asyncio.gather(*(session.close(timeout=20) for session in sessions))
    finally:
        for session in sessions:
            session.terminate()
        if trunk is not None:
            await trunk.close()


@pytest_asyncio.fixture
async def session(connect: Callable[..., Awaitable[asyncpg.Connection]]) -> asyncpg.Connection:
    return await connect()


@pytest_asyncio.fixture
async def libpq(conninfo: dict[str, Any]) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A session by psycopg, which commits by itself."""
    async with await psycopg.AsyncConnection.connect(**conninfo, autocommit=True) as connection:
        yield connection


@pytest.fixture
def table(site: Site) -> Iterator[str]:
    """The name of a table that does not exist yet; the test makes it, and it is dropped afterwards."""
    name = f"behaviour_{next(_numbers)}"
    yield name
    site.admin.execute(f"DROP TABLE IF EXISTS {name}")
