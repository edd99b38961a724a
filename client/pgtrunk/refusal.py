"""Turns the reason for a refusal into the error that the caller gets. Pure.

The words name the settings that decided, with their values, and what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pgtrunk.decisions import Full, LinkGone, Refusal, Shut, Unreachable
from pgtrunk.errors import (
    CertificateError,
    GatewayUnreachable,
    SessionLost,
    TrunkClosed,
    TrunkError,
    TrunkFull,
    UdpBlocked,
)

__all__ = ["Limit", "error_for", "seconds"]


@dataclass(frozen=True, slots=True)
class Limit:
    """What bounds a wait: the setting's name, as the caller knows it, its value in seconds, and when that is over."""

    name: str
    value: float
    deadline: float
    """A time of the loop's clock."""

    def __str__(self) -> str:
        return f"{self.name}={seconds(self.value)}"


def seconds(value: float) -> str:
    """Writes a duration as people say it: ``10 s``, ``0.25 s``."""
    return f"{value:.2f}".rstrip("0").rstrip(".") + " s"


def error_for(why: Refusal, limit: Limit, gateway: str) -> TrunkError:
    """Returns a new error for each caller, since each gets a traceback of its own; the cause is chained to it."""
    match why:
        case Full():
            return _chained(TrunkFull(_full(why, limit)), why.cause)
        case Unreachable(cause=CertificateError() as cause):
            words = f"gateway {gateway} cannot be used: {cause}"
            return _chained(CertificateError(words, presented=cause.presented, expected=cause.expected), cause)
        case Unreachable(cause=UdpBlocked() as cause):
            return _chained(UdpBlocked(_unreachable(why, limit, gateway)), cause)
        case Unreachable():
            return _chained(GatewayUnreachable(_unreachable(why, limit, gateway)), why.cause)
        case LinkGone():
            return SessionLost(
                "the connection of the session that was to be cancelled is lost, and the session with it",
                sent=False,
            )
        case Shut():
            return TrunkClosed(f"the trunk to {gateway} was closed while this caller waited for a stream")
        case _:
            assert_never(why)


def _chained(error: TrunkError, cause: BaseException | None) -> TrunkError:
    error.__cause__ = cause
    return error


def _full(why: Full, limit: Limit) -> str:
    open_of = f"{why.ready} of connections={why.connections}"
    silent = f", and {why.suspect} more that do not answer" if why.suspect else ""
    state = f"{open_of} open with {why.sessions} streams in use{silent}"
    return (
        f"no stream became free within {limit} (waited {seconds(why.waited)}): {_queue(why)}; {state}; {_decided(why)}"
    )


def _queue(why: Full) -> str:
    if why.waiting <= 1:
        return "nobody else waits"
    return f"{why.waiting} callers wait, the first for {seconds(why.oldest)}"


def _decided(why: Full) -> str:
    if why.own_limit is not None:
        return f"{why.own_limit} decided; close sessions sooner, or raise it"
    if why.limited_by_gateway == why.ready:
        decided = "the gateway allows no more streams (its quic_max_streams, less a reserve for cancels)"
    elif why.limited_by_gateway:
        decided = (
            f"streams_per_connection={why.streams_per_connection} decided, "
            f"and on {why.limited_by_gateway} of them what the gateway allows (its quic_max_streams)"
        )
    else:
        decided = f"streams_per_connection={why.streams_per_connection} decided"
    if why.ready < why.connections and why.cause is not None:
        return f"{decided}, and a further connection could not be opened: {why.cause}"
    return f"{decided}; close sessions sooner, or raise connections"


def _unreachable(why: Unreachable, limit: Limit, gateway: str) -> str:
    if why.cause is None:
        return f"gateway {gateway} did not answer within {limit}: is it running, and does UDP reach it?"
    waited = f"after {seconds(why.waited)} of {limit}" if why.waited > 0 else "at once"
    times = "it failed" if why.failures == 1 else f"it failed {why.failures} times in {seconds(why.down)}, at last"
    again = "" if why.retry_in is None else f"; the next attempt is due in {seconds(why.retry_in)}"
    return f"gateway {gateway} cannot be reached, given up {waited}: {times} because {why.cause}{again}"
