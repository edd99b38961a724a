"""Where a client keeps session tickets between connections: in memory, or in a file that other processes share.

By gateway, a few for each, the newest used first. A ticket is used once: whoever takes one has it alone, so that
observers cannot tell by it which connections are one client's (RFC 8446 appendix C.4). Losing one costs a full
handshake and nothing else, so no trouble with a file is an error: it is warned of once, and there is no ticket.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import json
import logging
import os
import stat
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aioquic.tls import CipherSuite, SessionTicket

from pgtrunk.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows: there, the last of two writers wins, and the other one's ticket is lost
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FileTickets", "Kept", "MemoryTickets", "TicketStore"]

logger = logging.getLogger("pgtrunk.quic")

MOST_TICKETS = 8
"""Kept for one gateway: as many connections can come back at once with a shortened handshake."""

MOST_GATEWAYS = 64
MOST_OCTETS = 4 << 20
"""Of a file that is read at all."""

TRIES, PAUSE = 10, 0.0005
"""How often, and how many seconds apart, a file is found locked before one goes without: others take some 0.2 ms."""

FORMAT = "pgtrunk session tickets 1"


@dataclass(frozen=True, slots=True)
class Kept:
    """A ticket, and what else its user must know."""

    ticket: SessionTicket
    alpn: str
    """The protocol that early data with it must be in."""
    at: str
    """The address of the gateway that gave it."""
    until: float
    """Seconds since 1970: what descends from it is not used after this, for the certificate that the gateway has shown
    ends then."""

    def is_good(self, now: float) -> bool:
        """Whether it can be used at all."""
        return now < min(self.until, self.ticket.not_valid_after.timestamp())


class TicketStore:
    """Tickets in memory, and what all stores have in common."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Kept]] = {}
        self._doubted: set[str] = set()

    def take(self, gateway: str, at: str, now: float) -> Kept | None:
        """Return a good ticket for a gateway, which is gone from here; None where there is none.

        The newest one from the address ``at``, or else the newest: gateways of one name may have keys in common.
        """
        return _take(self._kept, gateway, at, now)

    def put(self, gateway: str, kept: Kept, now: float) -> None:
        """Keep a ticket."""
        _add(self._kept, gateway, kept, now)

    def doubt(self, gateway: str) -> None:
        """A connection that was taken for open at once did not come to be: the next ones are waited for."""
        self._doubted.add(gateway)

    def trust(self, gateway: str) -> None:
        """The gateway has answered."""
        self._doubted.discard(gateway)

    def is_doubted(self, gateway: str) -> bool:
        """Whether a connection is to be waited for, even where a ticket would let it begin at once."""
        return gateway in self._doubted


MemoryTickets = TicketStore


def _take(store: dict[str, list[Kept]], gateway: str, at: str, now: float) -> Kept | None:
    """Remove and return the best ticket."""
    good = [each for each in store.pop(gateway, ()) if each.is_good(now)]
    if not good:
        return None
    best = max(range(len(good)), key=lambda index: (good[index].at == at, index))
    taken = good.pop(best)
    if good:
        store[gateway] = good
    return taken


def _add(store: dict[str, list[Kept]], gateway: str, kept: Kept, now: float) -> None:
    """Add a ticket; drop what is too much, or of no use any more."""
    mine = [each for each in store.pop(gateway, ()) if each.is_good(now)]
    store[gateway] = [*mine, kept][-MOST_TICKETS:]  # at the end, as the gateway that was used last
    while len(store) > MOST_GATEWAYS:
        del store[next(iter(store))]


