"""What a session asks: each workload is a coroutine function of a connection and a random number.

Answers are checked where that costs nothing: a wrong one ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from netem.errors import LabError

if TYPE_CHECKING:
    import asyncpg

    from netem.plan import Workload

__all__ = ["ROWS", "SETUP", "Ask", "connecting", "first_row", "pooled", "prepare"]

Ask = Callable[[int], Awaitable[Any]]
"""Asks once, about the account of this number."""

ROWS = 100_000
SETUP = f"""
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);
INSERT INTO accounts SELECT n, n * 7 FROM generate_series(0, {ROWS - 1}) n;
CREATE TABLE entries (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account int NOT NULL, amount int NOT NULL, note text
);
CREATE FUNCTION transfer(source int, target int) RETURNS int LANGUAGE sql AS $$
  UPDATE accounts SET balance = balance - 1 WHERE id = source;
  UPDATE accounts SET balance = balance + 1 WHERE id = target;
  INSERT INTO entries (account, amount) VALUES (target, 1) RETURNING amount;
$$;
ALTER TABLE accounts SET (autovacuum_enabled = off, fillfactor = 50);
VACUUM (FULL, ANALYZE) accounts;
GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;
"""
"""Run statement by statement: VACUUM takes no company."""

_SELECT = "SELECT balance FROM accounts WHERE id = $1"
_INSERT = "INSERT INTO entries (account, amount, note) VALUES ($1, 1, 'x') RETURNING amount"
_PLAIN = {"select": _SELECT, "insert": _INSERT}
_STATEMENTS = 3
"""Of a transaction."""
_CTE = """
WITH source AS (UPDATE accounts SET balance = balance - 1 WHERE id = $1 RETURNING id),
     target AS (UPDATE accounts SET balance = balance + 1 WHERE id = $2 RETURNING id)
INSERT INTO entries (account, amount) SELECT id, 1 FROM target RETURNING amount
"""


async def prepare(connection: asyncpg.Connection, workload: Workload) -> Ask:
    """What this session asks from now on; what can be prepared is."""
    return await _PREPARE[workload.kind](connection, workload)


def connecting(connect: Callable[[], Awaitable[asyncpg.Connection]], workload: Workload) -> Ask:
    """Asks over a session of its own each time; it is over when that is closed, as with asyncpg it is."""
    query = _plain(workload)

    async def ask(number: int) -> None:
        connection = await connect()
        try:
            await connection.fetchval(query, number)
        finally:
            await connection.close()

    return ask


async def first_row(connection: asyncpg.Connection, number: int) -> None:
    """As an application asks that has prepared nothing. Raises :class:`LabError` for a wrong answer."""
    _check(number, await connection.fetchval(_SELECT, number))


def pooled(pool: asyncpg.Pool, workload: Workload) -> Ask:
    """Asks over whatever session of the pool is free, and waits until the pool has it back, as ``pool.fetchval`` does.

    Each session prepares the query when it is asked for the first time.
    """
    query = _plain(workload)

    async def ask(number: int) -> None:
        await pool.fetchval(query, number)

    return ask


def _plain(workload: Workload) -> str:
    if workload.kind not in _PLAIN:
        raise LabError(f"a session that was not prepared asks {' or '.join(_PLAIN)} here, not {workload.kind}")
    return _PLAIN[workload.kind]


async def _select(connection: asyncpg.Connection, _workload: Workload) -> Ask:
    statement = await connection.prepare(_SELECT)
    fetch = statement.fetchval

    async def ask(number: int) -> None:
        _check(number, await fetch(number))

    return ask


def _check(number: int, balance: int | None) -> None:
    if balance != number * 7:
        raise LabError(f"account {number} has a wrong balance")


async def _rows(connection: asyncpg.Connection, workload: Workload) -> Ask:
    octets = workload.octets
    statement = await connection.prepare(f"SELECT repeat('x', {octets})::text WHERE $1::int >= 0")

    async def ask(number: int) -> None:
        text: str = await statement.fetchval(number) or ""
        if len(text) != octets:
            raise LabError(f"an answer has {len(text)} octets, not {octets}")

    return ask


async def _insert(connection: asyncpg.Connection, _workload: Workload) -> Ask:
    ask: Ask = (await connection.prepare(_INSERT)).fetchval
    return ask


async def _transaction(connection: asyncpg.Connection, workload: Workload) -> Ask:
    take = await connection.prepare("UPDATE accounts SET balance = balance - 1 WHERE id = $1")
    give = await connection.prepare("UPDATE accounts SET balance = balance + 1 WHERE id = $1")
    note = await connection.prepare("INSERT INTO entries (account, amount) VALUES ($1, 1)")

    async def ask(number: int) -> None:
        source, target = _pair(number)
        async with connection.transaction():
            for statement, account in ((take, source), (give, target), (note, target)):
                await statement.fetch(account)
                await asyncio.sleep(workload.think)

    return ask


async def _cte(connection: asyncpg.Connection, workload: Workload) -> Ask:
    statement = await connection.prepare(_CTE)

    async def ask(number: int) -> None:
        await asyncio.sleep(_STATEMENTS * workload.think)
        await statement.fetchval(*_pair(number))

    return ask


async def _function(connection: asyncpg.Connection, workload: Workload) -> Ask:
    statement = await connection.prepare("SELECT transfer($1, $2)")

    async def ask(number: int) -> None:
        await asyncio.sleep(_STATEMENTS * workload.think)
        await statement.fetchval(*_pair(number))

    return ask


def _pair(number: int) -> tuple[int, int]:
    """Two accounts, in an order that makes deadlocks impossible."""
    other = (number + ROWS // 2) % ROWS
    return min(number, other), max(number, other)


_PREPARE: dict[str, Callable[[Any, Workload], Awaitable[Ask]]] = {
    "select": _select,
    "rows": _rows,
    "insert": _insert,
    "transaction": _transaction,
    "cte": _cte,
    "function": _function,
}
