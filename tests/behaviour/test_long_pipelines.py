"""Pipelines that are longer than any buffer, and pgbench's with Syncs of their own inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from behaviour.fronts import PSQL
from behaviour.wire import wires
from helpers.memory import Peak
from helpers.processes import run_program
from helpers.waiting import until
from pgtrunk.wire.frontend import SYNC_MESSAGE, bind, execute, parse, query

if TYPE_CHECKING:
    from pathlib import Path

    from behaviour.fronts import Front
    from helpers.site import Site

MANY: Final = 30_000
ROOM: Final = 6 << 20
"""Octets by which a process between client and Postgres may grow: far less than the answers have."""
SIZE: Final = 1000
SIMPLE: Final = query(b"select repeat('x', %d)" % SIZE)
EXTENDED: Final = parse(b"", b"select repeat('x', $1)") + bind(b"", b"", [b"%d" % SIZE]) + execute() + SYNC_MESSAGE
PREPARED: Final = bind(b"", b"s", [b"%d" % SIZE]) + execute() + SYNC_MESSAGE
KINDS: Final = {SIMPLE: "TDCZ", EXTENDED: "12DCZ", PREPARED: "2DCZ"}

through = pytest.mark.parametrize("through", ["direct", "tcp", "quic", "sidecar-unix"])


@through
@pytest.mark.parametrize("request_", [SIMPLE, EXTENDED, PREPARED], ids=["simple", "extended", "prepared"])
async def test_one_whose_client_reads_when_all_is_written(
    fronts: dict[str, Front], site: Site, through: str, request_: bytes
) -> None:
    """Whoever is full stops reading, up to Postgres; then all of it goes on, and each has its answer."""
    front, kinds = fronts[through], KINDS[request_]
    async with wires(front) as wire:
        session = await wire.log_in()
        assert await session.ask(parse(b"s", b"select repeat('x', $1)"), SYNC_MESSAGE) == "1ZI"
        session.transport.pause_reading()
        peak = Peak(front.between) if front.between else None
        session.send(request_ * MANY)
        await until(lambda: site.admin.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"))
        session.transport.resume_reading()
        told = await session.take(len(kinds) * MANY, 120)
        assert [message.kind for message in told] == list(kinds) * MANY
        assert all(len(message.body) == SIZE + 6 for message in told if message.kind == "D")
        assert peak is None or peak.growth < ROOM
        assert await session.ask(query(b"select 1")) == "TDCZI"


@through
async def test_one_that_fails_at_the_beginning(fronts: dict[str, Front], through: str) -> None:
    """All of one batch is skipped to its only Sync, however long it takes to come."""
    async with wires(fronts[through]) as wire:
        session = await wire.log_in()
        one = parse(b"", b"select 1") + bind(b"", b"") + execute()
        session.send(parse(b"", b"selec"), one * MANY, query(b"select 2") * 10, SYNC_MESSAGE, query(b"select 3"))
        assert session.kinds(await session.until_ready()) == "EZI"
        assert session.kinds(await session.until_ready()) == "TDCZI"
        assert not session.has_answer


PGBENCH: Final = r"""
\set n random(1, 100)
\startpipeline
SELECT :n AS n;
\syncpipeline
BEGIN;
SELECT n FROM generate_series(1, 3) n;
\syncpipeline
\syncpipeline
SELECT :n + 1 AS m;
COMMIT;
\endpipeline
"""


@pytest.mark.parametrize("mode", ["extended", "prepared"])
@pytest.mark.parametrize("conninfo", PSQL, indirect=True)
def test_pgbench_syncs_in_a_pipeline(conninfo: dict[str, Any], tmp_path: Path, mode: str) -> None:
    script = tmp_path / "pipeline.sql"
    script.write_text(PGBENCH)
    done = run_program("pgbench", conninfo, "-n", "-M", mode, "-f", str(script), "-c", "8", "-t", "50")
    assert "number of transactions actually processed: 400/400" in done.stdout
    assert "number of failed transactions: 0 " in done.stdout
