"""Whether a trunk's next connection goes by QUIC or by TLS over TCP, which ``transport`` says: quic, tcp, or auto.

With auto both are raced, as happy eyeballs does with addresses (`pgtrunk.quic.racing`): QUIC is alone for `HEAD_START`,
for longer where it has been heard, and not at all where it is known to be blocked.

    nothing comes back over UDP, or the kernel says that it cannot   TCP begins; who is ready first, has won
    QUIC is answered, but not accepted (a certificate, above all)    that is the error: TCP would hide it
    neither is answered                                              the error of both; nothing is learned of UDP
    TCP has won                                                      UDP is blocked (`Blockage`)

"Port unreachable" is no reason to give up either: many firewalls say so, and a gateway may have QUIC switched off. A
gateway that restarts says so by TCP as well. While there are carriers, a task looks whether UDP is let through again;
then they ask to be left, as a gateway does, and sessions move to QUIC.
"""

from __future__ import annotations

import asyncio
import logging
from random import random
from typing import TYPE_CHECKING, Any, Final, Literal

from pgtrunk.dialer import Dialer
from pgtrunk.errors import CertificateError, GatewayUnreachable, TrunkError, UdpBlocked
from pgtrunk.tcp.blockage import Blockage
from pgtrunk.tcp.cap import Cap
from pgtrunk.tcp.dialer import Knocker, TcpDialer
from pgtrunk.tcp.failures import TlsFailed, TlsNotOffered
from pgtrunk.tcp.way import Way
from pgtrunk.telemetry import TcpStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgtrunk.address import Address
    from pgtrunk.connection import Connection
    from pgtrunk.lines import Lines
    from pgtrunk.quic.client_config import ClientConfig
    from pgtrunk.telemetry import GatewayStats

__all__ = ["Fallback", "Transport"]

Transport = Literal["auto", "quic", "tcp"]

logger = logging.getLogger("pgtrunk")

HEAD_START: Final = 1.0
"""Seconds for which QUIC is alone where nothing is heard of it; at most a third of ``connect_timeout``."""

_LATE: Final = 2 / 3
"""The same where TCP is not expected to help, as a share of ``connect_timeout``."""

KNOCK: Final = 1.0
"""Seconds that an error waits at most to say whether the gateway answers over TCP."""


