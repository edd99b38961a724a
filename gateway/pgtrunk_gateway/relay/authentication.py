"""The shell around :class:`~pgtrunk_gateway.auth.login.Login`: asks, waits, derives, counts failures.

From early data, which may be a replay, a login is begun: the user is looked up, and asked for the password or told the
mechanisms; a SASLInitialResponse, which proves nothing, gets its challenge. The proof is read, keys are derived, and it
is said and counted how the login ends, when the handshake is complete.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cryptography import x509

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk_gateway import auth
from pgtrunk_gateway.errors import AuthenticationFailed, LoginRefused

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import DatabaseConfig
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.dialogue import Dialogue

__all__ = ["authenticate"]


async def authenticate(
    context: Context,
    dialogue: Dialogue,
    user: str,
    address: str | None,
    entry: DatabaseConfig | None,
    *,
    may_be_early: bool = False,
) -> auth.Accepted:
    """Returns when the client at ``address`` has shown that it is ``user``. Raises the error to refuse it with.

    ``entry``: the database that it wants, whose auth_query knows users; None where there is none: then it is asked as
    if there were.
    """
    if context.policy.auth_type == "cert" and dialogue.peer_certificate is None:
        # Where no ticket names it, it comes with the end of the handshake.
        await dialogue.confirmed()
    now = asyncio.get_running_loop().time
    login = auth.Login(
        context.policy,
        user,
        nonce=context.random(auth.NONCE_LENGTH),
        retry_after=lambda: context.limiter.allow(address, now()),
        asks_query=context.config.resolve_auth_user(entry) is not None,
        certificate=_certificate(dialogue),
        channel_binding=dialogue.channel_binding,
    )
    actions = login.start()
    while True:
        derivations: list[auth.Derivation] = []
        for action in actions:
            match action:
                case auth.Accepted() if may_be_early and dialogue.is_early:
                    return action
                case auth.Accepted():
                    await dialogue.confirmed()
                    context.limiter.succeeded(address, now())
                    return action
                case auth.Refused(error):
                    await dialogue.confirmed()
                    if isinstance(error, AuthenticationFailed):
                        context.limiter.failed(address, now())
                    raise error
                case auth.Derive(derivation):
                    derivations.append(derivation)
                case auth.LookUp():
                    pass
                case _:
                    dialogue.write(_message(action))
        if actions == (auth.LookUp(),):
            actions = login.found(await context.lookup(entry, user) if entry is not None else None)
        elif derivations:
            await dialogue.confirmed()
            actions = await _derive(context, login, derivations)
        else:
            if login.awaits_proof:
                await dialogue.confirmed()
            actions = await _answer(dialogue, login)


def _certificate(dialogue: Dialogue) -> auth.ClientCertificate | None:
    certificate = dialogue.peer_certificate
    return auth.ClientCertificate.of(certificate) if isinstance(certificate, x509.Certificate) else None


def _message(action: auth.Action) -> bytes:
    match action:
        case auth.SendCleartext():
            return server.authentication_cleartext_password()
        case auth.SendMD5(salt):
            return server.authentication_md5_password(salt)
        case auth.SendSasl(mechanisms):
            return server.authentication_sasl(mechanisms)
        case auth.SendSaslContinue(data):
            return server.authentication_sasl_continue(data)
        case auth.SendSaslFinal(data):
            return server.authentication_sasl_final(data)
        case _:
            raise AssertionError(action)


async def _derive(context: Context, login: auth.Login, derivations: list[auth.Derivation]) -> tuple[auth.Action, ...]:
    actions: tuple[auth.Action, ...] = ()
    for derivation in derivations:
        if actions := login.derived(await context.derive(derivation)):
            break
    return actions


async def _answer(dialogue: Dialogue, login: auth.Login) -> tuple[auth.Action, ...]:
    kind, body = await dialogue.message()
    if kind == client.TERMINATE:
        raise LoginRefused("client close request")
    if kind != client.PASSWORD:
        raise ProtocolViolation(f"expected a password message, got {chr(kind)!r}")
    return login.message(body)
