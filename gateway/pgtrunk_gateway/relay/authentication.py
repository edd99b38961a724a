"""The shell around :class:`~pgtrunk_gateway.auth.login.Login`: asks, waits, derives, counts failures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk_gateway import auth
from pgtrunk_gateway.errors import AuthenticationFailed, LoginRefused

if TYPE_CHECKING:
    from pgtrunk_gateway.relay.context import Context
    from pgtrunk_gateway.relay.dialogue import Dialogue

__all__ = ["authenticate"]


async def authenticate(context: Context, dialogue: Dialogue, user: str, address: str | None) -> None:
    """Returns when the client at ``address`` has shown that it is ``user``. Raises the error to refuse it with."""
    now = asyncio.get_running_loop().time
    login = auth.Login(
        context.policy,
        user,
        nonce=context.random(auth.NONCE_LENGTH),
        retry_after=lambda: context.limiter.allow(address, now()),
    )
    actions = login.start()
    while True:
        derivation: auth.Derivation | None = None
        for action in actions:
            match action:
                case auth.SendSasl(mechanisms):
                    dialogue.write(server.authentication_sasl(mechanisms))
                case auth.SendSaslContinue(data):
                    dialogue.write(server.authentication_sasl_continue(data))
                case auth.SendSaslFinal(data):
                    dialogue.write(server.authentication_sasl_final(data))
                case auth.Accepted():
                    context.limiter.succeeded(address, now())
                    return
                case auth.Refused(error):
                    if isinstance(error, AuthenticationFailed):
                        context.limiter.failed(address, now())
                    raise error
                case auth.Derive():
                    derivation = action.derivation
        if derivation is not None:
            actions = login.derived(await context.derive(derivation))
        else:
            actions = await _answer(dialogue, login)


async def _answer(dialogue: Dialogue, login: auth.Login) -> tuple[auth.Action, ...]:
    kind, body = await dialogue.message()
    if kind == client.TERMINATE:
        raise LoginRefused("client close request")
    if kind != client.PASSWORD:
        raise ProtocolViolation(f"expected a password message, got {chr(kind)!r}")
    return login.message(body)