class FileTickets(TicketStore):
    """Tickets in a file of mode 0600, replaced as a whole with each change.

    Each is looked for in the file itself, so that all processes of a user have them; a file named beside it (.lock)
    keeps two from taking the same one. The event loop waits for that no longer than some milliseconds: who finds it
    locked for so long goes without.
    """

    def __init__(self, path: str) -> None:
        """Raise UsageError for a file that others could read, or that could never be written."""
        super().__init__()
        self._path = os.path.abspath(os.path.expanduser(path))
        self._warned: set[str] = set()
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise UsageError(f'tickets="{path}": there is no directory "{folder}"')
        with contextlib.suppress(FileNotFoundError):
            reason = _refusal(os.lstat(self._path))
            if reason is not None:
                raise UsageError(f'tickets="{path}": {reason}')

    def take(self, gateway: str, at: str, now: float) -> Kept | None:
        """Return a ticket as any store does; nobody else has it then."""
        taken = None

        def change(store: dict[str, list[Kept]]) -> bool:
            nonlocal taken
            taken = _take(store, gateway, at, now)
            return taken is not None

        return taken if self._change(change) else None

    def put(self, gateway: str, kept: Kept, now: float) -> None:
        """Keep a ticket, if the file can be written."""

        def change(store: dict[str, list[Kept]]) -> bool:
            for name in [name for name, each in store.items() if not any(one.is_good(now) for one in each)]:
                del store[name]
            _add(store, gateway, kept, now)
            return True

        self._change(change)

    def _change(self, change: Callable[[dict[str, list[Kept]]], bool]) -> bool:
        """Read, change and replace the file; False where that was not to be done, or cannot."""
        try:
            with self._locked():
                store = self._read()
                if not change(store):
                    return False
                self._write(store)
                return True
        except BlockingIOError:
            return False
        except OSError as exc:
            self._warn(f"cannot be used: {(exc.strerror or str(exc)).lower()}")
            return False

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if fcntl is None:
            yield
            return
        descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> dict[str, list[Kept]]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0))
        except FileNotFoundError:
            return {}
        with open(descriptor, "rb") as file:
            reason = _refusal(os.fstat(descriptor))
            if reason is not None:
                raise OSError(errno.EPERM, reason)
            data = file.read(MOST_OCTETS + 1)
        try:
            return _decode(data)
        except (ValueError, TypeError, KeyError, binascii.Error, OverflowError, RecursionError):
            self._warn("holds no session tickets that can be read, and is written anew")
            return {}

    def _write(self, store: dict[str, list[Kept]]) -> None:
        new = f"{self._path}.{os.getpid()}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)  # left by one who had our pid and was killed
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(_encode(store))
            os.replace(new, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning(
                'the file of session tickets "%s" (tickets) %s; handshakes are made in full', self._path, what
            )


def _lock(descriptor: int) -> None:
    """Lock a file; raise BlockingIOError where others have it all the time."""
    assert fcntl is not None
    for _ in range(TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(PAUSE)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _refusal(found: os.stat_result) -> str | None:
    """Return why a file is not one for secrets."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if os.name != "posix":
        return None
    if found.st_uid != os.geteuid():
        return f"it belongs to the user {found.st_uid}, and we are {os.geteuid()}"
    mode = stat.S_IMODE(found.st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"others than its owner can use it (mode {mode:04o}), and a ticket is a secret: chmod 600"
    return None


def _encode(store: dict[str, list[Kept]]) -> bytes:
    gateways = {name: [_entry(kept) for kept in each] for name, each in store.items()}
    return json.dumps({"format": FORMAT, "gateways": gateways}, separators=(",", ":")).encode()


def _entry(kept: Kept) -> dict[str, Any]:
    ticket = kept.ticket
    return {
        "ticket": b64encode(ticket.ticket).decode(),
        "secret": b64encode(ticket.resumption_secret).decode(),
        "suite": int(ticket.cipher_suite),
        "age_add": ticket.age_add,
        "from": ticket.not_valid_before.timestamp(),
        "to": ticket.not_valid_after.timestamp(),
        "early": ticket.max_early_data_size,
        "extensions": [[kind, b64encode(data).decode()] for kind, data in ticket.other_extensions],
        "server_name": ticket.server_name,
        "alpn": kept.alpn,
        "at": kept.at,
        "until": kept.until,
    }


def _decode(data: bytes) -> dict[str, list[Kept]]:
    """Raise whatever comes of bytes that we have not written."""
    value = json.loads(data)
    if value["format"] != FORMAT:
        raise ValueError("another format")
    return {str(name): [_kept(entry) for entry in each] for name, each in value["gateways"].items()}


def _kept(entry: dict[str, Any]) -> Kept:
    early = entry["early"]
    ticket = SessionTicket(
        age_add=int(entry["age_add"]),
        cipher_suite=CipherSuite(entry["suite"]),
        not_valid_before=datetime.fromtimestamp(float(entry["from"]), UTC),
        not_valid_after=datetime.fromtimestamp(float(entry["to"]), UTC),
        resumption_secret=b64decode(entry["secret"], validate=True),
        server_name=str(entry["server_name"]),
        ticket=b64decode(entry["ticket"], validate=True),
        max_early_data_size=None if early is None else int(early),
        other_extensions=[(int(kind), b64decode(data, validate=True)) for kind, data in entry["extensions"]],
    )
    return Kept(ticket, str(entry["alpn"]), str(entry["at"]), float(entry["until"]))
