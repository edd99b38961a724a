"""All sockets of a fleet, made in order by its supervisor and open until it ends.

TCP's and unix' are the supervisor's alone (:mod:`~pgtrunk_gateway.fleet.acceptor`). Each UDP address has a group of
sockets, one for each worker, in whose order the kernel numbers them: no member of a group may be closed while the
others live. For datagrams that come to the wrong worker all the same, each has a unix socket to which the others write.
"""

from __future__ import annotations

import itertools
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgtrunk_gateway.address import readable
from pgtrunk_gateway.fleet.hand import Hand
from pgtrunk_gateway.fronts.opening import blamed
from pgtrunk_gateway.fronts.socket_file import SocketFile
from pgtrunk_gateway.fronts.tcp import bind_tcp, tcp_tuner
from pgtrunk_gateway.fronts.udp import bind_udp, join, like, steer_all
from pgtrunk_gateway.fronts.unix import bind_unix

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.fleet.inventory import Inventory

__all__ = ["Sockets"]


@dataclass(slots=True)
class Sockets:
    """To be closed."""

    udp: list[list[socket.socket]] = field(default_factory=list)
    """For each worker its own, one for each address."""
    tcp: list[socket.socket] = field(default_factory=list)
    """Listening."""
    unix: socket.socket | None = None
    """Listening."""
    file: SocketFile | None = None
    """The unix socket's."""
    port: int = 0
    """TCP's, which is also in the unix socket's name."""
    forward: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    """For each worker the end that it reads datagrams from, and the one that the others write to."""
    hands: list[Hand] = field(default_factory=list)
    """For each worker the channel on which connections come to it."""
    spare: list[list[socket.socket]] = field(default_factory=list)
    """Members of the UDP group that no worker has as its own, as there were more before: one of them reads each."""
    path: str | None = None
    """The unix socket's; with "@" an abstract one."""
    _late: list[list[socket.socket]] = field(default_factory=list)
    """Of ``udp``, those that are not in their group yet."""

    @classmethod
    async def open(cls, loaded: Loaded, count: int) -> Sockets:
        """For ``count`` workers. Raises :class:`ConfigError` where an address is not to be had, and then leaves nothing
        open."""
        sockets = cls()
        try:
            await sockets._open(loaded, count)
        except BaseException:
            sockets.close()
            raise
        return sockets

    async def _open(self, loaded: Loaded, count: int) -> None:
        config = loaded.config
        # Connections before their workers are there wait in the kernel, whichever front is first.
        if config.quic_enabled:
            with blamed(loaded, "UDP", config.quic_listen_port):
                self.udp = await bind_udp(config.quic_listen_addr, config.quic_listen_port, count)
        else:
            self.udp = [[] for _ in range(count)]
        self.port = config.listen_port
        if config.listen_addr:
            with blamed(loaded, "TCP", self.port):
                tune = tcp_tuner(lambda: config)
                self.tcp = await bind_tcp(config.listen_addr, self.port, shared=config.so_reuseport, tune=tune)
                for sock in self.tcp:
                    sock.listen(config.listen_backlog)
            self.port = self.tcp[0].getsockname()[1]
        if config.unix_socket_dir is not None:
            with blamed(loaded, "unix", self.port):
                self.unix, self.file = bind_unix(
                    config.unix_socket_dir, self.port, mode=config.unix_socket_mode, group=config.unix_socket_group
                )
                self.unix.listen(config.listen_backlog)
                self.path = self.file.path
        self._open_channels(count)

    def _open_channels(self, count: int) -> None:
        for _ in range(count):
            self.hands.append(Hand())
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.forward.append(ends)
            for end in ends:
                end.setblocking(False)

    # -- taken over from another supervisor ----------------------------------------------------------------------------

    @classmethod
    def take_over(cls, inventory: Inventory, count: int) -> Sockets:
        """Those of an inventory, whose descriptors are its own from now on, for ``count`` workers. Until
        :meth:`settle` nothing is different for who has them, too."""
        members = [[socket.socket(fileno=each) for each in own] for own in inventory.udp]
        for sock in itertools.chain.from_iterable(members):
            sock.setblocking(False)
        sockets = cls(udp=members[:count], spare=members[count:], port=inventory.port, path=inventory.path)
        sockets.tcp = [socket.socket(fileno=each) for each in inventory.tcp]
        if inventory.unix is not None:
            sockets.unix = socket.socket(fileno=inventory.unix)
        for _ in range(len(sockets.udp), count):
            # Bound by and by: a socket that nobody reads must not get datagrams.
            sockets._late.append([like(sock) for sock in members[0]])
            sockets.udp.append(sockets._late[-1])
        sockets._open_channels(count)
        return sockets

    def settle(self) -> None:
        """Nobody else reads the sockets from now on. Raises OSError where the group cannot have another size."""
        for own in self._late:
            for sock, member in zip(own, self.udp[0], strict=True):
                join(sock, member)
        self._late = []
        if len(self.udp) + len(self.spare) > 1:
            steer_all(self.udp[0], len(self.udp))

    def own(self) -> None:
        """The unix socket's file is removed with this one from now on."""
        if self.path is not None:
            self.file = SocketFile(self.path)

    def disown(self) -> None:
        """Others have all of them: what listens is closed here, and its name is not ours any more."""
        self.file = None
        self.close_tcp()
        if self.unix is not None:
            self.unix.close()
            self.unix = None

    @property
    def group(self) -> list[list[socket.socket]]:
        """All UDP sockets, in the order of their groups."""
        return [*self.udp, *self.spare]

    def read_by(self, index: int) -> list[socket.socket]:
        """The UDP sockets that worker ``index`` reads: its own, and then others of the group."""
        return [*self.udp[index], *itertools.chain.from_iterable(self.spare[index :: len(self.udp)])]

    # -- where they are, as a person would write it --------------------------------------------------------------------

    @property
    def udp_addresses(self) -> tuple[str, ...]:
        return tuple(readable(sock.getsockname()) for sock in self.udp[0])

    @property
    def tcp_addresses(self) -> tuple[str, ...]:
        return tuple(readable(sock.getsockname()) for sock in self.tcp)

    @property
    def unix_addresses(self) -> tuple[str, ...]:
        return () if self.path is None else (self.path,)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close_tcp(self) -> None:
        """Who connects from now on is refused. Nobody may be accepting any more."""
        for sock in self.tcp:
            sock.close()
        self.tcp = []

    def offer_name(self) -> None:
        """The next gateway may have the unix socket's name."""
        if self.file is not None:
            self.file.offer()

    def close(self) -> None:
        self.close_tcp()
        if self.file is not None:
            self.file.remove()
        if self.unix is not None:
            self.unix.close()
        for sock in itertools.chain.from_iterable(self.group):
            sock.close()
        for ends in self.forward:
            for end in ends:
                end.close()
        for hand in self.hands:
            hand.close()
