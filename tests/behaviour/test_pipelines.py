"""Pipelines, by psycopg: what is sent ahead, what is skipped after an error, and where transactions end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from behaviour.fronts import PSQL
from helpers.processes import run_program

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.site import Site

Libpq = psycopg.AsyncConnection[Any]


async def count(libpq: Libpq, table: str) -> int:
    row = await (await libpq.execute(f"SELECT count(*) FROM {table}".encode())).fetchone()
    assert row is not None
    return int(row[0])


async def test_answers_come_in_order(libpq: Libpq) -> None:
    async with libpq.pipeline():
        cursors = [await libpq.execute("SELECT %s::int, repeat('x', %s)", (n, n)) for n in range(200)]
    assert [await cursor.fetchone() for cursor in cursors] == [(n, "x" * n) for n in range(200)]


def outcomes(connection: Any, syncs: int) -> list[str]:
    """What libpq has for each request of a pipeline, up to so many Syncs."""
    names: list[str] = []
    while names.count("PIPELINE_SYNC") < syncs:
        result = connection.get_result()
        if result is not None:
            names.append(pq.ExecStatus(result.status).name)
    return names


def test_an_error_skips_what_follows_to_the_next_sync(conninfo: dict[str, Any], site: Site, table: str) -> None:
    site.admin.execute(f"CREATE TABLE {table} (n int)")
    site.admin.execute(f"GRANT ALL ON {table} TO PUBLIC")
    connection = pq.PGconn.connect(make_conninfo(**conninfo).encode())
    connection.enter_pipeline_mode()

    def send(*texts: str) -> None:
        for text in texts:
            connection.send_query_params(text.encode(), None)
        connection.pipeline_sync()

    send("SELECT 1")
    send(f"INSERT INTO {table} VALUES (1)", "SELECT 1/0", f"INSERT INTO {table} VALUES (2)")
    send(f"INSERT INTO {table} VALUES (3)")
    assert outcomes(connection, 3) == [
        *("TUPLES_OK", "PIPELINE_SYNC"),
        *("COMMAND_OK", "FATAL_ERROR", "PIPELINE_ABORTED", "PIPELINE_SYNC"),
        *("COMMAND_OK", "PIPELINE_SYNC"),
    ]
    # What came before the error, up to the Sync before it, went with it.
    assert site.admin.rows(f"SELECT n FROM {table}") == [(3,)]
    connection.finish()


async def test_a_transaction_in_a_pipeline(libpq: Libpq, table: str) -> None:
    await libpq.execute(f"CREATE TABLE {table} (n int)".encode())
    insert = f"INSERT INTO {table} VALUES (%s)".encode()
    async with libpq.pipeline(), libpq.transaction():
        for n in range(20):
            await libpq.execute(insert, (n,))
    assert await count(libpq, table) == 20
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with libpq.pipeline(), libpq.transaction():
            await libpq.execute(insert, (99,))
            await libpq.execute("SELECT 1/0")
    assert await count(libpq, table) == 20


async def test_executemany_is_a_pipeline(libpq: Libpq, table: str) -> None:
    await libpq.execute(f"CREATE TABLE {table} (n int, x text)".encode())
    async with libpq.cursor() as cursor:
        await cursor.executemany(
            f"INSERT INTO {table} VALUES (%s, %s) RETURNING n".encode(),
            [(n, "x" * 100) for n in range(500)],
            returning=True,
        )
        returned = []
        while True:
            returned += await cursor.fetchall()
            if not cursor.nextset():
                break
    assert returned == [(n,) for n in range(500)]


PGBENCH = r"""
\set n random(1, 100)
\startpipeline
BEGIN;
SELECT :n AS n;
SELECT n FROM generate_series(1, 3) n;
COMMIT;
SELECT :n + 1 AS m;
\endpipeline
"""


@pytest.mark.parametrize("mode", ["extended", "prepared"])
@pytest.mark.parametrize("conninfo", PSQL, indirect=True)
def test_pgbench_pipelines(conninfo: dict[str, Any], tmp_path: Path, mode: str) -> None:
    script = tmp_path / "pipeline.sql"
    script.write_text(PGBENCH)
    done = run_program("pgbench", conninfo, "-n", "-M", mode, "-f", str(script), "-c", "8", "-t", "50")
    assert "number of transactions actually processed: 400/400" in done.stdout
    assert "number of failed transactions: 0 " in done.stdout


async def test_more_prepared_statements_than_psycopg_keeps(libpq: Libpq) -> None:
    """It deallocates the oldest, by SQL or by the protocol, whatever its libpq can do."""
    libpq.prepare_threshold, libpq.prepared_max = 0, 2
    for number in range(20):
        cursor = await libpq.execute(f"SELECT {number % 5} + %s::int".encode(), (number,))
        assert await cursor.fetchone() == (number % 5 + number,)


async def test_prepared_in_a_pipeline(libpq: Libpq) -> None:
    libpq.prepare_threshold = 0
    for _ in range(2):
        async with libpq.pipeline():
            cursors = [await libpq.execute(f"SELECT {n % 7} + %s::int".encode(), (n,)) for n in range(100)]
            with pytest.raises(psycopg.errors.DivisionByZero):
                await (await libpq.execute("SELECT 1 / %s::int", (0,))).fetchone()
        assert [await cursor.fetchone() for cursor in cursors] == [(n % 7 + n,) for n in range(100)]


async def test_deallocation_by_sql(libpq: Libpq) -> None:
    """Of statements that were prepared by the protocol, as drivers with an older libpq do."""
    libpq.pgconn.prepare(b"own", b"SELECT $1::int")
    assert libpq.pgconn.exec_prepared(b"own", [b"1"]).get_value(0, 0) == b"1"
    for text in (b'DEALLOCATE "own"', b"DEALLOCATE own"):
        assert pq.ExecStatus(libpq.pgconn.exec_params(text, None).status).name == (
            "COMMAND_OK" if b'"' in text else "FATAL_ERROR"
        )
    assert b"does not exist" in libpq.pgconn.exec_prepared(b"own", [b"1"]).error_message
    libpq.pgconn.prepare(b"own", b"SELECT $1::text")
    assert libpq.pgconn.exec_prepared(b"own", [b"x"]).get_value(0, 0) == b"x"
