"""What a login leads to, and the session that it is about as the login sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pgtrunk.wire import backend as server
from pgtrunk.wire.startup import PROTOCOL_3_2
from pgtrunk_gateway.cancel.dispatch import Cancellable
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session import parameters

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from pgtrunk_gateway.cancel.keys import CancelKey
    from pgtrunk_gateway.config.settings import DatabaseConfig, PoolMode
    from pgtrunk_gateway.errors import GatewayError
    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.tally import Place
    from pgtrunk_gateway.relay.visiting import Visit

__all__ = ["Admission", "Client", "admit"]


@dataclass(slots=True)
class Admission:
    """What a session has once it is logged in."""

    context: Context
    user: str
    database: str
    pool: Pool
    place: Place
    key: CancelKey
    profile: parameters.Profile
    certain: bool
    """Whether the server will take all of the profile."""
    terms: Terms

    @property
    def pool_mode(self) -> PoolMode:
        return self.terms.pool_mode

    def renewed(self) -> Terms:
        """The terms, as the configuration has them now."""
        config = self.context.config
        database = config.database(self.database)
        if database is not None:
            self.terms = Terms.of(config, database, self.user)
        return self.terms

    def leave(self) -> None:
        """The session has ended."""
        self.place.leave()
        self.pool.exit()
        self.context.cancels.forget(self.key)


class Client(Cancellable, Protocol):
    """The session that logs in, as seen from here. Exactly one of its methods is called in the end."""

    transport: asyncio.Transport
    front: str
    peer: str
    """Its address as the log shows it."""

    @property
    def address(self) -> str | None:
        """The client's IP address; None on a unix socket."""

    def replace_transport(self, transport: asyncio.Transport) -> None:
        """From now on the session speaks through ``transport``, which has taken the place of its own."""

    def admitted(self, admission: Admission, rest: bytes) -> None:
        """The login is complete; ``rest`` came behind its last message."""

    def visits(self, visit: Visit, rest: bytes, *, over: bool) -> None:
        """It has logged in to the console; ``rest`` as above, and nothing more will come if it is ``over``."""

    def fail(self, error: GatewayError) -> None: ...

    def served(self) -> None:
        """It was no session but a cancel request, which has been acted on."""

    def vanished(self) -> None:
        """It has said all that it will ever say, and that is not a whole login."""


def admit(
    context: Context,
    client: Client,
    place: Place,
    pool: Pool,
    *,
    user: str,
    entry: DatabaseConfig,
    reported: Mapping[str, str],
    others: Mapping[str, str],
    certain: bool,
    protocol: int,
) -> tuple[Admission, bytes]:
    """The end of a login: what ``client`` has from now on, and what it is told, AuthenticationOk to ReadyForQuery.

    ``reported`` are its settings that the server reports, ``others`` those that it has asked for beside them.
    """
    key = context.cancels.register(client, long=protocol >= PROTOCOL_3_2)
    welcome = [server.authentication_ok()]
    welcome += [server.parameter_status(name, value) for name, value in reported.items()]
    welcome.append(server.backend_key_data(key.pid, key.secret))
    if (message := context.config.login_notify_message) is not None:
        welcome.append(server.notice("00000", message))
    welcome.append(server.ready())
    pool.enter()
    admission = Admission(
        context=context,
        user=user,
        database=entry.name,
        pool=pool,
        place=place,
        key=key,
        profile=parameters.profile(reported, parameters.pack(others)),
        certain=certain,
        terms=Terms.of(context.config, entry, user),
    )
    return admission, b"".join(welcome)
