"""What a user's login is checked against: the user's secrets, or a decoy where none of them serves. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk_gateway.auth import offer

if TYPE_CHECKING:
    from pgtrunk_gateway.auth.policy import LoginPolicy
    from pgtrunk_gateway.auth.secret import Secret

__all__ = ["Choice", "choose", "no_such_user"]


@dataclass(frozen=True, slots=True)
class Choice:
    """`doom`: why the login fails whatever the client says, for the log; None where `secrets` are the user's own."""

    secrets: tuple[Secret, ...]
    doom: str | None = None


def choose(
    policy: LoginPolicy, user: str, known: tuple[Secret, ...] | None, *, scram: bool, stored_in_postgres: bool
) -> Choice:
    """`known`: what the user has, None for one who does not exist. `scram`: it must serve SCRAM. For
    `stored_in_postgres` see `LoginPolicy.decoy`."""
    usable = tuple(filter(offer.is_usable, known or ()))
    if usable and (not scram or offer.scram_offer(usable, b"", 0) is not None):
        return Choice(usable)
    decoy = policy.decoy(user, scram=scram, stored_in_postgres=stored_in_postgres)
    return Choice((decoy,), _doom(user, known, usable))


def no_such_user(user: str) -> str:
    """For the log."""
    return f"no such user: {user!r}"


def _doom(user: str, known: tuple[Secret, ...] | None, usable: tuple[Secret, ...]) -> str:
    if known is None:
        return no_such_user(user)
    if not usable:
        return f"user {user!r} has no password, or an empty password, which lets nobody in"
    return (
        f"user {user!r} has an MD5 secret, which cannot serve a SCRAM login;"
        " put a SCRAM-SHA-256 secret or the password in its place, or set auth_type = md5"
    )
