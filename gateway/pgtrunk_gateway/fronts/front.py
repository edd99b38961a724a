"""What the gateway knows of a front."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.relay.session import Session

__all__ = ["Front", "SessionFactory"]

SessionFactory = Callable[[str], "Session"]
"""Makes a session for the front of this name."""


class Front(Protocol):
    """Accepts sessions from the moment it is made until :meth:`stop_accepting`."""

    name: str
    addresses: list[str]
    """Where it listens, as a person would write it."""

    def prepare(self, loaded: Loaded) -> Callable[[], None]:
        """For a reload: reads what ``loaded`` names, and returns what brings it into force for who comes from then on.

        Raises :class:`ConfigError`; then nothing has changed.
        """
        ...

    def drain(self) -> None:
        """The gateway takes no new clients; a front that only this machine reaches still lets administrators in."""

    def stop_accepting(self) -> None:
        """No new sessions; those that are there go on."""

    async def close(self) -> None:
        """Ends what is left of it."""
