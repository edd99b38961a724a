"""The server's side of the TLS handshake: client certificates that are verified, and tickets without a store.

A ``tls.Context`` that takes the place of the one that aioquic has just set up. It asks for a client certificate where
an authority is given and goes on only with one that this authority accepts; it resumes from sealed tickets, and a
resumed handshake has the identity that the ticket carries, or none is resumed. Early data is readable only where the
policy wants it, the ticket permits it, is fresh, and was not used before (early.py); it may be a replay all the same.
All that goes wrong is raised as ``tls.Alert``, which aioquic sends as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from aioquic import tls
from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # its public home, though it only re-exports it
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from pgtrunk.quic.client_auth import ClientAuthority, VerifiedClient
from pgtrunk_gateway.quic.early import FRESHNESS, MAX_EARLY_DATA, HandshakeCounters, Terms, UsedTickets
from pgtrunk_gateway.quic.sealing import NONCE_SIZE
from pgtrunk_gateway.quic.tickets import MAX_CERTIFICATE, MAX_RENEWAL, NO_AUTHORITY, Ticket, Tickets

__all__ = ["HandshakePolicy", "ServerContext"]


@dataclass(frozen=True, slots=True)
class HandshakePolicy:
    """What every handshake of a listener is held to."""

    tickets: Tickets
    authority: ClientAuthority | None
    """Who may come in; None where clients are not asked for certificates."""
    clock: Callable[[], float]
    """Seconds since 1970: certificates and tickets are about dates."""
    entropy: Callable[[int], bytes]
    """So many random bytes, fit for nonces."""
    early: bool = False
    """Whether tickets permit early data, and early data is taken."""
    used: UsedTickets = field(default_factory=UsedTickets)
    """The tickets that it was taken with."""
    counters: HandshakeCounters = field(default_factory=HandshakeCounters)

    @property
    def fingerprint(self) -> bytes:
        """What a ticket issued under this policy carries, and must carry to be taken."""
        return self.authority.fingerprint if self.authority is not None else NO_AUTHORITY


class ServerContext(tls.Context):
    """One handshake."""

    def __init__(self, stock: tls.Context, policy: HandshakePolicy) -> None:
        """Takes over from ``stock``, a server context that has not seen a message yet."""
        # The initializer of the base is left out on purpose: aioquic has run it, and set the callbacks on top.
        self.__dict__.update(stock.__dict__)
        self.get_session_ticket_cb = self._offered
        self.new_session_ticket_cb = None  # or aioquic would send its own, which nobody could ever open
        self.update_traffic_key_cb = self._install_key
        self._install_stock_key = stock.update_traffic_key_cb
        self._policy = policy
        self._ticket: Ticket | None = None
        self._hello: Buffer | None = None
        self._age: int | None = None
        self._mark = b""
        self._offers_early = False
        self._takes_early = False
        self._tickets = 0
        self._ends: float | None = None
        self.ticket_at: float | None = None
        """When the last ticket was sent, by the policy's clock; None: the client has no use for any."""
        self._claimed: VerifiedClient | None = None
        self._client: VerifiedClient | None = None

    @property
    def peer_certificate(self) -> x509.Certificate | None:
        """The client's certificate, once it is verified and the client has shown that it holds the key."""
        return self._client.certificate if self._client is not None else None

    # Base attributes as properties: each is read by the base at the one moment that matters, and set by it never
    # (the first) or only where we do not want it (the second).

    @property
    def _request_client_certificate(self) -> bool:  # type: ignore[override]
        # Never with an accepted PSK (RFC 8446 section 4.3.2): the ticket has told us who the client is. The base would
        # not send the request then, but wait for the certificate all the same.
        return self._policy.authority is not None and not self._session_resumed

    @property
    def early_data_accepted(self) -> bool:
        """The base takes early data with any PSK that the client has proved to know; whether we do is looked at when it
        says so."""
        return self._takes_early

    @early_data_accepted.setter
    def early_data_accepted(self, accepted: bool) -> None:
        self._offers_early = accepted
        self._takes_early = accepted and self._permits_early()

    @property
    def refuses_early(self) -> bool:
        """Whether there was early data that is not taken. Not known where the ticket was not."""
        return self._offers_early and not self._takes_early

    def _permits_early(self) -> bool:
        policy, ticket = self._policy, self._ticket
        if not policy.early or ticket is None or ticket.early is None or self._age is None:
            return False
        terms = Terms.of(self.alpn_negotiated, self.handshake_extensions)
        if terms is None or not ticket.early.hold_under(terms):
            return False
        now = policy.clock()
        # RFC 8446 section 8.3, less the round trip that the client cannot know of. A replay is as old as it says only
        # for a while.
        if abs(now - ticket.issued - self._age / 1000) > FRESHNESS:
            return False
        # Last, and after the client has shown that it knows the ticket's secret: or whoever has seen a ticket go by
        # could use it up.
        return policy.used.take(self._mark, now)

    def _install_key(
        self, direction: tls.Direction, epoch: tls.Epoch, cipher_suite: tls.CipherSuite, secret: bytes
    ) -> None:
        # Without its key early data is a packet that cannot be decrypted, whatever else happens.
        if epoch is not tls.Epoch.ZERO_RTT or self._takes_early:
            self._install_stock_key(direction, epoch, cipher_suite, secret)

    # Resumption

    def _offered(self, sealed: bytes) -> tls.SessionTicket | None:
        """Opens what the client offers; the base then checks that the client knows its secret."""
        policy = self._policy
        ticket = policy.tickets.open(sealed, now=policy.clock(), authority=policy.fingerprint)
        if ticket is None:
            return None
        self._ticket = ticket
        self._age = self._stated_age(ticket)
        self._mark = sealed[:NONCE_SIZE]
        return tls.SessionTicket(
            age_add=ticket.age_add,
            cipher_suite=tls.CipherSuite(ticket.cipher_suite),
            # Its dates have just been looked at, by our clock; so these leave the base nothing to find by its own.
            not_valid_before=datetime.min.replace(tzinfo=UTC),
            not_valid_after=datetime.max.replace(tzinfo=UTC),
            resumption_secret=ticket.secret,
            server_name="",
            ticket=sealed,
        )

    def _stated_age(self, ticket: Ticket) -> int | None:
        """Returns how old the client says that its ticket is, in milliseconds. The base does not pass it on.

        The one identity and the one binder end the hello (RFC 8446 section 4.2.11): the age, and the lengths of all
        binders and of this one. ``_hello`` has been read to its end.
        """
        hello = self._hello
        if ticket.early is None or hello is None:
            return None
        age_end = hello.tell() - tls.cipher_suite_hash(tls.CipherSuite(ticket.cipher_suite)).digest_size - 3
        obfuscated = int.from_bytes(hello.data_slice(age_end - 4, age_end), "big")
        return (obfuscated - ticket.age_add) % (1 << 32)

    def _server_handle_hello(self, input_buf: Buffer, initial_buf: Buffer, handshake_buf: Buffer) -> None:
        self._hello = input_buf
        super()._server_handle_hello(input_buf, initial_buf, handshake_buf)
        self._hello = None
        ticket = self._ticket if self._session_resumed else None
        if ticket is not None and ticket.certificate is not None:
            self._client = VerifiedClient(x509.load_der_x509_certificate(ticket.certificate), ticket.ends)

    # The client's certificate

    def _server_handle_certificate(self, input_buf: Buffer) -> None:
        # Both hold in the state that leads here: no certificate is waited for before the hello or without an authority.
        assert self.key_schedule is not None
        assert self._policy.authority is not None
        message = tls.pull_certificate(input_buf)
        self.key_schedule.update_hash(input_buf.data)
        chain = [der for der, _ in message.certificates]
        self._claimed = self._policy.authority.verify(chain, now=self._policy.clock())
        self._peer_certificate = self._claimed.certificate
        self._set_state(tls.State.SERVER_EXPECT_CERTIFICATE_VERIFY)

    def _server_handle_certificate_verify(self, input_buf: Buffer) -> None:
        super()._server_handle_certificate_verify(input_buf)
        self._client = self._claimed

    # The end, and the next ticket

    def _server_handle_finished(self, input_buf: Buffer, output_buf: Buffer) -> None:
        super()._server_handle_finished(input_buf, output_buf)
        self._count()
        if self._psk_key_exchange_mode is not None:
            self._issue_ticket(output_buf)

    def _count(self) -> None:
        counters = self._policy.counters
        counters.resumed += self._session_resumed
        counters.full += not self._session_resumed
        counters.early += self._takes_early
        counters.late += self.refuses_early

    def _issue_ticket(self, output_buf: Buffer) -> None:
        policy, now = self._policy, self._policy.clock()
        self.ticket_at = now
        certificate = self.peer_certificate.public_bytes(Encoding.DER) if self.peer_certificate is not None else None
        ends = self._ends = self._ends or self._may_resume_until(now)
        span = policy.tickets.span(now, ends)
        if span < 1 or len(certificate or b"") > MAX_CERTIFICATE:
            return
        early = Terms.of(self.alpn_negotiated, self.handshake_extensions) if policy.early else None
        message = tls.NewSessionTicket(
            ticket_lifetime=int(span),
            ticket_age_add=int.from_bytes(policy.entropy(4), "big"),
            # Tickets of one connection must not have the same secret (RFC 8446 section 4.6.1).
            ticket_nonce=self._tickets.to_bytes(4, "big"),
            max_early_data_size=MAX_EARLY_DATA if early is not None else None,
        )
        self._tickets += 1
        secrets = self._build_session_ticket(message, [])
        ticket = Ticket(
            issued=now,
            expires=now + int(span),
            ends=ends,
            cipher_suite=secrets.cipher_suite,
            age_add=message.ticket_age_add,
            secret=secrets.resumption_secret,
            authority=policy.fingerprint,
            certificate=certificate,
            early=early,
        )
        message.ticket = policy.tickets.seal(ticket, nonce=policy.entropy(NONCE_SIZE))
        tls.push_new_session_ticket(output_buf, message)

    def renew_ticket(self, output_buf: Buffer, policy: HandshakePolicy) -> None:
        """Sends another ticket, under the keys of now. Its end is that of the first: nothing was verified anew."""
        self._policy = replace(self._policy, tickets=policy.tickets, early=policy.early)
        self._issue_ticket(output_buf)

    def _may_resume_until(self, now: float) -> float:
        if self._ticket is not None and self._session_resumed:
            return self._ticket.ends
        return min(now + MAX_RENEWAL, self._client.expires) if self._client is not None else now + MAX_RENEWAL
