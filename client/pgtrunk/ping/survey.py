"""What `pgtrunk ping` does: a full handshake, pings, a resumed handshake; and with a user, logins over each."""

from __future__ import annotations

import asyncio
import getpass
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pgtrunk.errors import CertificateError, GatewayUnreachable, LoginRefused
from pgtrunk.ping.blockage import told_apart
from pgtrunk.ping.handshake import opened, round_trip
from pgtrunk.ping.login import log_in, protocol_of
from pgtrunk.ping.report import Report, Trips

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk.address import Address
    from pgtrunk.ping.login import Login
    from pgtrunk.quic import ClientConfig, ClientConnection

__all__ = ["Asked", "survey"]

TICKET_WAIT = 0.5
"""Seconds that a gateway has for its session ticket, which it sends once the handshake is over."""


@dataclass(slots=True, kw_only=True)
class Asked:
    """The command line."""

    address: Address
    config: ClientConfig
    timeout: float
    count: int
    interval: float
    user: str | None = None
    database: str | None = None
    password: str | None = None


async def survey(asked: Asked, *, say: Callable[[str], object], ask: str | None) -> Report:
    """Finds it all out, and says it as it comes; ``ask`` is the prompt for a password, None: nobody is asked.

    Raises `GatewayUnreachable`, `UdpBlocked`, `CertificateError`, `LoginRefused`, `LoginTimeout`, `SessionLost`.
    """
    report = Report(gateway=str(asked.address))
    try:
        await _first(asked, report, say, ask)
    except CertificateError:
        raise
    except GatewayUnreachable as exc:
        if isinstance(exc.__cause__, TimeoutError):
            raise await told_apart(exc, asked.address) from exc
        raise
    await _again(asked, report)
    for line in report.tail():
        say(line)
    return report


async def _first(asked: Asked, report: Report, say: Callable[[str], object], ask: str | None) -> None:
    async with opened(asked.address, asked.config, asked.timeout) as (connection, report.full):
        for line in report.head():
            say(line)
        for number in range(asked.count):
            if number:
                await asyncio.sleep(asked.interval)
            took = await round_trip(connection, asked.timeout)
            report.round_trips.append(took)
            say(f"  ping {number + 1}: " + ("no answer" if took is None else f"{took * 1000:.2f} ms"))
        if asked.user is not None:
            login = await _log_in(connection, asked, ask)
            report.cold = Trips(handshake=1, login=login)
            report.live = Trips(handshake=0, login=await _log_in(connection, asked, None))
            report.protocol = await protocol_of(
                connection, user=asked.user, database=asked.database or asked.user, timeout=asked.timeout
            )
        elif asked.count == 0:
            await asyncio.sleep(min(TICKET_WAIT, asked.timeout))


async def _again(asked: Asked, report: Report) -> None:
    """Over a connection that is resumed: first for the time of its handshake, then with early data."""
    async with opened(asked.address, asked.config, asked.timeout) as (connection, report.resumed):
        await round_trip(connection, asked.timeout)  # its ticket comes before the answer
    if asked.user is None:
        return
    config = replace(asked.config, early=True)
    async with opened(asked.address, config, asked.timeout) as (connection, _):
        login = await _log_in(connection, asked, None)
        report.back = Trips(handshake=0 if connection.driver.took_early else 1, login=login)


async def _log_in(connection: ClientConnection, asked: Asked, ask: str | None) -> Login:
    assert asked.user is not None
    while True:
        try:
            return await log_in(
                connection,
                user=asked.user,
                database=asked.database or asked.user,
                password=asked.password,
                timeout=asked.timeout,
            )
        except LoginRefused as exc:
            # As psql does: it asks once the server wants a password and there is none.
            if exc.sqlstate != "28P01" or asked.password is not None or ask is None:
                raise
            asked.password = await asyncio.to_thread(getpass.getpass, ask)
