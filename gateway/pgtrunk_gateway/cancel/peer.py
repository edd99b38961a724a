"""Another gateway, or a PgBouncer, that shares clients with this one: an entry of [peers], as cancels need it.

PgBouncer speaks to its peers in clear, whatever server_tls_sslmode says. So does the gateway, unless the entry says
otherwise by a server_tls_sslmode of its own: what holds for Postgres need not hold for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2
from pgtrunk_gateway.cancel.keys import protocol_of
from pgtrunk_gateway.errors import BackendUnavailable
from pgtrunk_gateway.inbox import Inbox
from pgtrunk_gateway.pool.connect import SocketTuner, dial
from pgtrunk_gateway.pool.encryption import NoTls, encrypt, ways
from pgtrunk_gateway.pool.target import Target

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pgtrunk_gateway.config.entries import PeerConfig
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.tls import ServerTls

__all__ = ["Peer", "peers_of"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Where the peer ``id`` is, and what it can be asked."""

    id: int
    target: Target
    size: int
    """Requests that are forwarded to it at a time (pool_size); 0: no limit."""
    long_keys: bool = False
    """Whether it forwards, and takes, keys of protocol 3.2, which a PgBouncer drops."""

    def takes(self, secret: bytes) -> bool:
        """Whether a request with this secret may be one of its own, as far as its length shows."""
        protocol = protocol_of(secret)
        return protocol == PROTOCOL_3_0 or (self.long_keys and protocol == PROTOCOL_3_2)

    async def connect(self, tune: SocketTuner) -> tuple[asyncio.Transport, Inbox]:
        """A connection to it. Raises :class:`BackendUnavailable`."""
        refusal: NoTls | None = None
        for way in ways(self.target):
            transport, inbox = await dial(self.target, Inbox, tune)
            try:
                secured = await encrypt(self.target, transport, inbox, way)
                if secured.is_closing():
                    raise ConnectionResetError("it has closed the connection")
            except NoTls as error:
                transport.abort()
                refusal = error
            except OSError as error:
                transport.abort()
                raise BackendUnavailable(f"connection to {self.target} lost: {error}") from error
            except BaseException:
                transport.abort()
                raise
            else:
                return secured, inbox
        assert refusal is not None
        raise refusal


def peers_of(config: Config, tls: Callable[[PeerConfig], ServerTls | None]) -> dict[int, Peer]:
    """Those to which cancels are forwarded, by peer_id: nobody without a peer_id of one's own, as in PgBouncer, and
    never oneself. ``tls``: how each is spoken to over TCP."""
    if not config.peer_id:
        return {}
    return {
        entry.peer_id: Peer(
            entry.peer_id,
            Target(host=entry.host, port=entry.port, dbname="", user="", tls=tls(entry)),
            config.default_pool_size if entry.pool_size is None else entry.pool_size,
            entry.long_keys,
        )
        for entry in config.peers.values()
        if entry.peer_id != config.peer_id
    }
