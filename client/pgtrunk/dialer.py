"""Where a trunk's next connection goes, and how it is opened. The allocation says when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgtrunk.address import Address
    from pgtrunk.connection import Connection
    from pgtrunk.quic.client import ClientConfig

__all__ = ["Dialer"]


class Dialer:
    """Opens the QUIC connections of one trunk."""

    def __init__(self, address: Address, config: ClientConfig, *, timeout: float) -> None:
        self._address = address
        self._config = config
        self._timeout = timeout

    async def dial(self, at: Address | None = None) -> Connection:
        """Opens a connection within ``connect_timeout``; given an address, there, which a gateway has named.

        Raises `GatewayUnreachable`, `CertificateError` and `CertificateFileError`. Cancelled, it leaves nothing behind.
        """
        # Imported here, not above: `import pgtrunk` alone stays quick.
        from pgtrunk.quic.connecting import connect

        config, address = self._config, at or self._address
        if config.server_name is None:
            # A gateway that names another one does not say by what name to know it.
            config = replace(config, server_name=self._address.host)
        return await connect(address.host, address.port, config=config, timeout=self._timeout)
