"""Who a client says that it is: what is known of that user, and whether the client is let in. Pure.

What it shows for it, and when, is in :mod:`~pgtrunk_gateway.auth.login`. All that is refused is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.auth.actions import Accepted
from pgtrunk_gateway.auth.choice import Choice, choose
from pgtrunk_gateway.errors import AuthenticationFailed, TooManyFailures

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.auth.policy import LoginPolicy
    from pgtrunk_gateway.auth.query import Found
    from pgtrunk_gateway.auth.scram import ScramKeys, Verifier
    from pgtrunk_gateway.auth.secret import Secret

__all__ = ["Claim"]


class Claim:
    """One client's; for the arguments see `Login`."""

    def __init__(self, policy: LoginPolicy, user: str, *, retry_after: Callable[[], float], asks_query: bool) -> None:
        self.user = user
        self._policy = policy
        self._retry_after = retry_after
        self._asks_query = asks_query
        self._known: tuple[Secret, ...] | None = None
        """What the user has, None for one who does not exist."""
        self.was_looked_up = False
        """Whether auth_query was asked."""
        self._choice = Choice(())

    def check_failures(self) -> None:
        """Raises where that client has failed too often of late."""
        wait = self._retry_after()
        if wait > 0.0:
            raise TooManyFailures(
                detail="login_failure_limit was reached within login_failure_window.",
                hint=f"Try again in {wait:.0f} s.",
            )

    # The user.

    def looks_up(self) -> bool:
        """Looks into auth_file -> whether auth_query is to be asked."""
        self._known = self._policy.known(self.user)
        self.was_looked_up = self._known is None and self._asks_query
        return self.was_looked_up

    def found(self, found: Found) -> None:
        """auth_query's answer."""
        self.user, self._known = found.user, found.secrets

    @property
    def is_strangers(self) -> bool:
        """Whether there is no such user where users have to be known."""
        return self._known is None and (self._asks_query or self._policy.userlist is not None)

    # What it is checked against.

    def choose(self, *, scram: bool) -> None:
        """It is to be proved; `scram`: by SCRAM."""
        # Whom auth_query was asked for has the kind of secret that Postgres makes.
        self._choice = choose(self._policy, self.user, self._known, scram=scram, stored_in_postgres=self.was_looked_up)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Any of which will do, if they are the user's own."""
        return self._choice.secrets

    # The ends.

    def judge(self, kind: str, *, fits: bool, proved: Verifier | None, keys: ScramKeys | None) -> Accepted:
        """The client has shown what `fits` one of the secrets: `proved`, with the `keys` that it has shown. `kind` of
        authentication, for the client."""
        if not fits or self._choice.doom is not None:
            log = self._choice.doom or f"wrong password for user {self.user!r}"
            raise AuthenticationFailed(f"{kind} authentication failed", log=log)
        return self.accept(keys if self._known and proved == self._known[0] else None)

    def accept(self, keys: ScramKeys | None = None) -> Accepted:
        """The client is that user."""
        return Accepted(self.user, self._known[0] if self._known else None, keys)
