"""Sessions over QUIC: each bidirectional stream that a client opens is one."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pgtrunk.errors import CertificateFileError, UsageError
from pgtrunk.quic.config import ByteBudget, QuicLimits
from pgtrunk.quic.control import Goaway
from pgtrunk.quic.qlog import QlogFolder
from pgtrunk_gateway.address import readable
from pgtrunk_gateway.fleet.forwarding import Inlet, Outlets
from pgtrunk_gateway.fleet.steering import LET_GO, elders_of
from pgtrunk_gateway.fronts.lasting_key import quic_keys
from pgtrunk_gateway.fronts.reporting import StageReports
from pgtrunk_gateway.fronts.ticket_keys import ticket_sealer
from pgtrunk_gateway.quic.server import Identity, Listener, ServerConfig, listen, listen_on
from pgtrunk_gateway.quic.steering import Place
from pgtrunk_gateway.quic.ticket_keys import TicketKeys
from pgtrunk_gateway.quic.tickets import Tickets

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk.quic.driver import ConnectionDriver
    from pgtrunk.quic.transport import StreamTransport
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.errors import ConfigError
    from pgtrunk_gateway.fleet.fleet import Fleet
    from pgtrunk_gateway.fronts.front import SessionFactory
    from pgtrunk_gateway.quic.early import HandshakeCounters
    from pgtrunk_gateway.quic.elders import Elders
    from pgtrunk_gateway.quic.server import Acceptor

__all__ = ["QuicFront"]

log = logging.getLogger(__name__)

_KEY_OCTETS = 32
_LETS_GO = 100.0
"""Seconds that the supervisor has to leave the sockets to the worker: in an online restart all workers get theirs at
once, and so it takes as long as the slowest of them to start."""


class QuicFront:
    """The UDP sockets of ``quic_listen_addr`` and ``quic_listen_port``, and the connections behind them."""

    name = "quic"

    def __init__(
        self,
        listener: Listener,
        budget: ByteBudget,
        inlet: Inlet | None = None,
        outlets: Outlets | None = None,
        elders: Elders | None = None,
        *,
        ticket_keys: TicketKeys,
    ) -> None:
        self.listener = listener
        self.ticket_keys = ticket_keys
        """What seals session tickets where quic_ticket_keys_file is not set."""
        self.budget = budget
        """What all connections hold unread, and may hold (quic_memory_budget)."""
        self.inlet, self.outlets = inlet, outlets
        """In a fleet: datagrams from and to other workers."""
        self.elders = elders
        self.reports = StageReports()
        """What clients are told of their queries."""
        self.addresses = [readable(address) for address in listener.addresses]
        self.port: int = listener.addresses[0][1]

    @classmethod
    async def listen(cls, loaded: Loaded, session: SessionFactory, fleet: Fleet | None = None) -> QuicFront:
        """A worker of a ``fleet`` has its sockets from the supervisor.

        Raises :class:`ConfigError` for certificates that do not load, OSError where an address is not to be had.
        """
        config = loaded.config
        budget = ByteBudget(config.quic_memory_budget)
        keys = fleet.charter.secrets.quic_keys if fleet is not None else quic_keys(config)
        seed = fleet.charter.secrets.tickets if fleet is not None else None
        ticket_keys = (
            TicketKeys.begin(os.urandom(_KEY_OCTETS), time.time()) if seed is None else TicketKeys(seed[1], seed[0])
        )
        server = replace(
            _server_config(config, budget, keys),
            ticket_keys=ticket_sealer(loaded) or ticket_keys,
            qlog=_qlog(loaded),
        )
        reports = StageReports()

        def accept(transport: StreamTransport) -> asyncio.BaseProtocol:
            reports.begin(transport.get_extra_info("quic_connection"))
            return session("quic")

        try:
            if fleet is None:
                front = cls(
                    await listen(
                        config.quic_listen_addr,
                        config.quic_listen_port,
                        config=server,
                        accept=accept,
                    ),
                    budget,
                    ticket_keys=ticket_keys,
                )
            else:
                front = await cls._join(fleet, server, accept, ticket_keys)
        except CertificateFileError as error:
            raise _blamed(loaded, error) from error
        front.reports = reports
        reports.drivers = lambda: front.drivers
        for warning in dict.fromkeys(front.listener.warnings):
            log.warning("quic: %s", warning)
        return front

    @classmethod
    async def _join(cls, fleet: Fleet, server: ServerConfig, accept: Acceptor, ticket_keys: TicketKeys) -> QuicFront:
        charter = fleet.charter
        answer = await fleet.member.bus.ask(LET_GO, timeout=_LETS_GO)
        elders = elders_of(charter.elders)
        if elders is not None:
            elders.begins({bytes.fromhex(each): (at[0], at[1]) for each, at in answer.get("begin", {}).items()})
        outlets = Outlets({index: socket.socket(fileno=end) for index, end in charter.forward_out.items()})
        try:
            listener = await listen_on(
                [socket.socket(fileno=descriptor) for descriptor in charter.udp],
                config=server,
                accept=accept,
                place=Place(charter.index, charter.count, charter.generation),
                forward=outlets.send,
                elders=elders,
            )
        except BaseException:
            outlets.close()
            if elders is not None:
                elders.close()
            raise
        inlet = Inlet(socket.socket(fileno=charter.forward_in), listener.take)
        return cls(listener, server.budget, inlet, outlets, elders, ticket_keys=ticket_keys)

    @property
    def connections(self) -> int:
        """QUIC connections whose handshake is complete."""
        return self.listener.connections

    @property
    def drivers(self) -> list[ConnectionDriver]:
        """The connections themselves, for whoever wants to see more of them."""
        return self.listener.drivers

    @property
    def half_open(self) -> int:
        """Handshakes in progress."""
        return self.listener.half_open

    @property
    def streams(self) -> int:
        """Open streams; each is a session, or about to become one."""
        return self.listener.streams

    @property
    def resets(self) -> int:
        """Packets of connections that are gone, which were answered by a stateless reset; a total."""
        return self.listener.counters.resets

    @property
    def handshakes(self) -> HandshakeCounters:
        """What completed handshakes were; totals."""
        return self.listener.handshakes

    @property
    def passed_on(self) -> int:
        """Datagrams that other workers were handed; a total."""
        return self.listener.counters.passed_on

    @property
    def dropped(self) -> int:
        """Of these, those that there was no room for."""
        return self.outlets.dropped if self.outlets is not None else 0

    def prepare(self, loaded: Loaded) -> Callable[[], None]:
        """For new connections: certificates and the keys of tickets as they are now, and other limits. Without
        quic_cert_file all stays."""
        config = loaded.config
        if config.quic_cert_file is None or config.quic_key_file is None:
            return lambda: None
        try:
            identity = Identity.load(
                config.quic_cert_file, config.quic_key_file, config.quic_client_ca_file, now=time.time()
            )
        except CertificateFileError as error:
            raise _blamed(loaded, error) from error
        tickets = Tickets(ticket_sealer(loaded) or self.ticket_keys)
        return lambda: self._apply(config, identity, tickets)

    def _apply(self, config: Config, identity: Identity, tickets: Tickets) -> None:
        for warning in identity.warnings:
            log.warning("quic: %s", warning)
        self.budget.limit = config.quic_memory_budget
        self.listener.reload_certificates(identity)
        self.listener.reload_limits(_limits(config), config.quic_retry)
        self.listener.reload_tickets(tickets, early=config.quic_early_data != "off")

    def retire(self) -> list[bytes]:
        """See :meth:`Listener.retire`: others have the sockets. Streams of connections that are here are served on."""
        return self.listener.retire()

    async def unretire(self) -> None:
        """They have not, after all."""
        await self.listener.unretire()

    def send_away(self, until: float | None) -> None:
        """Asks the clients that can hear it (GOAWAY) to be gone ``until`` this time of the loop; None: no limit. Also
        those that are just coming."""
        loop = asyncio.get_running_loop()

        def farewell() -> Goaway:
            return Goaway(None if until is None else until - loop.time())

        self.listener.farewell = farewell
        for driver in self.drivers:
            driver.control.send(farewell())

    def drain(self) -> None:
        self.stop_accepting()

    def stop_accepting(self) -> None:
        self.listener.stop_accepting()

    async def close(self) -> None:
        self.reports.close()
        self.listener.close()
        await self.listener.wait_closed()
        if self.inlet is not None:
            self.inlet.close()
        if self.outlets is not None:
            self.outlets.close()
        if self.elders is not None:
            self.elders.close()


def _blamed(loaded: Loaded, error: CertificateFileError) -> ConfigError:
    return loaded.at(error.setting or "quic_cert_file").error(str(error))


def _qlog(loaded: Loaded) -> QlogFolder | None:
    if loaded.config.quic_qlog_dir is None:
        return None
    try:
        return QlogFolder(loaded.config.quic_qlog_dir, setting="quic_qlog_dir")
    except UsageError as error:
        raise loaded.at("quic_qlog_dir").error(str(error)) from error


def _server_config(config: Config, budget: ByteBudget, keys: tuple[bytes, ...]) -> ServerConfig:
    assert config.quic_cert_file is not None and config.quic_key_file is not None
    return ServerConfig(
        cert_file=config.quic_cert_file,
        key_file=config.quic_key_file,
        client_ca_file=config.quic_client_ca_file,
        keys=keys,
        budget=budget,
        limits=_limits(config),
        retry=config.quic_retry,
        early_data=config.quic_early_data != "off",
    )


def _limits(config: Config) -> QuicLimits:
    return QuicLimits(
        idle_timeout=config.quic_idle_timeout,
        max_streams=config.quic_max_streams,
        connection_budget=config.quic_connection_budget,
        congestion_floor=config.quic_congestion_floor,
        path_mtu=config.quic_path_mtu,
        redundancy=config.quic_redundancy,
    )
