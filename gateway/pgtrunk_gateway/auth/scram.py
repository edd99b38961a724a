"""What both ends of SCRAM-SHA-256 (RFC 5802, RFC 7677) compute; the exchanges are in scram_server and scram_client.

The one expensive step is PBKDF2: `Derivation.run`, a pure function that gives up the GIL in its work (a millisecond
or two at 4096 iterations, seconds at what a server may ask for). Whoever owns an event loop runs it in an executor, and
keeps results in a `DerivationCache`. All else here takes microseconds.

Written here rather than taken from a library: libpq sends an empty user name, PostgreSQL has salts shorter than 12
octets and iteration counts below 4096, and a prohibited password is used raw; the libraries refuse each of these, and
none lets PBKDF2 be run apart from the exchange.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pgtrunk_gateway.auth.saslprep import saslprep
from pgtrunk_gateway.auth.secret import KEY_LENGTH, ScramSecret

__all__ = [
    "BINDING_TYPE",
    "DEFAULT_ITERATIONS",
    "MAX_ITERATIONS",
    "MECHANISM",
    "MECHANISM_PLUS",
    "NONCE_LENGTH",
    "SALT_LENGTH",
    "Derivation",
    "DerivationCache",
    "ScramKeys",
    "Verifier",
    "keyed_hash",
    "mock_salt",
    "mock_verifier",
    "xor",
]

MECHANISM = "SCRAM-SHA-256"
MECHANISM_PLUS = "SCRAM-SHA-256-PLUS"
"""The same, bound to the TLS connection that it runs in."""
BINDING_TYPE = b"tls-server-end-point"
"""The channel binding that PostgreSQL knows (RFC 5929, section 4): the hash of the server's certificate."""
DEFAULT_ITERATIONS = 4096
"""As PostgreSQL's and PgBouncer's `scram_iterations`."""
NONCE_LENGTH = 18
"""Random octets that each exchange needs, as PostgreSQL: 24 characters in base64."""
SALT_LENGTH = 16
"""Octets of the salts that we make, as PostgreSQL."""
MAX_ITERATIONS = 10_000_000
"""What we compute at most, some seconds of a core. A server, or who poses as one, could ask for hours."""

Running = TypeVar("Running")


def keyed_hash(key: bytes, message: bytes) -> bytes:
    """RFC 5802's HMAC()."""
    return hmac.digest(key, message, "sha256")


def xor(left: bytes, right: bytes) -> bytes:
    """Two keys of `KEY_LENGTH` octets, bit by bit."""
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(KEY_LENGTH)


class Verifier(Protocol):
    """What verifies a client's proof and signs the answer: a stored secret, or keys derived from a password."""

    @property
    def stored_key(self) -> bytes: ...

    @property
    def server_key(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a password becomes for one salt and iteration count. Whoever has it can log in: treat it as the password."""

    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @property
    def stored_key(self) -> bytes:
        return hashlib.sha256(self.client_key).digest()


@dataclass(frozen=True, slots=True)
class Derivation:
    """PBKDF2 to be done: the keys of `password` for a salt and an iteration count."""

    password: str = field(repr=False)
    salt: bytes = field(repr=False)
    iterations: int

    def run(self) -> ScramKeys:
        """Pure, and expensive: belongs in an executor."""
        salted = hashlib.pbkdf2_hmac("sha256", saslprep(self.password), self.salt, self.iterations)
        return ScramKeys(keyed_hash(salted, b"Client Key"), keyed_hash(salted, b"Server Key"))

    def secret(self) -> ScramSecret:
        """What PostgreSQL would store of the password; as expensive as `run`."""
        keys = self.run()
        return ScramSecret(self.iterations, self.salt, keys.stored_key, keys.server_key)

    @property
    def key(self) -> bytes:
        """Names this derivation in a cache without holding the password."""
        password = self.password.encode("utf-8", "surrogateescape")
        return hashlib.sha256(b"%d:%d:%b%b" % (self.iterations, len(self.salt), self.salt, password)).digest()


class DerivationCache(Generic[Running]):
    """Remembers derivations, those still running included, so that a thousand logins of one user cost one PBKDF2.

    It holds what the caller's executor gives for a job, a future as a rule, without looking into it. Two duties stay
    with the caller: to `forget` a job that failed, and to shield the future, which is shared, from one waiter's
    cancellation.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.capacity = capacity
        """Entries; beyond it the least recently used goes."""
        self._running: OrderedDict[bytes, Running] = OrderedDict()

    def get(self, derivation: Derivation, start: Callable[[Derivation], Running]) -> Running:
        """The job for `derivation`: one begun earlier, or what `start` gives now."""
        key = derivation.key
        if key in self._running:
            self._running.move_to_end(key)
            return self._running[key]
        running = self._running[key] = start(derivation)
        if len(self._running) > self.capacity:
            self._running.popitem(last=False)
        return running

    def forget(self, derivation: Derivation) -> None:
        """Drops a job that failed, so that the next login tries anew."""
        self._running.pop(derivation.key, None)

    def __len__(self) -> int:
        return len(self._running)


def mock_salt(user: str, key: bytes, length: int = SALT_LENGTH) -> bytes:
    """The salt shown for a user of whom no stored one exists: always the same for one user and `key`.

    `key` is the gateway's secret. All workers of a fleet must share it and it should outlive a restart, since salts
    that differ where a stored one would not give away that the user does not exist.
    """
    name = user.encode("utf-8", "surrogateescape")
    return hashlib.shake_256(keyed_hash(key, b"salt:" + name)).digest(length)


def mock_verifier(user: str, key: bytes) -> ScramKeys:
    """Keys that no password leads to, for going through the motions with a user who cannot log in."""
    name = user.encode("utf-8", "surrogateescape")
    return ScramKeys(keyed_hash(key, b"client:" + name), keyed_hash(key, b"server:" + name))
