"""Who may log in: secrets, SCRAM on both sides, the login dialogue, the brake on guessing. Without any I/O."""

from __future__ import annotations

from pgtrunk_gateway.auth.actions import (
    Accepted,
    Action,
    Derive,
    LookUp,
    Refused,
    SendCleartext,
    SendMD5,
    SendSasl,
    SendSaslContinue,
    SendSaslFinal,
)
from pgtrunk_gateway.auth.certificate import ClientCertificate
from pgtrunk_gateway.auth.limiter import LoginLimiter, subscriber
from pgtrunk_gateway.auth.login import Login
from pgtrunk_gateway.auth.policy import AuthType, LoginPolicy
from pgtrunk_gateway.auth.query import Answer, Found, request
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
    "LookUp",
    "Refused",
    "SendCleartext",
    "SendMD5",
    "SendSasl",
    "SendSaslContinue",
    "SendSaslFinal",
    "LoginLimiter",
    "subscriber",
    "ClientCertificate",
    # auth_query
    "Answer",
    "Found",
    "request",
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
