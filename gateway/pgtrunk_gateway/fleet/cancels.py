"""Cancel requests that came to the wrong worker, and how they get to the right one.

No worker's number is in a key: whose it is, is asked of all others at once, and answered at once. Only then the one
that has it is told to act, and answers when that has had its effect, which is what the client waits for. In two steps,
since a worker that hangs is then waited for no longer than :data:`_KNOWS_WITHIN`, and the limit of wrong keys need
not wait for Postgres. Nobody asks on for others: a request is one question to each worker, and one more to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire.startup import CancelRequest
from pgtrunk_gateway.cancel.outcome import Outcome
from pgtrunk_gateway.errors import GatewayError, WorkerLost

if TYPE_CHECKING:
    from pgtrunk_gateway.cancel.dispatch import Dispatcher
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.member import Member

__all__ = ["SiblingCancels"]

_WHOSE: Final = "cancel key"
_CANCEL: Final = "cancel"
_KNOWS_WITHIN: Final = 5.0
"""Seconds for the others to say whether a key is theirs. It is a look into a table."""
_MARGIN: Final = 1.0
"""Seconds more than Postgres has for a cancel that the answer may take."""


class SiblingCancels:
    """The other workers, as the dispatcher of ``member`` asks them; and the other way, what they ask it."""

    def __init__(self, member: Member, cancels: Dispatcher) -> None:
        self._member = member
        self._cancels = cancels
        member.on(_WHOSE, self._whose)
        member.on(_CANCEL, self._cancel)
        cancels.siblings = self

    async def owner(self, request: CancelRequest) -> int | None:
        """The worker whose key that is; None: nobody's. Raises :class:`WorkerLost` where nobody has it of those that
        are there, and one is not, or does not say."""
        answers = await self._member.ask_others(_WHOSE, _as_body(request), timeout=_KNOWS_WITHIN)
        silent: GatewayError | None = None
        for index, answer in answers.items():
            if isinstance(answer, GatewayError):
                silent = answer
            elif answer["here"]:
                return index
        if silent is not None:
            raise WorkerLost(f"it is not known whose key it has: {silent.message}")
        if sum(index >= 0 for index in answers) < self._member.count - 1:
            # With the one that is gone, its sessions' keys are: who shows one is late, and no guesser.
            raise WorkerLost("it is not known whose key it has: not all workers are there")
        return None

    async def cancel(self, worker: int, request: CancelRequest, *, timeout: float) -> Outcome:
        """Has ``worker`` act, and returns when that has had its effect. Raises a :class:`GatewayError`."""
        answer = await self._member.ask_worker(worker, _CANCEL, _as_body(request), timeout=timeout + _MARGIN)
        return Outcome[answer["outcome"]]

    def _whose(self, body: Body) -> Body:
        return {"here": self._cancels.knows(_as_request(body))}

    async def _cancel(self, body: Body) -> Body:
        return {"outcome": (await self._cancels.act(_as_request(body))).name}


def _as_body(request: CancelRequest) -> Body:
    return {"pid": request.pid, "secret": request.secret.hex()}


def _as_request(body: Body) -> CancelRequest:
    return CancelRequest(body["pid"], bytes.fromhex(body["secret"]))
