"""Raw sessions by every front of a gateway in the test's own loop, and straight to Postgres for comparison."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from behaviour.fronts import Front
from behaviour.wire import Wire, wires
from pgtrunk import StreamManager
from pgtrunk.sidecar import Sidecar, UnixEndpoint

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway
    from helpers.site import Site

__all__ = ["EVERY_FRONT", "by_front", "directly", "settings_for"]

EVERY_FRONT: Final = ("tcp", "tls", "unix", "quic", "mtls", "trunk-tcp", "sidecar")


def settings_for(front: str, site: Site) -> dict[str, Any]:
    """What a gateway needs in its ini file to be reached so."""
    certificates = site.certificates
    if front in ("tls", "trunk-tcp"):
        return {
            "client_tls_sslmode": "require",
            "client_tls_cert_file": certificates.server_cert,
            "client_tls_key_file": certificates.server_key,
        }
    return {"quic_client_ca_file": certificates.ca_cert} if front == "mtls" else {}


@contextlib.asynccontextmanager
async def by_front(gateway: LocalGateway, front: str) -> AsyncIterator[Wire]:
    """A `Wire` to ``gateway``, which has the settings for this front."""
    certificates = gateway.site.certificates
    ca = str(certificates.ca_cert)
    trunk: dict[str, Any] = {"ca_file": ca}
    address = f"127.0.0.1:{gateway.quic.port}"
    async with contextlib.AsyncExitStack() as stack:
        match front:
            case "tcp":
                way = Front("127.0.0.1", gateway.port)
            case "tls":
                way = Front("127.0.0.1", gateway.port, ca_file=ca)
            case "unix":
                way = Front(str(gateway.place), gateway.port)
            case "quic":
                way = Front(gateway=address, trunk=trunk)
            case "mtls":
                identity = {"cert_file": str(certificates.client_cert), "key_file": str(certificates.client_key)}
                way = Front(gateway=address, trunk={**trunk, **identity})
            case "trunk-tcp":
                over_tcp = {**trunk, "transport": "tcp"}
                way = Front(gateway=f"127.0.0.1:{gateway.port}", trunk=over_tcp)
            case _:
                folder = str(gateway.site.place())
                manager = await stack.enter_async_context(StreamManager(address, **trunk))
                await stack.enter_async_context(Sidecar(manager, [UnixEndpoint(folder)]))
                way = Front(folder, UnixEndpoint(folder).port)
        yield await stack.enter_async_context(wires(way))


@contextlib.asynccontextmanager
async def directly(site: Site) -> AsyncIterator[Wire]:
    """A `Wire` past every gateway."""
    async with wires(Front(site.postgres.host, site.postgres.port)) as wire:
        yield wire
