"""Whether the gateway can be reached, as far as attempts and losses tell, and when to try again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk.errors import CertificateError, SessionLost

if TYPE_CHECKING:
    from pgtrunk.rules import Rules

__all__ = ["Outage", "Reach", "was_forgotten"]


def was_forgotten(cause: BaseException) -> bool:
    """Whether a connection was lost since the gateway itself says that it does not know it: so it is there, and is
    not to be waited for."""
    return isinstance(cause, SessionLost) and cause.forgotten


@dataclass(frozen=True, slots=True)
class Outage:
    """The gateway cannot be reached, or a connection to it was lost."""

    since: float
    retry_at: float
    """When somebody who waits may have it tried again."""
    calm_at: float
    """When it may be tried though nobody waits."""
    cause: BaseException

    @property
    def is_final(self) -> bool:
        """Whether waiting will not cure it: a wrong certificate stays wrong, and a fault of ours stays one."""
        return isinstance(self.cause, CertificateError) or not isinstance(self.cause, OSError)


class Reach:
    """What is known of the way to the gateway."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.outage: Outage | None = None
        self.failures = 0
        """Failures in a row, which end once a connection has proved stable, or the gateway says that it is there."""
        self._was_reached = False

    def reached(self) -> None:
        """A connection is ready."""
        self.outage, self._was_reached = None, True

    def heard(self) -> None:
        """A connection that was suspect has answered: what is known of attempts beside it is out of date."""
        if self.outage is not None and not self.outage.is_final:
            self.outage = None

    def failed(self, cause: BaseException, now: float, jitter: float, *, lived: float, others_ready: bool) -> None:
        """An attempt or a connection has failed.

        ``lived``: how long the connection lived that has proved most stable, of those that are ready (there are
        ``others_ready``) and of the one that was lost. Where the gateway itself says that it does not know
        that one, what failed before does not count.
        """
        backoff = self._rules.backoff
        self.failures = 1 if was_forgotten(cause) or lived >= self._rules.stable else self.failures + 1
        since = now if self.outage is None or others_ready else self.outage.since
        retry_at, calm_at = backoff.delay(self.failures, jitter), backoff.calm(self.failures, jitter)
        self.outage = Outage(since, now + retry_at, now + calm_at, cause)

    def next_try(self, *, calm: bool) -> float:
        """When it may be tried again."""
        if self.outage is None:
            return float("-inf")
        return self.outage.calm_at if calm else self.outage.retry_at

    def forget_what_is_old(self, now: float) -> None:
        """Nobody has tried for so long that what was known is out of date."""
        if self.outage is not None and now - self.outage.retry_at >= self._rules.patience:
            self.outage, self.failures = None, 0

    def is_hopeless(self, now: float) -> bool:
        """Whether it is clear that waiting is in vain, where nothing is open or being tried.

        Either waiting cures nothing, or the gateway was never reached (the address is wrong, rather than the gateway
        restarting), or it has been away for longer than callers wait.
        """
        outage = self.outage
        if outage is None:
            return False
        return outage.is_final or not self._was_reached or now >= outage.since + self._rules.patience
