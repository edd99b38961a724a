"""A login that leads to a replication connection, and what goes on from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.pool.walsender import Walsender
    from pgtrunk_gateway.relay.admission import Client
    from pgtrunk_gateway.relay.tally import Place

__all__ = ["Ferry", "Passage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What a client that replicates has once it is logged in, here and at the server."""

    user: str
    database: str
    pool: Pool
    place: Place
    walsender: Walsender
    """Open, and not read yet."""
    protocol: int
    """What the client speaks."""


class Ferry(Protocol):
    """Takes over from the login."""

    def __call__(self, client: Client, passage: Passage, rest: bytes, *, over: bool) -> None:
        """Goes on with the transport of ``client``; ``rest`` came behind its login, and no more will if ``over``."""
