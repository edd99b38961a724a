"""Pipelines, by psycopg: what is sent ahead, what is skipped after an error, and where transactions end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
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
