"""What a worker is told when it starts: who it is, and which of the descriptors that it has inherited is what. Pure.

It asks for that first ("charter"); everything else it reads itself, from the same files as any gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pgtrunk_gateway.fleet.outgoing import Outgoing

if TYPE_CHECKING:
    from pgtrunk_gateway.fleet.frames import Body

__all__ = ["Charter", "Secrets", "TicketSeed"]

TicketSeed: TypeAlias = tuple[int, tuple[bytes, ...]]
"""The number of a period, its key and the one before: see :class:`pgtrunk_gateway.quic.ticket_keys.TicketKeys`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What all workers must have the same, and nobody else may know."""

    quic_keys: tuple[bytes, ...] = field(repr=False)
    """Of 32 octets: the first seals Retry tokens, stateless resets are of the last."""
    mock_key: bytes = field(repr=False)
    """Of 32 octets: what users are shown who do not exist must not tell by which worker."""
    tickets: TicketSeed | None = field(default=None, repr=False)
    """What session tickets are sealed with, where no file has the keys (quic_ticket_keys_file)."""

    def as_body(self) -> Body:
        """As they travel."""
        return {
            "quic_keys": [key.hex() for key in self.quic_keys],
            "mock_key": self.mock_key.hex(),
            "tickets": None if self.tickets is None else [self.tickets[0], *(key.hex() for key in self.tickets[1])],
        }

    @classmethod
    def from_body(cls, body: Body) -> Secrets:
        """The other way. An older gateway says nothing of tickets."""
        tickets = body.get("tickets")
        return cls(
            quic_keys=tuple(bytes.fromhex(key) for key in body["quic_keys"]),
            mock_key=bytes.fromhex(body["mock_key"]),
            tickets=None if tickets is None else (tickets[0], tuple(bytes.fromhex(key) for key in tickets[1:])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """Of worker number ``index`` (from 0) of ``count``."""

    index: int
    count: int
    generation: int
    """Counts the fleets that had these ports one after the other."""
    ini: str
    """The configuration's file."""
    quiet: bool
    """Whether there was a -q."""
    verbose: int
    """How many -v there were."""
    secrets: Secrets
    tcp: tuple[str, ...]
    """Where the supervisor listens for TCP, as a person would write it; empty: nowhere."""
    tcp_port: int
    """The port there, and in the unix socket's name."""
    unix: tuple[str, ...]
    """The unix socket's path, or nothing."""
    udp: tuple[int, ...]
    """Descriptors of this worker's own UDP sockets, one for each address."""
    forward_in: int
    """Descriptor on which datagrams come that another worker has received, but are for this one."""
    forward_out: Mapping[int, int]
    """Descriptors for datagrams that are for others, by their numbers."""
    hand: int
    """Descriptor on which accepted connections come; see :mod:`~pgtrunk_gateway.fleet.hand`."""
    board: int
    """Descriptor of the :class:`~pgtrunk_gateway.fleet.board.Board`."""
    elders: tuple[Outgoing, ...] = ()
    """The fleets that had these ports before, and that are leaving."""
    standing: Body = field(default_factory=dict)
    """What the console has said that a new worker must know."""
    keep: Body = field(default_factory=dict)
    """What parts of the fleet give their counterparts in the worker to begin with, by the parts' names."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All that the worker inherits but the bus."""
        leaving = (each for elder in self.elders for each in elder.outlets.values())
        return (*self.udp, self.forward_in, *self.forward_out.values(), self.hand, self.board, *leaving)

    def as_body(self) -> Body:
        """As it travels."""
        return {
            "index": self.index,
            "count": self.count,
            "generation": self.generation,
            "ini": self.ini,
            "quiet": self.quiet,
            "verbose": self.verbose,
            "secrets": self.secrets.as_body(),
            "tcp": list(self.tcp),
            "tcp_port": self.tcp_port,
            "unix": list(self.unix),
            "udp": list(self.udp),
            "forward_in": self.forward_in,
            # JSON has no numbers for keys.
            "forward_out": {str(index): descriptor for index, descriptor in self.forward_out.items()},
            "hand": self.hand,
            "board": self.board,
            "elders": [elder.as_body() for elder in self.elders],
            "standing": self.standing,
            "keep": self.keep,
        }

    @classmethod
    def from_body(cls, body: Body) -> Charter:
        """The other way."""
        given = {
            "secrets": Secrets.from_body(body["secrets"]),
            "tcp": tuple(body["tcp"]),
            "unix": tuple(body["unix"]),
            "udp": tuple(body["udp"]),
            "forward_out": {int(index): descriptor for index, descriptor in body["forward_out"].items()},
            "elders": tuple(Outgoing.from_body(each) for each in body["elders"]),
        }
        return cls(**(body | given))
