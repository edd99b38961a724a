"""Sessions and backends, one by one. PgBouncer calls them clients and servers, and both sockets."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pgtrunk_gateway.console.columns import ints, texts
from pgtrunk_gateway.console.registry import show
from pgtrunk_gateway.pool.backend import BackendState
from pgtrunk_gateway.pool.walsender import Walsender
from pgtrunk_gateway.relay.lifecycle import Lifecycle
from pgtrunk_gateway.relay.replication import ReplicationSession
from pgtrunk_gateway.session.parameters import TRACKED

if TYPE_CHECKING:
    import asyncio

    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.session import ConsoleSession
    from pgtrunk_gateway.console.view import View
    from pgtrunk_gateway.pool.backend import Backend
    from pgtrunk_gateway.pool.pool import Pool

__all__: list[str] = []

_SOCKET: Final = (
    *texts("type user database replication state addr"),
    *ints("port"),
    *texts("local_addr"),
    *ints("local_port"),
    *texts("connect_time request_time"),
    *ints("wait wait_us close_needed"),
    *texts("ptr link"),
    *ints("remote_pid"),
    *texts("tls application_name"),
    *ints("prepared_statements id"),
)
_BUFFERS: Final = ints("recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail")
_OURS: Final = texts("front")

_APPLICATION: Final = TRACKED.index("application_name")
_TESTED: Final = frozenset({BackendState.CHECKING, BackendState.RESETTING, BackendState.RECOVERING})


@show("CLIENTS", (*_SOCKET, *_OURS, *texts("pinned")))
def show_clients(view: View) -> Iterable[Row]:
    for session in _sessions(view):
        if _names(session) is not None:
            yield *_session(session, session.word), session.front, session.pins.words
    for console in list(view.consoles):
        yield *_console(console, view, "idle"), console.front, ""


@show("PINS", (*texts("user database addr"), *ints("port"), *texts("pinned"), *ints("seconds id server_id remote_pid")))
def show_pins(view: View) -> Iterable[Row]:
    """The sessions that keep their backend for something that only it has; see session_state."""
    for session in _sessions(view):
        backend = session.backend
        if session.pins and backend is not None:
            yield (
                *(_names(session) or ("", "")),
                *_address(session.transport.get_extra_info("peername")),
                session.pins.words,
                int(view.now() - session.pinned_at),
                session.id,
                backend.id,
                backend.pid,
            )


@show("SERVERS", _SOCKET)
def show_servers(view: View) -> Iterable[Row]:
    for pool, backend in _backends(view):
        yield _server(pool, backend, view, _state(pool, backend))


@show("SOCKETS", _SOCKET + _BUFFERS + _OURS)
def show_sockets(view: View) -> Iterable[Row]:
    return _sockets(view, busy=False)


@show("ACTIVE_SOCKETS", _SOCKET + _BUFFERS + _OURS)
def show_active_sockets(view: View) -> Iterable[Row]:
    """Those that have something to send, and nobody takes it."""
    return _sockets(view, busy=True)


def _sockets(view: View, *, busy: bool) -> Iterator[Row]:
    for session in _sessions(view):
        if not busy or session.transport.get_write_buffer_size():
            word = "login" if _names(session) is None else "waiting" if session.word == "waiting" else "active"
            yield *_session(session, f"cl_{word}"), *_buffers(session.transport), session.front
    for console in list(view.consoles):
        if not busy or console.transport.get_write_buffer_size():
            yield *_console(console, view, "cl_active"), *_buffers(console.transport), console.front
    for pool, backend in _backends(view):
        if not busy or backend.transport.get_write_buffer_size():
            state = _state(pool, backend).replace("new", "login")
            yield *_server(pool, backend, view, f"sv_{state}"), *_buffers(backend.transport), ""


def _sessions(view: View) -> list[Lifecycle]:
    return sorted(view.context.sessions, key=lambda session: session.id)


def _backends(view: View) -> list[tuple[Pool, Backend]]:
    return [(pool, backend) for pool in view.pools for backend in pool.backends.values()]


def _names(session: Lifecycle) -> tuple[str, str] | None:
    """User and database of one that is logged in, or waits for the first login at the server; else None."""
    if session.admission is not None:
        return session.admission.user, session.admission.database
    pool = session.login.pool if session.login is not None else None
    return None if pool is None else (pool.key.user, pool.key.database)


def _replication(session: Lifecycle) -> str:
    """PgBouncer's word for the kind; also of one that still waits for its server connection."""
    if isinstance(session, ReplicationSession):
        return session.kind.value
    kind = session.login.replication if session.login is not None else None
    return "none" if kind is None else kind.value


