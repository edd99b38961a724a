"""Who may log in: auth_file, SCRAM on both sides, the login dialogue, the brake on guessing. Without any I/O."""

from __future__ import annotations

from pgtrunk_gateway.auth.limiter import LoginLimiter
from pgtrunk_gateway.auth.login import (
    Accepted,
    Action,
    AuthType,
    Derive,
    Login,
    LoginPolicy,
    Refused,
    SendSasl,
    SendSaslContinue,
    SendSaslFinal,
)
from pgtrunk_gateway.auth.scram import (
    DEFAULT_ITERATIONS,
    MECHANISM,
    NONCE_LENGTH,
    SALT_LENGTH,
    Derivation,
    DerivationCache,
    ScramKeys,
)
from pgtrunk_gateway.auth.scram_client import ClientExchange
from pgtrunk_gateway.auth.scram_server import ServerExchange
from pgtrunk_gateway.auth.secret import MD5, Plain, ScramSecret, Secret, parse_secret
from pgtrunk_gateway.auth.userlist import Userlist

__all__ = [
    # login of a client
    "Login",
    "LoginPolicy",
    "AuthType",
    "Action",
    "Accepted",
    "Derive",
    "Refused",
    "SendSasl",
    "SendSaslContinue",
    "SendSaslFinal",
    "LoginLimiter",
    # secrets
    "Userlist",
    "Secret",
    "MD5",
    "Plain",
    "ScramSecret",
    "parse_secret",
    # SCRAM
    "ClientExchange",
    "ServerExchange",
    "Derivation",
    "DerivationCache",
    "ScramKeys",
    "DEFAULT_ITERATIONS",
    "MECHANISM",
    "NONCE_LENGTH",
    "SALT_LENGTH",
]
