"""QUIC as both ends of pgtrunk use it: streams as asyncio transports, with backpressure that reaches the far end."""

from __future__ import annotations

from .private_names import check as _check

_check()

from .client import ClientConnection  # noqa: E402 - the check comes first, or it would come too late
from .client_config import ClientConfig  # noqa: E402
from .config import ByteBudget, QuicLimits  # noqa: E402
from .connecting import connect  # noqa: E402
from .driver import ConnectionDriver  # noqa: E402
from .transport import StreamTransport  # noqa: E402

__all__ = [
    "ByteBudget",
    "ClientConfig",
    "ClientConnection",
    "ConnectionDriver",
    "QuicLimits",
    "StreamTransport",
    "connect",
]
