"""Failed logins per address: guessing is slowed down, logging in is not.

Each address has a bucket of `limit` failures, which refills over `window` seconds. Only failures empty it, so any
number of good logins passes; each good login gives one failure back, so that one wrong client behind a shared address
does not shut out a crowd, while a guesser who owns an account gains one guess per whole login. Ask twice: when a
session arrives, and again right before its proof is looked at (`Login` does), or a thousand logins begun at the same
time are a thousand guesses. `now` is in seconds of any monotonic clock; no clock is known here.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["LoginLimiter", "subscriber"]

_Key: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Network

_PREFIX = 64
"""Bits of an IPv6 address that stand for one subscriber (RFC 6177): whoever has one address has all behind them."""


@dataclass(slots=True)
class _Bucket:
    spent: float
    """Failures that still count."""
    at: float
    """When that was true."""


class LoginLimiter:
    """Counts failed logins of the last while, by IPv4 address and IPv6 /64. Unix sockets are never limited."""

    def __init__(self, limit: int = 10, window: float = 60.0, *, capacity: int = 16384) -> None:
        self.limit = limit
        """Failures (login_failure_limit) that an address may have within `window` seconds; 0 = no limit."""
        self.window = window
        """Seconds (login_failure_window) after which a failure does not count any more."""
        self.capacity = capacity
        """Addresses remembered; beyond it the one that failed longest ago is forgotten."""
        self._buckets: OrderedDict[_Key, _Bucket] = OrderedDict()

    def allow(self, address: str | None, now: float, *, pending: int = 0) -> float:
        """0.0 where a login from `address` may be tried at `now`, otherwise the seconds until it may.

        `address` is a numeric IP address as in a socket's peer name; None or anything else is a unix socket's.
        `pending`: how many from there are tried at this moment, each of which may fail.
        """
        bucket = self._find(address, now)
        spent = pending + (bucket.spent if bucket is not None else 0.0)
        if self.limit == 0 or spent <= self.limit - 1:
            return 0.0
        return (spent - (self.limit - 1)) * self.window / self.limit

    def failed(self, address: str | None, now: float) -> None:
        """A login from `address` failed: wrong password, or a user that cannot log in."""
        key = subscriber(address)
        if key is None or self.limit == 0:
            return
        bucket = self._find(address, now) or _Bucket(0.0, now)
        # Never above the limit: a flood of logins that were begun together is no reason to shut out for hours.
        bucket.spent = min(bucket.spent + 1.0, float(self.limit))
        self._buckets[key] = bucket
        self._buckets.move_to_end(key)
        if len(self._buckets) > self.capacity:
            self._buckets.popitem(last=False)

    def succeeded(self, address: str | None, now: float) -> None:
        """A login from `address` succeeded."""
        bucket = self._find(address, now)
        if bucket is not None:
            bucket.spent = max(0.0, bucket.spent - 1.0)

    def __len__(self) -> int:
        return len(self._buckets)

    def _find(self, address: str | None, now: float) -> _Bucket | None:
        key = subscriber(address) if self._buckets else None
        bucket = self._buckets.get(key) if key is not None else None
        if key is None or bucket is None:
            return None
        bucket.spent -= (now - bucket.at) * self.limit / self.window
        bucket.at = now
        if bucket.spent > 0.0:
            return bucket
        del self._buckets[key]
        return None


def subscriber(address: str | None) -> _Key | None:
    """Whose failures count together: an IPv4 address, or all of an IPv6 /64; None for a unix socket."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    # A dual-stack socket shows IPv4 clients as ::ffff:a.b.c.d: all of IPv4 must not share one /64.
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ipaddress.IPv6Network((int(ip), _PREFIX), strict=False)
