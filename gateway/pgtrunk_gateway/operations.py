"""What an administrator can do with a running gateway, from the console or by a signal.

The verbs' meanings and words are PgBouncer's; what the console may expect of each is in
:mod:`~pgtrunk_gateway.console.operations`. Nothing here parses, checks rights or replies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.console.unsupported import Unsupported
from pgtrunk_gateway.errors import GatewayError, ShuttingDown
from pgtrunk_gateway.reloading import OpenLog, Reloader
from pgtrunk_gateway.stopping import Patience

if TYPE_CHECKING:
    from pgtrunk_gateway.console.operations import Wait
    from pgtrunk_gateway.gateway import Gateway

__all__ = ["GatewayOperations"]

_PATIENCE: dict[Wait | None, Patience] = {
    "clients": Patience.CLIENTS,
    "servers": Patience.TRANSACTIONS,
    None: Patience.NONE,
}


class GatewayOperations(Unsupported):
    """Of one gateway; see :class:`~pgtrunk_gateway.console.operations.Operations`."""

    def __init__(self, gateway: Gateway, open_log: OpenLog | None = None) -> None:
        self._gateway = gateway
        self._reloader = Reloader(gateway, open_log)

    # -- the configuration ---------------------------------------------------------------------------------------------

    async def reload(self) -> None:
        self._reloader.reload()

    def set(self, key: str, value: str) -> None:
        self._reloader.set(key, value)

    # -- sessions and the end ------------------------------------------------------------------------------------------

    def kill_client(self, session: int) -> None:
        for each in list(self._gateway.context.sessions):
            if each.id == session:
                each.kill(ShuttingDown("admin forced disconnect"))
                return
        for console in list(self._gateway.console.sessions):
            if console.id == session:
                console.end(ShuttingDown("admin forced disconnect"))
                return
        raise GatewayError(
            "client not found", sqlstate="42704", severity="ERROR", detail=f"No session has id {session}."
        )

    def shutdown(self, wait: Wait | None) -> None:
        self._gateway.stopping.ask(_PATIENCE[wait])