class Fallback:
    """Opens the connections of one trunk, by the ways that it may take."""

    def __init__(
        self,
        transport: Transport,
        quic: Dialer,
        tcp: TcpDialer,
        knocker: Knocker,
        *,
        timeout: float,
        head_start: float = HEAD_START,
    ) -> None:
        self.quic = quic
        self.tcp = tcp
        self.blockage = Blockage()
        self._transport = transport
        self._knocker = knocker
        self._timeout = timeout
        self._head_start = min(head_start, timeout / 3)
        self._fallbacks = 0
        self._returns = 0
        self._watch: asyncio.Task[None] | None = None
        self._first_look: Way | None = None
        """What the watch began with, which may be stopped before its first step."""
        self._doubts: set[asyncio.Task[None]] = set()
        self._has_stopped = False
        self._lacks_tls = False
        """Whether the gateways, as far as is known, have no TLS over TCP. Then they are asked late: a crowd that waits
        for a busy gateway would else have it turn down all of them by TCP, too."""

    @classmethod
    def of(
        cls,
        transport: Transport,
        addresses: Sequence[Address],
        config: ClientConfig,
        *,
        tcp_connections: int,
        timeout: float,
        spreads: bool,
    ) -> Fallback:
        """With a dialer for each way."""
        quic = Dialer(addresses, config, timeout=timeout, spreads=spreads)
        tcp = TcpDialer(addresses, config, Cap(tcp_connections), timeout=timeout, spreads=spreads)
        return cls(transport, quic, tcp, Knocker(addresses, config, timeout=timeout), timeout=timeout)

    def check(self) -> None:
        """Raises `CertificateFileError` for files that cannot be read or do not fit together, and `UsageError`."""
        self.main.check()

    def stats(self) -> TcpStats:
        return TcpStats(
            in_use=self.tcp.cap.used,
            max=self.tcp.cap.most,
            udp_blocked=int(self.blockage.is_there),
            fallbacks=self._fallbacks,
            returns=self._returns,
        )

    @property
    def main(self) -> Dialer:
        """QUIC's, but where TCP is the only way."""
        return self.tcp if self._transport == "tcp" else self.quic

    def gateways(self) -> tuple[GatewayStats, ...]:
        """What is known of each by the main way."""
        return self.main.stats()

    async def dial(self, at: Address | None = None) -> Connection:
        """Opens a connection within ``connect_timeout``; given an address, there, which a gateway has named.

        Raises `GatewayUnreachable`, `UdpBlocked`, `CertificateError` and `CertificateFileError`. Cancelled, it leaves
        nothing behind.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout
        if self._transport == "quic":
            return await self._by_quic(at, deadline)
        if self._transport == "tcp":
            return await self.tcp.dial(at, deadline=deadline)
        return await self._by_either(at, deadline)

    def lost(self, connection: Connection, error: BaseException) -> bool:
        """A connection has ended by itself. Returns whether there is another address to go to at once."""
        return self.quic.lost(connection, error) or self.tcp.lost(connection, error)

    def told_to_leave(self, connection: Connection) -> None:
        """A gateway asks for a connection to be left."""
        self.quic.told_to_leave(connection)
        self.tcp.told_to_leave(connection)

    def follow(self, lines: Lines) -> None:
        """Has a trunk tell what becomes of its connections."""
        self.tcp.follow(lines)
        self.quic.follow(lines)
        lines.on_lost, lines.on_leave = self.lost, self.told_to_leave

    def stop(self) -> None:
        """Ends the looks at UDP. Dials that are under way are ended by who has begun them."""
        self._has_stopped = True
        for task in self._looking:
            task.cancel()
        if self._first_look is not None:
            self._first_look.give_up()

    async def wait_stopped(self) -> None:
        """Waits until nothing is left of that."""
        if looking := self._looking:
            await asyncio.wait(looking)
        if self._first_look is not None:
            await self._first_look.end()

    @property
    def _looking(self) -> set[asyncio.Task[None]]:
        return {*self._doubts, *([] if self._watch is None else [self._watch])}

    # -- quic

    async def _by_quic(self, at: Address | None, deadline: float) -> Connection:
        way = Way(self.quic, at)
        try:
            await self._open_quic(way, at, deadline)
        except BaseException:
            await way.end()
            raise
        assert way.connection is not None
        return way.connection

    async def _open_quic(self, way: Way, at: Address | None, deadline: float) -> None:
        """Whoever calls it ends the way where it raises, also where that is for what it still has to wait for."""
        loop = asyncio.get_running_loop()
        opening = loop.create_task(way.open(deadline), name=f"pgtrunk way {self.quic}")
        # Where this is cancelled, nobody asks how it has failed.
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        knock: asyncio.Task[bool] | None = None
        try:
            await asyncio.wait([opening], timeout=self._head_start)
            if not opening.done():
                # Already now, so that the error need not wait for it.
                knock = loop.create_task(self._knocker.knock(at, deadline + KNOCK), name="pgtrunk knock")
            try:
                await opening
            except TrunkError as exc:
                if not way.is_unanswered(exc):
                    raise
                if not await (knock or self._knocker.knock(at, loop.time() + KNOCK)):
                    raise
                raise UdpBlocked(
                    f"UDP to {self.quic} is not answered, and TCP there is: let UDP through, or use transport=auto "
                    f"({exc})"
                ) from exc
        finally:
            opening.cancel()
            if knock is not None:
                knock.cancel()
                await asyncio.wait([knock])

    # -- auto

    async def _by_either(self, at: Address | None, deadline: float) -> Connection:
        from pgtrunk.quic.racing import race

        quic, tcp = Way(self.quic, at), Way(self.tcp, at)
        left = [tcp, quic] if self.blockage.is_there and not self._lacks_tls else [quic, tcp]

        def following() -> Way | None:
            # An answer over UDP that is no connection is a matter of its own.
            return left.pop(0) if left and (quic.error is None or quic.is_unanswered(quic.error)) else None

        try:
            alone = self._timeout * _LATE if self._lacks_tls else self._head_start
            outcome = await race(following, lambda way: way, lambda _: alone, deadline=deadline)
            winner = None if outcome.winner is None else outcome.winner.connection
            self._lacks_tls = winner is not tcp and (self._lacks_tls or isinstance(tcp.error, TlsNotOffered))
            if winner is quic:
                await tcp.end()
                self._believe(quic.connection)
            elif winner is tcp and (quic.error is None or quic.is_unanswered(quic.error)):
                await self._fall_back(quic)
            else:
                raise self._failure(quic, tcp)
        except BaseException:
            await asyncio.gather(quic.end(), tcp.end())
            raise
        assert winner is not None
        assert winner.connection is not None
        return winner.connection

    def _believe(self, connection: Any) -> None:
        """QUIC has won; by a ticket perhaps, without an answer yet."""
        if not connection.is_early:
            self._answered()
        if not connection.is_early or self._has_stopped:
            return
        task = asyncio.get_running_loop().create_task(self._doubt(connection), name=f"pgtrunk doubt {self.quic}")
        self._doubts.add(task)
        task.add_done_callback(self._doubts.discard)

    async def _doubt(self, connection: Any) -> None:
        """Has an early connection end that is not answered while TCP is. Nothing that was said on it has had an effect,
        and its sessions are opened again."""
        await asyncio.sleep(self._head_start)
        if not self._is_in_doubt(connection):
            return
        tcp = Way(self.tcp, None)
        tcp.begin(asyncio.get_running_loop().time() + self._timeout)
        try:
            if await tcp.succeeds() and self._is_in_doubt(connection):
                self._found()
                connection.driver.abandon(UdpBlocked(f"UDP to {self.quic} is not answered, and TCP there is"))
        finally:
            await tcp.end()

    @staticmethod
    def _is_in_doubt(connection: Any) -> bool:
        return connection.is_early and connection.is_alive and not connection.is_heard

    def _found(self) -> None:
        if self.blockage.found(asyncio.get_running_loop().time()):
            self._fallbacks += 1
            logger.warning(
                "%s: UDP is not answered, but TCP is: sessions go over TLS over TCP, at most %d of them "
                "(tcp_connections), until UDP is let through",
                self.tcp,
                self.tcp.cap.most,
            )

    async def _fall_back(self, quic: Way) -> None:
        """TCP has been faster."""
        self._found()
        if (self._watch is None or self._watch.done()) and not self._has_stopped:
            # What QUIC is still about is the first look.
            look, self._first_look = self._look(quic), quic
            self._watch = asyncio.get_running_loop().create_task(look, name=f"pgtrunk look at UDP {self.tcp}")
        else:
            await quic.end()

    def _failure(self, quic: Way, tcp: Way) -> TrunkError:
        if quic.error is None or tcp.error is None or str(quic.error) == str(tcp.error):
            error = quic.error or tcp.error
            assert error is not None
            return error
        for each in (quic.error, tcp.error):
            if isinstance(each, CertificateError):
                return each
        if isinstance(tcp.error, TlsNotOffered):
            words = (
                f"UDP to {self.tcp} is not answered, and TCP there does not offer TLS: let UDP through, or set "
                "client_tls_sslmode=require, client_tls_cert_file and client_tls_key_file in the gateway's ini file"
            )
            return _caused(UdpBlocked(words), quic.error)
        words = f"{quic.error}; over TCP: {tcp.error}"
        kind = UdpBlocked if isinstance(tcp.error, TlsFailed) else GatewayUnreachable
        return _caused(kind(words), quic.error)

    # -- the way back

    async def _look(self, way: Way) -> None:
        """Until UDP is answered, or nobody is left whom that would help."""
        loop = asyncio.get_running_loop()
        try:
            while not (way.is_begun and await way.succeeds()):
                if way.is_begun:
                    self.blockage.still_there(loop.time(), random())
                await asyncio.sleep(self.blockage.retry_at - loop.time())
                if not self.tcp.cap.carriers or not self.blockage.is_there:
                    return
                way = Way(self.quic, None)
                way.begin(loop.time() + self._timeout)
            self._answered()
        finally:
            await way.end()

    def _answered(self) -> None:
        lasted = self.blockage.over(asyncio.get_running_loop().time())
        if lasted is None:
            return
        self._returns += 1
        logger.info("%s: UDP is answered, after %.0f s: new sessions go over QUIC again", self.tcp, lasted)
        for carrier in list(self.tcp.cap.carriers):
            carrier.ask_to_leave("UDP is let through again")


def _caused(error: TrunkError, cause: BaseException) -> TrunkError:
    error.__cause__ = cause
    return error
