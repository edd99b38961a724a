"""The same before an older PostgreSQL, which reports less of what a session sets: search_path, above all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.debian_site import site
from helpers.session_states import play_pins, play_settings

if TYPE_CHECKING:
    from helpers.gateways import Start


__all__ = ["site"]


@pytest.mark.parametrize("size", [1, 3])
async def test_settings_follow_their_session_and_no_other(start: Start, size: int) -> None:
    gateway = await start(default_pool_size=size)
    assert gateway.site.admin.value("SHOW server_version_num") < "160000"
    await play_settings(gateway, "tcp")


async def test_what_cannot_be_carried_keeps_its_backend(start: Start) -> None:
    await play_pins(await start(default_pool_size=1), "tcp")


async def test_a_search_path_follows_its_session(start: Start) -> None:
    gateway = await start(default_pool_size=1)
    session, other = await gateway.connect("tcp"), await gateway.connect("tcp")
    await session.execute('SET search_path = "$user", "B c"')
    for _ in range(2):
        assert await other.fetchval("SHOW search_path") == '"$user", public'
        assert await session.fetchval("SHOW search_path") == '"$user", "B c"'
    await session.execute("SELECT pg_catalog.set_config('search_path', '', false)")
    for _ in range(2):
        assert await other.fetchval("SHOW search_path") == '"$user", public'
        assert await session.fetchval("SHOW search_path") == ""
