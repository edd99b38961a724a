"""Which secrets of a user a login can be checked against, and how. Pure.

A user may have two secrets while its password is being changed, the present one first. A method that needs no more
than the password takes either. SCRAM shows the client one salt and one iteration count, before it knows which of the
two the client has: those of the SCRAM secret, if there is one. Passwords in clear are derived for them, so a SCRAM
secret and a password in clear go together, and so do two of either, but not two SCRAM secrets of different salts: of
those the first one counts, unless the client sends its password in clear.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from pgtrunk_gateway.auth.scram import MAX_ITERATIONS, Derivation
from pgtrunk_gateway.auth.secret import MD5, Plain, ScramSecret, Secret

__all__ = ["ScramOffer", "answers_md5", "derivable", "is_password", "is_usable", "scram_offer", "speaks_md5"]


@dataclass(frozen=True, slots=True)
class ScramOffer:
    """What a SCRAM login is checked against: `verifiers`, and what comes out of `derivations`."""

    salt: bytes
    iterations: int
    verifiers: tuple[ScramSecret, ...]
    derivations: tuple[Derivation, ...]


def is_usable(secret: Secret) -> bool:
    """Whether it lets anybody in: an empty password does not."""
    return secret != Plain("")


def scram_offer(secrets: Sequence[Secret], salt: bytes, iterations: int) -> ScramOffer | None:
    """For usable `secrets`; `salt` and `iterations` where they are all in clear. None: they cannot serve SCRAM."""
    stored = [secret for secret in secrets if isinstance(secret, ScramSecret)]
    if stored:
        salt, iterations = stored[0].salt, stored[0].iterations
    verifiers = tuple(secret for secret in stored if (secret.salt, secret.iterations) == (salt, iterations))
    clear = [secret.password for secret in secrets if isinstance(secret, Plain)]
    if stored and iterations > MAX_ITERATIONS:
        clear = []
    derivations = tuple(Derivation(password, salt, iterations) for password in clear)
    return ScramOffer(salt, iterations, verifiers, derivations) if verifiers or derivations else None


def speaks_md5(secrets: Sequence[Secret]) -> bool:
    """Whether auth_type md5 asks by MD5, and not by SCRAM: it goes by the present secret, then by the others."""
    return isinstance(secrets[0], MD5) or not any(isinstance(secret, ScramSecret) for secret in secrets)


def answers_md5(user: str, secrets: Sequence[Secret], salt: bytes, given: bytes) -> bool:
    """Whether `given` is the right answer of `user` to AuthenticationMD5Password with `salt`."""
    hashed = [MD5.of(user, secret.password) if isinstance(secret, Plain) else secret for secret in secrets]
    return any(hmac.compare_digest(secret.answer(salt), given) for secret in hashed if isinstance(secret, MD5))


def is_password(user: str, secrets: Sequence[Secret], given: str) -> bool:
    """Whether `given` is the password of `user`, as far as can be told without a derivation."""
    hashed = MD5.of(user, given)
    return any(_is_same(secret, given, hashed) for secret in secrets)


def _is_same(secret: Secret, given: str, hashed: MD5) -> bool:
    match secret:
        case Plain(password):
            return hmac.compare_digest(_octets(password), _octets(given))
        case MD5(digest):
            return hmac.compare_digest(_octets(digest), _octets(hashed.digest))
        case ScramSecret():
            return False


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def derivable(secrets: Sequence[Secret], password: str) -> list[tuple[ScramSecret, Derivation]]:
    """The SCRAM secrets, each with what tells whether `password` is the one behind it."""
    return [
        (secret, Derivation(password, secret.salt, secret.iterations))
        for secret in secrets
        if isinstance(secret, ScramSecret) and secret.iterations <= MAX_ITERATIONS
    ]
