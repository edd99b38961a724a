"""`pgtrunk sidecar`: listens, says so, and ends by a signal.

SIGTERM takes no new drivers and waits for those there are, at most ``--shutdown-timeout``; a second one waits for
nothing, and neither does SIGINT. Either way the exit code is 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from typing import TYPE_CHECKING

from pgtrunk.arguments import add_certificates
from pgtrunk.errors import UsageError
from pgtrunk.manager import StreamManager
from pgtrunk.sidecar.endpoint import parse_endpoint
from pgtrunk.sidecar.loops import run
from pgtrunk.sidecar.metrics import metrics_endpoint, serve_metrics
from pgtrunk.sidecar.server import Sidecar

if TYPE_CHECKING:
    import argparse

__all__ = ["register"]

logger = logging.getLogger("pgtrunk.sidecar")

EPILOG = (
    "Signals: SIGTERM takes no new drivers and waits for those there are, SIGINT waits for nothing; twice: now. "
    "Exit codes: 0 ended by a signal; 1 a place or a certificate file cannot be used; 2 the command line is wrong."
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to those of `pgtrunk`."""
    parser = subparsers.add_parser(
        "sidecar",
        help="listen locally for drivers of any language, and carry each as a stream to a gateway",
        epilog=EPILOG,
    )
    parser.add_argument(
        "gateway", metavar="HOST[:PORT][,...]", help="the gateway, port 6432 unless given; or several, with commas"
    )
    _add_listening(parser)
    _add_trunk(parser)
    add_certificates(parser)
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help="log warnings alone")
    volume.add_argument("-v", "--verbose", action="store_true", help="log what happens to connections, too")
    parser.set_defaults(run=_run)


def _add_listening(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="PLACE",
        action="append",
        required=True,
        help="a folder for the unix socket .s.PGSQL.5432 (FOLDER:PORT for another name), or HOST:PORT; may be repeated",
    )
    parser.add_argument(
        "--dangerously-allow-remote-clients",
        action="store_true",
        help="listen beyond loopback too: whoever gets there is heard, and what is said is not encrypted",
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="tell Prometheus there what the trunk does, at /metrics; needs pgtrunk[prometheus]",
    )
    parser.add_argument(
        "--shutdown-timeout", metavar="SECONDS", type=float, default=60.0, help="wait of SIGTERM, default: 60"
    )


