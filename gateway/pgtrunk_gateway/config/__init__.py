"""The gateway's configuration: `load` a file, get a frozen `Config` and what is worth a line in the log."""

from .diff import Change, Changes, diff
from .faults import InvalidConfig, Remark, Source
from .load import Loaded, load
from .settings import (
    AuthType,
    Config,
    DatabaseConfig,
    PeerConfig,
    PoolKey,
    PoolMode,
    QuicPathMtu,
    QuicRedundancy,
    QuicRetry,
    SessionState,
    SslMode,
    UserConfig,
)

__all__ = [
    "load",
    "Loaded",
    "Remark",
    "InvalidConfig",
    "Source",
    "Config",
    "DatabaseConfig",
    "UserConfig",
    "PeerConfig",
    "PoolKey",
    "AuthType",
    "PoolMode",
    "QuicPathMtu",
    "QuicRedundancy",
    "QuicRetry",
    "SessionState",
    "SslMode",
    "diff",
    "Changes",
    "Change",
]
