"""The matrix has a PostgreSQL of its own, since it is restarted, and so a site of its own; the rest is as elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from deaths.matrix import STATES
from deaths.rows import database_of
from helpers.gateways import start
from helpers.postgres import create_database
from helpers.site import USER, Site, site
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres

__all__ = ["site", "start"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One that sees by itself that a gateway is gone for which it runs something, and forgets nothing in a crash."""
    settings = {"client_connection_check_interval": "200ms", "synchronous_commit": "on"}
    with EmbeddedPostgres(settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def theatre(site: Site) -> Site:
    """The site, with a database for each state."""
    for state in STATES:
        asyncio.run(create_database(site.postgres, database_of(state), owner=USER))
    return site


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
