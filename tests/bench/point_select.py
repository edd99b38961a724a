"""The query of all measurements: a point select on pgbench's accounts, as a driver sends it and Postgres answers it.

The balance of each account follows from its number, so that every answer can be checked. The messages here are what
asyncpg and libpq send; the echo beside the gateway sends as many octets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import encode

__all__ = ["ACCOUNTS", "ASYNCPG", "FLOWS", "QUERY", "SPREAD_BALANCES", "Exchange", "expected"]

ACCOUNTS: Final = 100_000
"""Rows of pgbench_accounts at scale 1."""
QUERY: Final = "SELECT abalance FROM pgbench_accounts WHERE aid = $1"
SPREAD_BALANCES: Final = "UPDATE pgbench_accounts SET abalance = aid * 7"
_NAME: Final = b"__asyncpg_stmt_1__"
_INT4: Final = 23


def expected(account: int) -> int:
    """The balance that the account has."""
    return account * 7


@dataclass(frozen=True, slots=True)
class Exchange:
    """One query on the wire: what the client sends, in one write, and what comes back. ``parse`` goes ahead once."""

    request: bytes
    answer: bytes
    parse: bytes = b""


def _bind(name: bytes, *, binary: bool) -> bytes:
    value = struct.pack("!i", 12345) if binary else b"12345"
    return client.bind(b"", name, [value], binary=binary)


def _row(*, binary: bool) -> bytes:
    return server.data_row([struct.pack("!i", 86415) if binary else b"86415"])


_SQL: Final = QUERY.encode()
_BOUND: Final = encode(b"2")
_DONE: Final = server.command_complete("SELECT 1") + server.ready()
_SUSPENDED: Final = encode(b"s") + server.ready()
_COLUMNS: Final = server.row_description(["abalance"], [_INT4])
_PARSE: Final = client.parse(_NAME, _SQL) + client.SYNC_MESSAGE
_DESCRIBE: Final = client.describe_portal(b"")

ASYNCPG: Final = Exchange(
    # fetchval asks for one row, and so leaves the portal suspended.
    _bind(_NAME, binary=True) + client.execute(limit=1) + client.SYNC_MESSAGE,
    _BOUND + _row(binary=True) + _SUSPENDED,
    _PARSE,
)
FLOWS: Final = {
    "prepared": ASYNCPG,
    # libpq describes the portal of each query.
    "prepared_libpq": Exchange(
        _bind(_NAME, binary=False) + _DESCRIBE + client.execute() + client.SYNC_MESSAGE,
        _BOUND + _COLUMNS + _row(binary=False) + _DONE,
        _PARSE,
    ),
    "extended": Exchange(
        client.parse(b"", _SQL) + _bind(b"", binary=False) + _DESCRIBE + client.execute() + client.SYNC_MESSAGE,
        encode(b"1") + _BOUND + _COLUMNS + _row(binary=False) + _DONE,
    ),
    "simple": Exchange(
        client.query(_SQL.replace(b"$1", b"12345")),
        _COLUMNS + _row(binary=False) + _DONE,
    ),
}
"""What a driver may send, by name."""
