"""`StreamManager`: what an application holds. It checks what it is given, and hands on to the trunk and the adapter."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

from pgtrunk.address import parse_gateways
from pgtrunk.balancer import Balancer
from pgtrunk.errors import TrunkClosed, UsageError
from pgtrunk.options import (
    pool_rules,
    qlog_folder,
    require_choice,
    require_positive_int,
    require_seconds,
    ticket_store,
)
from pgtrunk.refusal import Limit
from pgtrunk.stages import Stages
from pgtrunk.tcp.fallback import Fallback
from pgtrunk.telemetry import RedundancyStats
from pgtrunk.trunk import CANCEL_TIMEOUT, Trunk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    import asyncpg

    from pgtrunk.asyncpg_adapter import AsyncpgAdapter
    from pgtrunk.quic.pmtu import PathMtu
    from pgtrunk.quic.redundancy import Redundancy
    from pgtrunk.tcp.fallback import Transport
    from pgtrunk.telemetry import TrunkStats
    from pgtrunk.trunk import Opened

__all__ = ["EarlyData", "StreamManager"]

EarlyData: TypeAlias = Literal["off", "login", "read-only"]
P = TypeVar("P", bound=asyncio.BaseProtocol)

LoadBalanceHosts: TypeAlias = Literal["random", "disable"]


class StreamManager:
    """A trunk to a gateway, or to several: many Postgres sessions as streams over a few QUIC connections.

    ``gateway`` is ``host``, ``host:port`` or ``[v6]:port``; the port is 6432 unless given. Several are a list with
    commas, as libpq's of hosts, or a sequence; all of them, and all addresses of their names, must lead to the same
    databases. Names are resolved for each connection, and addresses of both families raced (RFC 8305).
    ``load_balance_hosts``: ``"random"`` spreads connections evenly over the gateways that are alive, beginning at
    random, and ``"disable"`` uses the first of the list that is alive; as in libpq, but for the default. Connections
    return to where they should be, one at a time, when a gateway is back.

    ``min_connections``: QUIC connections that are opened by `open`, in the background, and kept open without sessions
    too; one that is lost is replaced within seconds.
    ``connections``: QUIC connections at most. One is opened when a session needs it, and closed again when it has
    carried none for ``max_idle`` seconds, which are 5 at most. Beyond ``connections`` there are others for a moment
    only: one while another is being replaced, and one for each that does not answer.
    ``streams_per_connection``: sessions at most on each; never more than the gateway allows, less a few kept for
    cancels. A new session goes to the first connection with room, another connection is opened only when all are full,
    and when all ``connections`` are, callers wait in order.
    ``acquire_timeout``: seconds that a caller waits for a stream.
    ``max_lifetime``: seconds, less up to a tenth at random, after which a connection is replaced: another is opened,
    idle sessions of pools move to it, others stay until they end; None: never.
    ``connect_timeout``: seconds that one attempt to open a QUIC connection may take.
    ``keepalive``: seconds of silence after which a connection with sessions asks whether the gateway is there; never
    more than a third of the idle timeout (10 s, or the gateway's ``quic_idle_timeout``). A connection is suspect when
    an answer, to this or to anything else, is overdue by a second: it gets no more sessions, idle ones of pools move
    away, and all is as it was when it answers after all. With the default that is 3 s after a path died, at the latest.

    ``transport``: how the gateway is reached. ``"auto"``: by QUIC, and where UDP is not answered, by TLS over TCP at
    the same port, if the gateway has it there (``client_tls_sslmode``); QUIC is tried again from time to time, and then
    sessions move back. ``"quic"`` and ``"tcp"``: so and no other way.
    ``tcp_connections``: sessions over TCP at most; each has a TCP connection of its own.

    ``ca_file`` (a path) or ``ca_data`` (PEM) hold the CAs that the gateway's certificate must lead to; the system's are
    used where neither is given. ``server_name`` is the name that the certificate must carry, the host unless given.
    ``cert_file`` and ``key_file`` are the client's own certificate, for a gateway that asks for one.
    ``dangerously_skip_certificate_verification=True`` talks to whoever answers: every password goes to them.

    ``congestion_floor``: datagrams below which losses never take the congestion window, for paths that are known to
    carry them; 0 is RFC 9002.
    ``redundancy``: ``"auto"`` sends small messages twice, some milliseconds apart, while the way to the gateway loses
    packets, so that one that is lost costs no further round trip; ``"off"`` never does. The gateway has its own option
    for its answers (``quic_redundancy``).
    ``path_mtu``: ``"auto"`` lets datagrams grow from 1200 octets up to 1472 as far as probes prove that the path
    carries them, where much is sent; ``"off"`` never does. The gateway has its own option (``quic_path_mtu``).
    ``early_data``: what may be said before the gateway has said anything. ``"login"``: a session's StartupMessage, in
    the first packets of a QUIC connection that is resumed (0-RTT), and with it the first message of a login by SCRAM
    where the last one was by SCRAM, which proves nothing yet. ``"read-only"``: the queries of `fetch_early`, too.
    ``"off"``: nothing. The gateway has its own option for 0-RTT (``quic_early_data``).
    ``tickets``: where the gateway's session tickets are kept, which make a handshake on the way back shorter, and early
    data possible. ``"memory"``: with this manager. A path: in that file, for all processes of this user; it gets mode
    0600, is refused where others can use it, and what it holds is worth some hours at most. None: nowhere; each
    handshake is a full one.
    ``qlog_dir``: a directory in which each QUIC connection writes a log of its packets, for qvis; None: nowhere.
    ``timings``: whether each query is timed from its first octet to the end of its answer, for `stats`.

    A manager belongs to the event loop on which it was opened, and to that process: `UsageError` otherwise.
    """

    def __init__(
        self,
        gateway: str | Sequence[str],
        *,
        load_balance_hosts: LoadBalanceHosts = "random",
        min_connections: int = 0,
        connections: int = 4,
        streams_per_connection: int = 100,
        acquire_timeout: float = 10.0,
        max_idle: float = 5.0,
        max_lifetime: float | None = 3600.0,
        connect_timeout: float = 5.0,
        keepalive: float = 2.0,
        transport: Transport = "auto",
        tcp_connections: int = 100,
        ca_file: str | None = None,
        ca_data: bytes | None = None,
        server_name: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        dangerously_skip_certificate_verification: bool = False,
        congestion_floor: int = 0,
        redundancy: Redundancy = "auto",
        path_mtu: PathMtu = "auto",
        early_data: EarlyData = "login",
        tickets: str | PathLike[str] | None = "memory",
        timings: bool = True,
        qlog_dir: str | PathLike[str] | None = None,
    ) -> None:
        require_seconds(connect_timeout=connect_timeout, keepalive=keepalive)
        require_positive_int(tcp_connections=tcp_connections)
        require_choice("auto", "quic", "tcp", transport=transport)
        require_choice("auto", "off", redundancy=redundancy)
        require_choice("auto", "off", path_mtu=path_mtu)
        require_choice("random", "disable", load_balance_hosts=load_balance_hosts)
        require_choice("off", "login", "read-only", early_data=early_data)
        addresses = parse_gateways(gateway)
        self._address = addresses[0]
        self._gateway = ",".join(map(str, addresses))
        self._rules = pool_rules(
            connections=connections,
            streams_per_connection=streams_per_connection,
            min_connections=min_connections,
            acquire_timeout=acquire_timeout,
            max_idle=max_idle,
            max_lifetime=max_lifetime,
        )
        self._acquire_timeout = acquire_timeout
        self._early_data = early_data
        self._verified = not dangerously_skip_certificate_verification
        # Imported here, not above: `import pgtrunk` alone stays quick.
        from pgtrunk.quic.client_config import ClientConfig
        from pgtrunk.quic.config import QuicLimits

        self._config = ClientConfig(
            limits=QuicLimits(
                congestion_floor=congestion_floor,
                max_streams=0,
                redundancy=redundancy,
                path_mtu=path_mtu,
                keepalive=keepalive,
            ),
            ca_file=ca_file,
            ca_data=ca_data,
            server_name=server_name,
            cert_file=cert_file,
            key_file=key_file,
            verify=self._verified,
            timings=timings,
            early=early_data != "off",
            tickets=ticket_store(tickets),
            qlog=qlog_folder(qlog_dir),
        )
        self._dialer = Fallback.of(
            transport,
            addresses,
            self._config,
            tcp_connections=tcp_connections,
            timeout=connect_timeout,
            spreads=load_balance_hosts == "random",
        )
        self._trunk: Trunk | None = None
        self._balancer: Balancer | None = None
        self._adapter: AsyncpgAdapter | None = None

    async def open(self) -> None:
        """Makes the manager ready on the running loop. Connects to nothing yet, unless ``min_connections``
        asks for it, and waits for nothing; a second call does nothing.

        Raises `CertificateFileError` for files that cannot be read or do not fit together.
        """
        if self._trunk is None:
            self._dialer.check()
            self._trunk = self._make_trunk()
            self._trunk.start()
            self._balancer = Balancer(self._trunk, self._dialer.main)
            self._balancer.start()
        self._trunk.check()

    async def close(self) -> None:
        """Ends all sessions and connections, within a few seconds; afterwards everything raises `TrunkClosed`.

        Callers that wait for a stream get `TrunkClosed` at once, and sessions `SessionLost` once what they have written
        is sent: to end a session in peace, close it first. Cancelling the caller does not stop it.
        """
        if self._trunk is None:
            self._trunk = self._make_trunk()
        # Before anything is stopped: another loop's is not ours to stop.
        self._trunk.check_place()
        if self._balancer is not None:
            self._balancer.stop()
        self._dialer.stop()
        await self._trunk.close()
        await self._dialer.wait_stopped()
        if self._balancer is not None:
            await self._balancer.wait_stopped()

    def _make_trunk(self) -> Trunk:
        trunk = Trunk(self._gateway, self._rules, self._dialer.dial)
        self._dialer.follow(trunk.lines)
        return trunk

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self, dsn: str | None = None, **arguments: Any) -> asyncpg.Connection:
        """Opens a session and returns an `asyncpg.Connection`. The arguments are those of `asyncpg.connect`.

        The DSN's form is ``postgresql://user:password@/database``. What would say where to connect and how is refused
        with `UsageError`: ``host``, ``port``, ``loop``, ``direct_tls``, ``passfile``, an ``ssl`` context, and the
        DSN's ``ssl*`` options; but ``sslmode`` is ignored as long as the trunk keeps what it promises. PGUSER,
        PGPASSWORD, PGDATABASE and a service's user, password and dbname apply as in asyncpg; PGHOST, PGPORT,
        PGSSLMODE, PGPASSFILE and ~/.pgpass do not.

        ``timeout`` (60 s) bounds everything together; ``acquire_timeout`` bounds the wait for a stream alone. The
        stricter one decides, and the error names it. Raises `AcquireTimeout`, `GatewayUnreachable`,
        `CertificateError`, `LoginTimeout`, `TrunkClosed`, and what asyncpg raises. A session whose connection is lost
        says so by `asyncpg.ConnectionDoesNotExistError`, caused by `SessionLost`; but one that is lost before the
        handshake of its connection was complete is opened again within ``timeout``: nothing has happened.
        """
        return await self._asyncpg().connect(dsn, arguments)

    def create_pool(self, dsn: str | None = None, **arguments: Any) -> asyncpg.Pool:
        """Returns an `asyncpg.Pool` whose connections are sessions of this trunk: ``async with`` or ``await`` it.

        The arguments are those of `asyncpg.create_pool`, less ``connect``; the DSN is that of `connect`. Unless
        ``reset`` is given, a connection that comes back is not reset: behind a gateway that pools transactions,
        asyncpg's own reset is a round trip that resets somebody else's backend (``reset=None`` asks for it).
        """
        return self._asyncpg().create_pool(dsn, arguments)

    async def fetch_early(
        self, query: str, *arguments: str | None, user: str, database: str | None = None, timeout: float = 60.0
    ) -> list[tuple[str | None, ...]]:
        """Runs one query that only reads, in a session of its own, and returns its rows.

        All of it leaves in the session's first flight, so the rows are there one round trip later, also where the QUIC
        connection is only being resumed: then it is early data. Such data can be captured and sent again, so that a
        stranger may have the query run once more; by ``early_data="read-only"`` the application declares that this does
        no harm. A gateway with ``quic_early_data = read-only`` runs it in a READ ONLY transaction that is rolled back;
        one that is not to, or does not see that it only reads, runs it when the handshake is complete.

        For logins without a proof: ``auth_type = trust``, or ``cert`` with a certificate of ours. Arguments ($1) and
        values are texts, as Postgres writes them. ``timeout`` (seconds) bounds everything. Raises `UsageError` without
        that option, `LoginRefused` (also where a password is asked for), `LoginTimeout`, what `open_stream` raises, and
        for an error of the query what asyncpg would raise.
        """
        if self._early_data != "read-only":
            raise UsageError(f'early_data={self._early_data!r}: fetch_early needs early_data="read-only"')
        self._open_trunk()
        from pgtrunk.early_fetch import fetch_early

        login = {"user": user, "database": user if database is None else database}
        return await fetch_early(self.open_numbered, query, arguments, **login, timeout=timeout)

    async def open_stream(self, factory: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """Opens a stream for any `asyncio.Protocol`, and returns its transport and protocol.

        It counts as a session, from now until ``connection_lost``. Raises as `connect` does, less asyncpg's errors.
        With ``early_data``, ``transport.get_extra_info("early")`` may be true: then the connection is still at its
        handshake, and what is written leaves as early data, which a gateway begins a login with and does not act on. If
        nobody answers then, the stream is lost with an error that is ``retry_safe``: open another, as `connect` does.
        """
        opened = await self.open_numbered(factory)
        return opened.transport, opened.protocol

    async def open_numbered(self, factory: Callable[[], P], *, link: int | None = None) -> Opened[P]:
        """The same, and tells the number of the QUIC connection; given as ``link``, it is where a cancel has to go.

        A cancel is outside the cap, or it would wait for the very query that it is to end. It may take `CANCEL_TIMEOUT`
        in all; `SessionLost` where that connection is gone.
        """
        trunk = self._open_trunk()
        name, value = (
            ("acquire_timeout", self._acquire_timeout) if link is None else ("the time for a cancel", CANCEL_TIMEOUT)
        )
        return await trunk.open_stream(factory, Limit(name, value, trunk.loop.time() + value), link=link)

    @property
    def gateway(self) -> str:
        """The gateway, or the list of them, as it was given."""
        return self._gateway

    def stats(self) -> TrunkStats:
        """Returns what the trunk is doing and what it has done; after `close` too, and from any thread."""
        if self._trunk is None:
            raise self._not_open()
        config, trunk = self._config, self._trunk
        stages = Stages.of(trunk.counters.acquire_waits, config.stages)
        return replace(
            trunk.stats(),
            gateways=self._dialer.gateways(),
            tcp=self._dialer.stats(),
            redundancy=RedundancyStats(**asdict(config.paths.figures())),
            stages=stages,
        )

    def __repr__(self) -> str:
        return f"<StreamManager {self._gateway} {'not open' if self._trunk is None else self._trunk.summary}>"

    def _open_trunk(self) -> Trunk:
        if self._trunk is None:
            raise self._not_open()
        self._trunk.check()
        return self._trunk

    def _not_open(self) -> TrunkClosed:
        return TrunkClosed(
            f"the trunk to {self._gateway} is not open: use `async with StreamManager(...)`, or `await manager.open()`"
        )

    def _asyncpg(self) -> AsyncpgAdapter:
        trunk = self._open_trunk()
        if self._adapter is None:
            # asyncpg is imported by those who use it: a trunk can carry other protocols too.
            from pgtrunk.asyncpg_adapter import AsyncpgAdapter

            self._adapter = AsyncpgAdapter(
                trunk,
                self._address,
                acquire_timeout=self._acquire_timeout,
                verified=self._verified,
                anticipates=self._early_data != "off",
            )
        return self._adapter
