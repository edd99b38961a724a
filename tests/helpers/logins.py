"""A client that answers whatever a `Login` asks, with one password, and the session's part of it. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.wire.frontend import password as password_message
from pgtrunk.wire.frontend import sasl_initial_response, sasl_response
from pgtrunk_gateway.auth import (
    MD5,
    Accepted,
    Action,
    ClientExchange,
    Derivation,
    Derive,
    Found,
    Login,
    LookUp,
    Refused,
    ScramSecret,
    Secret,
    SendCleartext,
    SendMD5,
    SendSasl,
    SendSaslContinue,
    SendSaslFinal,
)

if TYPE_CHECKING:
    from pgtrunk_gateway.errors import GatewayError

__all__ = ["ITERATIONS", "KEY", "NONCE", "SALT", "Dialogue", "secret_of"]

KEY = b"k" * 32
NONCE = b"server-nonce-18-b."
SALT = b"sixteen octets.."
ITERATIONS = 64
"""Few, for speed."""


def secret_of(password: str, salt: bytes = SALT, iterations: int = ITERATIONS) -> ScramSecret:
    return Derivation(password, salt, iterations).secret()


class Dialogue:
    """One login, and what came of it after `run`."""

    def __init__(self, login: Login, password: str, found: tuple[Secret, ...] | None = None) -> None:
        self.login = login
        self.password = password
        self.found = found
        self.exchange = ClientExchange(nonce=b"c" * 18)
        self.seen: list[Action] = []
        """The messages to the client."""
        self.sent: list[bytes] = []
        self.looked_up = False
        self.accepted: Accepted | None = None
        self.error: GatewayError | None = None

    @property
    def gets_in(self) -> bool:
        return self.accepted is not None

    @property
    def asked(self) -> Action:
        return self.seen[0]

    @property
    def kind(self) -> tuple[object, ...]:
        """What can be told from the messages, beside what is random in them."""
        parts: list[object] = [type(action).__name__ for action in self.seen]
        for action in self.seen:
            if isinstance(action, SendSaslContinue):
                salt, iterations = ClientExchange(nonce=b"c" * 18).asked(action.data)
                parts += [len(salt), iterations]
        return tuple(parts)

    def run(self) -> None:
        actions = self.login.start()
        while actions:
            actions = tuple(more for action in actions for more in self._answer(action))

    def _answer(self, action: Action) -> tuple[Action, ...]:
        match action:
            case LookUp():
                self.looked_up = True
                return self.login.found(None if self.found is None else Found(self.login.user, self.found))
            case Derive(derivation):
                return self.login.derived(derivation.run())
            case Accepted():
                self.accepted = action
            case Refused(error):
                self.error = error
            case SendSaslFinal(data):
                self.exchange.verify(data)
            case _:
                self.seen.append(action)
                return self._send(self._say(action))
        return ()

    def _say(self, asked: Action) -> bytes:
        clear = self.password.encode("utf-8", "surrogateescape")
        match asked:
            case SendCleartext():
                return password_message(clear)
            case SendMD5(salt):
                return password_message(MD5.of(self.login.user, self.password).answer(salt))
            case SendSasl():
                return sasl_initial_response("SCRAM-SHA-256", self.exchange.first())
            case SendSaslContinue(data):
                keys = self.exchange.challenge(data, self.password).run()
                return sasl_response(self.exchange.final(keys))
            case _:
                raise AssertionError(asked)

    def _send(self, message: bytes) -> tuple[Action, ...]:
        self.sent.append(message[5:])
        return self.login.message(message[5:])
