"""Two TLS 1.3 contexts with nothing between them but bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioquic import tls
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.packet import QuicTransportParameters, push_quic_transport_parameters

from pgtrunk_gateway.quic.sealing import Sealer
from pgtrunk_gateway.quic.server_tls import HandshakePolicy, ServerContext
from pgtrunk_gateway.quic.tickets import Tickets

if TYPE_CHECKING:
    from helpers.certificates import Identity
    from pgtrunk.quic.client_auth import ClientAuthority

Keys = list[tuple[tls.Direction, tls.Epoch]]
EPOCHS = (tls.Epoch.INITIAL, tls.Epoch.HANDSHAKE, tls.Epoch.ONE_RTT)


@dataclass
class Clock:
    """Seconds since 1970, moved by hand."""

    now: float

    def __call__(self) -> float:
        return self.now


def policy(authority: ClientAuthority | None, clock: Clock, key: bytes = b"k" * 32) -> HandshakePolicy:
    """A policy whose randomness is not random, so that tests repeat."""
    return HandshakePolicy(Tickets(Sealer([key], "tickets")), authority, clock, lambda size: b"\x01" * size)


@dataclass
class TlsPair:
    """One handshake between a stock client and our server, run by ``shake``."""

    client: tls.Context
    server: ServerContext
    tickets: list[tls.SessionTicket] = field(default_factory=list)
    server_keys: Keys = field(default_factory=list)

    @classmethod
    def build(
        cls,
        identity: Identity,
        held_to: HandshakePolicy,
        *,
        client: Identity | None = None,
        ticket: tls.SessionTicket | None = None,
        alpn: str = "postgresql",
        streams: int = 100,
    ) -> TlsPair:
        """``streams``: what the server's transport parameters allow, as one of the limits that they have."""
        keys: Keys = []
        stock = tls.Context(is_client=False, alpn_protocols=[alpn], max_early_data=0xFFFFFFFF)
        stock.handshake_extensions = [(tls.ExtensionType.QUIC_TRANSPORT_PARAMETERS, transport_parameters(streams))]
        stock.certificate, stock.certificate_private_key = identity.certificate, identity.key
        stock.update_traffic_key_cb = lambda direction, epoch, suite, secret: keys.append((direction, epoch))
        asker = tls.Context(is_client=True, alpn_protocols=[alpn], verify_mode=0, server_name="localhost")
        asker.session_ticket = ticket
        if client is not None:
            asker.certificate, asker.certificate_private_key = client.certificate, client.key
            asker.certificate_chain = list(client.chain)
        pair = cls(asker, ServerContext(stock, held_to), server_keys=keys)
        asker.new_session_ticket_cb = pair.tickets.append
        return pair

    def shake(self) -> TlsPair:
        """Runs the handshake to its end; raises the alert of either side."""
        to_server = say(self.client, {tls.Epoch.INITIAL: b""})
        for _ in range(2):
            to_server = say(self.client, say(self.server, to_server))
        assert self.client.state is tls.State.CLIENT_POST_HANDSHAKE
        assert self.server.state is tls.State.SERVER_POST_HANDSHAKE
        return self

    @property
    def ticket(self) -> tls.SessionTicket:
        (ticket,) = self.tickets
        return ticket


def transport_parameters(streams: int) -> bytes:
    """Those of a server that allows so many streams."""
    buffer = Buffer(capacity=256)
    push_quic_transport_parameters(buffer, QuicTransportParameters(initial_max_streams_bidi=streams))
    return buffer.data


def say(context: tls.Context, heard: dict[tls.Epoch, bytes]) -> dict[tls.Epoch, bytes]:
    """Gives a context what the other one said, and returns its answer, epoch by epoch."""
    buffers = {epoch: Buffer(capacity=65536) for epoch in EPOCHS}
    for data in heard.values():
        context.handle_message(data, buffers)
    return {epoch: buffer.data for epoch, buffer in buffers.items() if buffer.tell()}
