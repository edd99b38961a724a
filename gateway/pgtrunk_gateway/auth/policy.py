"""What all logins of a gateway have in common, and whom it shows where there is nobody.

A client must not learn which users exist, nor which of them can log in. So one who cannot is asked as somebody else
would be: by a decoy, a secret that no password fits, of the kind that one of the real users has. Which one is a hash of
the name, so that it is the same each time, and a name that is tried says nothing: where all users have SCRAM secrets of
10,000 iterations, all others seem to have them too; where some have a password in clear, some others seem to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from pgtrunk_gateway.auth.scram import (
    DEFAULT_ITERATIONS,
    SALT_LENGTH,
    keyed_hash,
    mock_salt,
    mock_verifier,
)
from pgtrunk_gateway.auth.secret import MD5, Plain, ScramSecret, Secret

if TYPE_CHECKING:
    from pgtrunk_gateway.auth.userlist import Userlist

__all__ = ["AuthType", "LoginPolicy"]

AuthType: TypeAlias = Literal["any", "trust", "plain", "md5", "scram-sha-256", "cert"]
"""PgBouncer's auth_type. With `md5`, a user whose secret is a SCRAM secret is asked by SCRAM-SHA-256, as PgBouncer
does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPolicy:
    """A reload makes another."""

    auth_type: AuthType
    userlist: Userlist | None
    """None: no auth_file."""
    mock_key: bytes = field(repr=False)
    """The key of the decoys: one for the fleet, better one that outlives a restart."""
    iterations: int = DEFAULT_ITERATIONS
    """scram_iterations: for passwords in clear."""

    def known(self, user: str) -> tuple[Secret, ...] | None:
        """The secrets of `user` in auth_file; None where it is not there."""
        return self.userlist.secrets(user) if self.userlist is not None else None

    def salt(self, user: str) -> tuple[bytes, int]:
        """Salt and iterations for a password in clear: `user` has always the same."""
        return mock_salt(user, self.mock_key), self.iterations

    def decoy(self, user: str, *, scram: bool = False, stored_in_postgres: bool = False) -> Secret:
        """A secret of `user` that no password fits. `scram`: of those that serve SCRAM.

        `stored_in_postgres`: users come from auth_query, so it is of the kind that Postgres makes.
        """
        models: tuple[Secret, ...] = ()
        if self.userlist is not None and not stored_in_postgres:
            models = self.userlist.usable_for_scram if scram else self.userlist.usable
        name = user.encode("utf-8", "surrogateescape")
        number = int.from_bytes(keyed_hash(self.mock_key, b"decoy:" + name)[:8])
        match models[number % len(models)] if models else None:
            case Plain() | MD5() if not scram:
                return Plain(keyed_hash(self.mock_key, b"password:" + name).hex())
            case ScramSecret(iterations=iterations, salt=salt):
                length = len(salt)
            case _:
                iterations, length = self.iterations, SALT_LENGTH
        keys = mock_verifier(user, self.mock_key)
        return ScramSecret(iterations, mock_salt(user, self.mock_key, length), keys.stored_key, keys.server_key)
