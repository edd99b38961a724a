"""A session that replicates: its client on one side, a walsender of its own on the other, and all octets between them.

It takes the place of the session that has logged in, and is one to everybody who ends, counts or shows sessions: its
state is LEASED from the first to the last. But nothing of what it says is looked into, and no timeout holds for it:
replication is idle for as long as nobody writes, and is meant to last.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pgtrunk.wire import backend as server
from pgtrunk.wire.startup import PROTOCOL_3_2
from pgtrunk_gateway.relay.admission import Admission
from pgtrunk_gateway.relay.lifecycle import Lifecycle
from pgtrunk_gateway.relay.pausing import SUSPENDED
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.state import Event

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.walsender import Replication
    from pgtrunk_gateway.relay.admission import Client
    from pgtrunk_gateway.relay.passage import Passage

__all__ = ["ReplicationSession", "take_over"]

log = logging.getLogger(__name__)

_TERMS: Final = Terms(pool_mode="session")


def take_over(client: Client, passage: Passage, rest: bytes, *, over: bool) -> None:
    """Goes on with the transport of ``client``; see :class:`~pgtrunk_gateway.relay.passage.Ferry`."""
    assert isinstance(client, Lifecycle)
    session = ReplicationSession(client, passage)
    client.context.session_goes_on(client, session)
    client.login = None
    session.transport.set_protocol(session)
    session.begin(rest)
    if over:
        session.vanished()


class ReplicationSession(Lifecycle):
    """Of ``client``, which has logged in and has no further part in it."""

    backend: Backend | None

    def __init__(self, client: Lifecycle, passage: Passage) -> None:
        super().__init__(client.context, client.front)
        self.id = client.id
        self.connect_time, self._since = client.connect_time, client._since
        self.peer, self.address = client.peer, client.address
        self.transport = client.transport
        self.relay = client.transport.write
        # What the transport has told its protocol so far.
        self._client_full, self._paused = client._client_full, client._paused
        pool = passage.pool
        self._walsender = walsender = passage.walsender
        self.profile = walsender.profile
        self.stats = pool.stats
        self.admission = Admission(
            context=self.context,
            user=passage.user,
            database=passage.database,
            pool=pool,
            place=passage.place,
            key=self.context.cancels.register(self, long=passage.protocol >= PROTOCOL_3_2),
            profile=walsender.profile,
            certain=True,
            terms=_TERMS,
        )
        pool.enter()
        pool.counters.leases += 1
        self.stats.login_count += 1

    @property
    def kind(self) -> Replication:
        return self._walsender.kind

    # -- the beginning -------------------------------------------------------------------------------------------------

    def begin(self, rest: bytes) -> None:
        """Welcomes the client and lets all octets pass; ``rest`` came behind its login."""
        self._handle(Event.ADMITTED)
        self.backend = self._walsender
        self._begun_at = self._time()
        self._handle(Event.GRANTED)
        if self.context.config.log_connections:
            assert self.admission is not None
            name = self.admission
            log.info(
                "%s login attempt: db=%s user=%s tls=%s front=%s replication=%s",
                self, name.database, name.user, self.tls or "no", self.front, self.kind.value,
            )  # fmt: skip
        if rest:
            self.data_received(rest)
        if self.context.suspended and self.backend is not None:
            self.suspend()

    def _send_request(self) -> None:
        """What it got its backend for was its login, and that is answered now."""
        self.transport.write(self._welcome())
        self._walsender.begin(self)
        if self._client_full and self.backend is not None:
            self.backend.pause_reading()

    def _welcome(self) -> bytes:
        assert self.admission is not None
        key = self.admission.key
        welcome = [server.authentication_ok()]
        reported = self._walsender.replies.parameters
        welcome += [server.parameter_status(name, value) for name, value in reported.items()]
        welcome.append(server.backend_key_data(key.pid, key.secret))
        if (message := self.context.config.login_notify_message) is not None:
            welcome.append(server.notice("00000", message))
        welcome.append(server.ready())
        return b"".join(welcome)

    # -- the octets ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.backend is None:
            # It has ended, and nobody wants to know.
            return
        self._walsender.send(data)
        if self._walsender.terminated:
            self._reason = "client close request"
            self._handle(Event.LEFT)

    def pause_writing(self) -> None:
        """The client does not read: nor does Postgres send."""
        self._client_full = True
        if self.backend is not None:
            self.backend.pause_reading()

    def resume_writing(self) -> None:
        self._client_full = False
        if self.backend is not None and not self._paused & SUSPENDED:
            self.backend.resume_reading()

    # -- the end, and what does not lead to it -------------------------------------------------------------------------

    def _give_up(self, *, cancel: bool) -> None:
        self.backend = None
        if not self._walsender.between:
            # The client would take what it is told for a part of what it has not got the rest of.
            self._error = None
        self._walsender.leave("replication client was closed")

    def reconfigure(self) -> None:
        """No term holds for it. Where its server is another one now, the pool ends it."""
