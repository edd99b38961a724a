"""Transaction blocks before an older PostgreSQL: what goes ahead of a request is not the newest version's alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from behaviour.block_conversations import BLOCKS
from behaviour.fronts import Front
from behaviour.test_conversations import Stage, said, t
from behaviour.transaction_conversations import TRANSACTIONS
from helpers.debian_site import site
from helpers.processes import gateway_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.site import Site

__all__ = ["said", "site", "t"]


@pytest.fixture(scope="module")
def stage(site: Site, said: dict[str, list[str]]) -> Iterator[Stage]:
    with gateway_process(site, default_pool_size=1) as gateway:
        direct = Front(site.postgres.host, site.postgres.port)
        yield Stage(site, {"direct": direct, "tcp": Front("127.0.0.1", gateway.port())}, said)


@pytest.mark.parametrize(
    "name", [*(f"blocks: {name}" for name in BLOCKS), *(f"transactions: {name}" for name in TRANSACTIONS)]
)
async def test_so_it_is_before_postgresql_15(stage: Stage, name: str) -> None:
    assert stage.site.admin.value("SHOW server_version_num") < "160000"
    await stage.compare(name, "tcp")
