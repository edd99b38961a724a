"""HINTs by which a session's last error tells whether what was asked of it may be asked again.

Drivers pass them on as they are, so they reach the application whatever its language; `pgtrunk.retry_safe` knows them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NOT_SENT", "SENT", "UNDONE", "hint_for"]

NOT_SENT: Final = "It is safe to retry: nothing was under way, and what comes after this is not carried out."
"""For a session that was idle, or had no answer to wait for yet."""

UNDONE: Final = (
    "It is safe to retry the whole transaction: it is rolled back, nothing was under way, and what comes after this is "
    "not carried out."
)
"""For a session between two statements of a transaction."""

SENT: Final = "What was not committed is rolled back; whether a commit that was under way took place is not known."
"""For all others."""


def hint_for(*, sent: bool, in_transaction: bool) -> str:
    """Return what to say of a session that was lost."""
    return SENT if sent else UNDONE if in_transaction else NOT_SENT
