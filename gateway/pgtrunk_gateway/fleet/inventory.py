"""What one supervisor leaves to the next: which of the descriptors that it passes on is what, and what else there is to
know. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgtrunk_gateway.fleet.charter import Secrets
from pgtrunk_gateway.fleet.outgoing import Outgoing

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["FORMAT", "PLACES", "Inventory", "places_of"]

FORMAT = 1
"""Of all that two supervisors say to each other. They may be of two versions: what cannot be understood any more has
another number, and is refused before anything has changed."""

PLACES = ("listen_addr", "listen_port", "unix_socket_dir", "quic_enabled", "quic_listen_addr", "quic_listen_port")
"""Settings that say where a gateway listens. Both must have the same."""


def places_of(config: Config) -> Body:
    """Where it listens, by these settings, as JSON has it."""
    return {name: _plain(getattr(config, name)) for name in PLACES}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Descriptors are the giver's own as long as they are not translated (:meth:`with_descriptors`)."""

    generation: int
    places: Body
    secrets: Secrets
    tcp: tuple[int, ...]
    unix: int | None
    path: str | None
    """Of the unix socket."""
    port: int
    udp: tuple[tuple[int, ...], ...]
    """For each member of the group its sockets, one for each address."""
    elders: tuple[Outgoing, ...]
    """The giver itself last."""

    @property
    def descriptors(self) -> list[int]:
        """All of them, in the order in which they are passed on."""
        found = [*self.tcp, *(() if self.unix is None else (self.unix,))]
        for own in self.udp:
            found += own
        for elder in self.elders:
            found += elder.outlets.values()
        return found

    def with_descriptors(self, received: list[int]) -> Inventory:
        """The same, by the numbers that the descriptors have for the taker."""
        new = dict(zip(self.descriptors, received, strict=True))
        return Inventory(
            generation=self.generation,
            places=self.places,
            secrets=self.secrets,
            tcp=tuple(new[each] for each in self.tcp),
            unix=None if self.unix is None else new[self.unix],
            path=self.path,
            port=self.port,
            udp=tuple(tuple(new[each] for each in own) for own in self.udp),
            elders=tuple(
                Outgoing(elder.generation, elder.count, {index: new[each] for index, each in elder.outlets.items()})
                for elder in self.elders
            ),
        )

    def as_body(self) -> Body:
        """As it travels."""
        return {
            "format": FORMAT,
            "generation": self.generation,
            "places": self.places,
            **self.secrets.as_body(),
            "tcp": list(self.tcp),
            "unix": self.unix,
            "path": self.path,
            "port": self.port,
            "udp": [list(own) for own in self.udp],
            "elders": [elder.as_body() for elder in self.elders],
        }

    @classmethod
    def from_body(cls, body: Body) -> Inventory:
        """The other way."""
        return cls(
            generation=body["generation"],
            places=body["places"],
            secrets=Secrets.from_body(body),
            tcp=tuple(body["tcp"]),
            unix=body["unix"],
            path=body["path"],
            port=body["port"],
            udp=tuple(tuple(own) for own in body["udp"]),
            elders=tuple(Outgoing.from_body(each) for each in body["elders"]),
        )
