"""Another path: a server follows its client to the address that it has moved to; a client asks for a way by another
socket, and goes there once it was answered. RFC 9000 sections 8.2 and 9.

aioquic finds paths, challenges the one in use, keeps to three times what came by it until it is validated, and goes
back to the last one that was, when nobody answers. What it leaves out is here:

Rule 1: what is known of a path (window, round trip time, size of datagrams) is forgotten when another one is validated,
        unless only the peer's port differs: a NAT that has forgotten a binding changes nothing else (section 9.4).
Rule 2: what was sent by the old path and is not acknowledged by then is sent again at once. Its loss says nothing of
        the new one's load.
Rule 3: while the peer calls us by the same connection id as before, its new address may be the doing of somebody on the
        way who has forwarded a copy: the old path is asked too, and the peer goes back to it if it is there
        (section 9.3.3). A peer that has changed its id has moved for certain.
Rule 4: a challenge that was smaller than ``BASE``, by the limit before validation, proves no path: another one of that
        size follows (section 8.2.1).
Rule 5: paths besides the one in use are forgotten after a while; with one that is left the short ways are open again.
Rule 6: probing packets are not in flight to congestion control, as in probing.py.
Rule 7: a handshake proves its path only while there is no other: who has read our part of it at one address can send
        the rest from that of somebody who has asked for nothing, and aioquic would take that for a proof of the latter
        (section 8.1). A client stays where it is for so long (section 9). One that cannot is challenged like any other
        if it has answered from where it was, and else has to begin anew.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from aioquic.quic.connection import QuicNetworkPath
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilderStop

from .hooks import nothing
from .pmtu import BASE
from .probing import Probing

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic._buffer import Buffer
    from aioquic.quic.connection import NetworkAddress, QuicReceiveContext

    from .short import ShortBuilder

__all__ = ["Migrating"]

LEAST_PROBE = 64
"""Octets of a datagram with a challenge or a response."""

ASK_AGAIN = 0.25
"""Seconds after which a path that has not answered is asked once more, and twice as many before the next time. Nothing
is known of its round trip time; more where that of the old path says so."""

FORGET = 1.0
"""Seconds after which paths that are not in use are forgotten; longer where probe timeouts are."""


class Migrating(Probing):
    """The part of a connection that goes from one path to another."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.moves = 0
        """Times that another path has taken the place of the one in use, and was validated."""
        self.on_moved: Callable[[], object] = nothing
        """Called after each."""
        self._active: QuicNetworkPath | None = None
        self._sole: NetworkAddress | None = None
        """Where the handshake has proved the peer to be."""
        self._is_in_doubt = False
        """Whether it can prove nothing more."""
        self._has_begun = False
        """Whether it was over before the last datagram came."""
        self._proved: NetworkAddress | None = None
        self._active_from = 0
        self._called = self.host_cid
        self._candidate: QuicNetworkPath | None = None
        self._ask_at = self._forget_at = inf
        self._wait = ASK_AGAIN
        self._asked_besides: list[QuicNetworkPath] = []

    @property
    def proved_address(self) -> NetworkAddress | None:
        """Where the peer is for certain, though it may have moved since; None: nothing is known for certain yet."""
        return next((path.addr for path in self._network_paths if path.is_validated), None)

    # -- a client's other path

    def try_path(self, addr: NetworkAddress, now: float) -> bool:
        """Ask by another path whether it leads to the peer: if an answer comes, it is the one in use from then on.

        One at a time. False where that cannot be: no handshake yet, or no connection id left for this path alone
        (section 9.5).
        """
        if not (self._handshake_confirmed and self._peer_cid_available):
            return False
        self.drop_path()
        path = self._candidate = QuicNetworkPath(addr)
        path.peer_cid = self._peer_cid_available.pop(0)
        self._add_network_path(path)
        self._wait = max(ASK_AGAIN, self._probe_timeout())
        self._ask_at = now + self._wait
        self._set_chores()
        return True

    def drop_path(self) -> None:
        """Ask by the other path no more."""
        path, self._candidate, self._ask_at = self._candidate, None, inf
        if path is not None and path in self._network_paths:
            self._forget_path(path)
        self._set_chores()

    def _forget_path(self, path: QuicNetworkPath) -> None:
        self._network_paths.remove(path)
        if path.peer_cid is not None:
            self._retire_peer_cid(path.peer_cid)
            path.peer_cid = None

    # -- what comes

    def _note_paths(self, now: float) -> None:
        """A datagram was taken in that was not on the usual path, or not a usual one."""
        if not self._network_paths:
            return
        path = self._network_paths[0]
        if not self._has_begun:
            self._doubt_others()
            if self._handshake_confirmed:
                self._begin()
        if len(self._network_paths) > 1 and self._forget_at == inf:
            self._forget_at = now + max(FORGET, 3 * self._probe_timeout())
            self._set_chores()
        before, self._active = self._active, path
        called, self._called = self._called, self.host_cid
        if before is path or before is None:
            if before is None:
                self._proved = path.addr
            return
        self._active_from = self._packet_number
        if path.is_validated:
            self._arrive(path, now)
            return
        if not is_same_host(path.addr, self._proved):
            self.begin_search()
        if before.is_validated and called == self.host_cid:
            self._ask_besides(before)

    def _doubt_others(self) -> None:
        """Rule 7; all the paths of a client are its own doing."""
        paths = self._network_paths
        # Which of our sockets they lead to is no matter of the peer's.
        peers = {tuple(path.addr) for path in paths}
        self._is_in_doubt = self._is_in_doubt or (len(peers) > 1 and not self._is_client)
        if self._is_in_doubt:
            for path in paths:
                path.is_validated = path.is_validated and tuple(path.addr) == self._sole
        elif paths[0].is_validated:
            self._sole = tuple(paths[0].addr)

    def _begin(self) -> None:
        """The handshake is over. Nobody is told so whose client was nowhere that is known."""
        self._has_begun = True
        if self._is_in_doubt and self._sole is None:
            self._events.clear()
            self._close_event = ConnectionTerminated(
                error_code=QuicErrorCode.NO_VIABLE_PATH,
                frame_type=QuicFrameType.PADDING,
                reason_phrase="the client was at several addresses during the handshake, and at none for certain",
            )
            self._close_end()

    def _handle_path_response_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        before = self._network_paths[0]
        was_valid = before.is_validated
        super()._handle_path_response_frame(context, frame_type, buf)
        path = self._network_paths[0]
        if path is not before:
            # A client's: aioquic has gone over to it.
            self._active, self._active_from = path, self._packet_number
            self._candidate, self._ask_at = None, inf
            self._forget_path(before)
            self.send_ping(0)
            self._arrive(path, context.time, sends_again=True)
        elif path.is_validated and not was_valid and path is self._active:
            self._arrive(path, context.time)
            if self._challenge_was_small:
                self._ask_besides(path)

    def _arrive(self, path: QuicNetworkPath, now: float, *, sends_again: bool = False) -> None:
        """The path in use is validated, and was not before, or was not in use."""
        if path.addr == self._proved:
            return  # it was left, and nobody was found at the other one
        is_same = is_same_host(path.addr, self._proved)
        self._proved = path.addr
        self.moves += 1
        if sends_again or not is_same:
            self._send_all_again()
        if not is_same:
            # RFC 9002 section 6.2.2: no sample, and better than nothing.
            self._loss._rtt_initial = min(max(now - self._challenged_at, 0.001), 1.0)
            self._begin_congestion(self._active_from)
            self.begin_search()
        self.on_moved()

    def _send_all_again(self) -> None:
        """What left by another path than the one in use is not waited for: rule 2."""
        old = [packet for packet in self._app_space.sent_packets.values() if packet.packet_number < self._active_from]
        self._loss._on_packets_lost(congestion_event=False, now=0.0, packets=old, space=self._app_space)
        self._loss._pto_count = 0

    # -- probing packets

    def _ask_besides(self, path: QuicNetworkPath) -> None:
        """Challenge a path by a datagram of its own."""
        self._asked_besides.append(path)
        self._probe_due = True

    def _add_probe(self, datagrams: list[tuple[bytes, NetworkAddress]], now: float) -> None:
        super()._add_probe(datagrams, now)
        asked, self._asked_besides = self._asked_besides, []
        for path in asked:

            def write(builder: ShortBuilder, path: QuicNetworkPath = path) -> None:
                self._write_path_challenge_frame(builder, path)

            datagrams.append(self._probing_datagram(path, self._peer_cid.cid, BASE, write, now))

    def _send_probing_frames(self, network_path: QuicNetworkPath, now: float) -> list[tuple[bytes, NetworkAddress]]:
        """As aioquic's, but for rule 6."""
        path, size = network_path, BASE
        if not path.is_validated and (path.local_challenge_sent or not self._is_client):
            size = min(size, 3 * path.bytes_received - path.bytes_sent)
        if size < LEAST_PROBE or path.peer_cid is None:
            return []

        def write(builder: ShortBuilder) -> None:
            with suppress(QuicPacketBuilderStop):
                if not (path.is_validated or path.local_challenge_sent):
                    self._write_path_challenge_frame(builder, path)
                while path.remote_challenges:
                    self._write_path_response_frame(builder, path.remote_challenges[0])
                    path.remote_challenges.popleft()

        self._challenged_at = now
        return [self._probing_datagram(path, path.peer_cid.cid, size, write, now)]

    def _probing_datagram(
        self, path: QuicNetworkPath, peer_cid: bytes, size: int, write: Callable[[ShortBuilder], None], now: float
    ) -> tuple[bytes, NetworkAddress]:
        datagram = self._lone_datagram(size, peer_cid, write, now)
        path.bytes_sent += len(datagram)
        return datagram, path.addr

    # -- timers

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        super().handle_timer(now)
        if self._network_paths and self._network_paths[0] is not self._active:
            self._note_paths(now)

    def _do_chores(self, now: float) -> None:
        super()._do_chores(now)
        if now >= self._ask_at and self._candidate is not None:
            self._candidate.local_challenge_sent = False
            self._wait *= 2
            self._ask_at = now + self._wait
        if now >= self._forget_at:
            self._forget_at = inf
            active = self._network_paths[0]
            if active.is_validated:
                for path in self._network_paths[1:]:
                    if path is not self._candidate:
                        self._forget_path(path)
            if len(self._network_paths) > 1:
                self._forget_at = now + FORGET
        self._set_chores()

    def _set_chores(self) -> None:
        self._chores_at = min(self.search.at, self._ask_at, self._forget_at)


def is_same_host(one: NetworkAddress, other: NetworkAddress | None) -> bool:
    """Whether two paths differ in the peer's port at most."""
    if other is None:
        return True
    return bool(one[0] == other[0]) and getattr(one, "local", None) == getattr(other, "local", None)