def _add_trunk(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the trunk")
    group.add_argument(
        "--min-connections", metavar="N", type=int, default=0, help="QUIC connections to keep open, default: 0"
    )
    group.add_argument(
        "--load-balance-hosts",
        choices=("random", "disable"),
        default="random",
        help="spread connections over the gateways, or use the first of the list that is alive, default: random",
    )
    group.add_argument("--connections", metavar="N", type=int, default=4, help="QUIC connections at most, default: 4")
    group.add_argument(
        "--streams-per-connection", metavar="N", type=int, default=100, help="sessions on each at most, default: 100"
    )
    group.add_argument(
        "--acquire-timeout", metavar="SECONDS", type=float, default=10.0, help="wait for a stream, default: 10"
    )
    group.add_argument(
        "--max-idle", metavar="SECONDS", type=float, default=5.0, help="keep others unused so long, default: 5"
    )
    group.add_argument(
        "--max-lifetime",
        metavar="SECONDS",
        type=lifetime,
        default=3600.0,
        help="replace a connection that is so old, never: 0, default: 3600",
    )
    group.add_argument(
        "--keepalive", metavar="SECONDS", type=float, default=2.0, help="silence before a PING, default: 2"
    )
    group.add_argument(
        "--connect-timeout", metavar="SECONDS", type=float, default=5.0, help="for a QUIC connection, default: 5"
    )
    group.add_argument(
        "--transport",
        choices=("auto", "quic", "tcp"),
        default="auto",
        help="QUIC, TLS over TCP, or TCP where UDP is not answered (auto), default: auto",
    )
    group.add_argument(
        "--tcp-connections", metavar="N", type=int, default=100, help="sessions over TCP at most, default: 100"
    )
    group.add_argument("--qlog", metavar="DIR", help="write a log of each QUIC connection's packets there (qlog)")
    group.add_argument(
        "--congestion-floor", metavar="N", type=int, default=0, help="datagrams that losses never take, default: 0"
    )
    group.add_argument(
        "--redundancy",
        choices=("auto", "off"),
        default="auto",
        help="whether small messages are sent twice while packets are lost, default: auto",
    )
    group.add_argument(
        "--path-mtu",
        choices=("auto", "off"),
        default="auto",
        help="whether datagrams grow as far as the path carries them, default: auto",
    )
    group.add_argument(
        "--early-data",
        choices=("login", "off"),
        default="login",
        help="whether a session may begin before the handshake is complete (0-RTT), default: login",
    )
    group.add_argument(
        "--tickets",
        metavar="WHERE",
        default="memory",
        help="keep tickets for shorter handshakes: memory, none, or a file of mode 0600, default: memory",
    )


def lifetime(text: str) -> float | None:
    return float(text) or None


def _run(arguments: argparse.Namespace) -> int:
    level = logging.WARNING if arguments.quiet else logging.DEBUG if arguments.verbose else logging.INFO
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pgtrunk").setLevel(level)
    if not 0 <= arguments.shutdown_timeout < float("inf"):
        raise UsageError(f"--shutdown-timeout {arguments.shutdown_timeout:g}: seconds are needed, and not for ever")
    _raise_file_limit()
    run(_serve(arguments))
    return 0


def _raise_file_limit() -> None:
    """Each driver is an open file, and for the sake of select(), which is not used here, few are allowed at first."""
    try:
        import resource
    except ImportError:
        return  # on Windows they are not counted
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS says "unlimited", and means less.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _manager(arguments: argparse.Namespace) -> StreamManager:
    return StreamManager(
        arguments.gateway,
        load_balance_hosts=arguments.load_balance_hosts,
        min_connections=arguments.min_connections,
        connections=arguments.connections,
        streams_per_connection=arguments.streams_per_connection,
        acquire_timeout=arguments.acquire_timeout,
        max_idle=arguments.max_idle,
        max_lifetime=arguments.max_lifetime,
        connect_timeout=arguments.connect_timeout,
        keepalive=arguments.keepalive,
        transport=arguments.transport,
        tcp_connections=arguments.tcp_connections,
        ca_file=arguments.ca,
        server_name=arguments.server_name,
        cert_file=arguments.cert,
        key_file=arguments.key,
        dangerously_skip_certificate_verification=arguments.dangerously_skip_certificate_verification,
        congestion_floor=arguments.congestion_floor,
        redundancy=arguments.redundancy,
        qlog_dir=arguments.qlog,
        path_mtu=arguments.path_mtu,
        early_data=arguments.early_data,
        tickets=None if arguments.tickets == "none" else arguments.tickets,
    )


async def _serve(arguments: argparse.Namespace) -> None:
    endpoints = [parse_endpoint(text) for text in arguments.listen]
    metrics = metrics_endpoint(arguments.metrics)
    signals = _signals()
    async with (
        _manager(arguments) as manager,
        Sidecar(manager, endpoints, allow_remote=arguments.dangerously_allow_remote_clients) as sidecar,
        contextlib.AsyncExitStack() as stack,
    ):
        stack.enter_context(serve_metrics(metrics, manager))
        places = " and ".join(map(str, sidecar.endpoints))
        logger.info("listening at %s, for the gateway %s", places, arguments.gateway)
        first = await signals.get()
        sidecar.stop_accepting()
        if first == signal.SIGTERM and sidecar.sessions:
            logger.info("waiting for %d sessions, at most %g s", sidecar.sessions, arguments.shutdown_timeout)
            await _drain(sidecar, signals, arguments.shutdown_timeout)
        logger.info("shutting down, %d sessions are left", sidecar.sessions)


def _signals() -> asyncio.Queue[int]:
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    # Windows has no such handlers; Ctrl-C ends asyncio.run there, and the sidecar with it.
    if sys.platform != "win32":
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, signals.put_nowait, signum)
    return signals


async def _drain(sidecar: Sidecar, signals: asyncio.Queue[int], timeout: float) -> None:
    waits = [asyncio.ensure_future(sidecar.wait_drained()), asyncio.ensure_future(signals.get())]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
