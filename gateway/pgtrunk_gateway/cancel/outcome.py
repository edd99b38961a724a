"""What becomes of a client's cancel request. Pure."""

from __future__ import annotations

import enum

__all__ = ["Outcome"]


class Outcome(enum.Enum):
    """Each request has exactly one in the end, also where several are carried to Postgres by one connection.

    It is counted by the process that the client came to, and nowhere else: what a sibling has done, too.
    """

    CARRIED = "Postgres has been told, and has hung up"
    REFUSED = "its session waited for a backend, and does so no more"
    IDLE = "its session asks for nothing"
    OVERTAKEN = "what it was meant for had ended before Postgres could be told"
    ENDED = "its session has ended"
    FORWARDED = "the peer whose key it has has been told, and has hung up; what came of it, peers do not say"
    UNKNOWN = "nobody has this key"
    LIMITED = "not looked at: too many wrong keys from this address"
    FAILED = "Postgres, or the peer or worker whose key it has, could not be told"
    UNCONFIRMED = "Postgres, or the peer, has been told, and has not hung up within cancel_wait_timeout"