def _session(session: Lifecycle, state: str) -> Row:
    backend = session.backend
    return (
        "C",
        *(_names(session) or ("(nouser)", "(nodb)")),
        _replication(session),
        state,
        *_addresses(session.transport),
        _when(session.connect_time),
        _when(session.request_time),
        *divmod(int(session.wait * 1e6), 1_000_000),
        0,
        _pointer(session),
        "" if backend is None else _pointer(backend),
        _peer_pid(session.transport),
        _tls(session.transport, session.front),
        session.application_name,
        session.prepared_statements,
        session.id,
    )


def _console(console: ConsoleSession, view: View, state: str) -> Row:
    ago = view.wall() - view.now()
    return (
        "C",
        console.user,
        # All of its names are one to PgBouncer's tools.
        "pgbouncer",
        "none",
        state,
        *_addresses(console.transport),
        _when(console.since + ago),
        _when(console.asked_at + ago),
        0,
        0,
        0,
        _pointer(console),
        "",
        _peer_pid(console.transport),
        _tls(console.transport, console.front),
        console.application_name,
        0,
        console.id,
    )


def _server(pool: Pool, backend: Backend, view: View, state: str) -> Row:
    ago = view.wall() - view.now()
    holder = backend.holder
    session = holder if isinstance(holder, Lifecycle) else None
    return (
        "S",
        pool.key.user,
        pool.key.database,
        backend.kind.value if isinstance(backend, Walsender) else "none",
        state,
        *_addresses(backend.transport),
        _when(backend.born + ago),
        _when(max(backend.idle_since, backend.born) + ago if session is None else session.request_time),
        0,
        0,
        int(bool(backend.retired)),
        _pointer(backend),
        "" if session is None else _pointer(session),
        backend.pid,
        _tls(backend.transport, ""),
        (backend.profile[_APPLICATION] if backend.profile else None) or "",
        len(backend.replies.prepared),
        backend.id,
    )


def _state(pool: Pool, backend: Backend) -> str:
    """PgBouncer's word for it."""
    if backend.holder is not None:
        return "active"
    if backend.cancels:
        return "being_canceled"
    if backend.state is BackendState.STARTING:
        return "new"
    if backend.state in _TESTED:
        return "tested"
    return "used" if backend in pool.stale else "idle"


def _buffers(transport: asyncio.Transport) -> Row:
    """Only the last is kept count of here: octets that the kernel, or the far end of a stream, has not taken yet."""
    return 0, 0, 0, 0, 0, 0, transport.get_write_buffer_size()


def _addresses(transport: asyncio.Transport) -> tuple[str, int, str, int]:
    return *_address(transport.get_extra_info("peername")), *_address(transport.get_extra_info("sockname"))


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("unix", 0)


def _peer_pid(transport: asyncio.Transport) -> int:
    """Of a client on a unix socket, where the system tells; else 0."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return 0
    try:
        pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except OSError:
        # It is gone by now.
        return 0
    return pid


def _tls(transport: asyncio.Transport, front: str) -> str:
    """Version and cipher, as PgBouncer writes them."""
    if front == "quic":
        return "TLSv1.3/QUIC"
    tls = transport.get_extra_info("ssl_object")
    if tls is None or (cipher := tls.cipher()) is None:
        return ""
    return f"{tls.version()}/{cipher[0]}"


def _pointer(what: object) -> str:
    return f"{id(what):#x}"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
