"""The request and the reply side of one session with one backend, and a model of Postgres behind them. Pure."""

from __future__ import annotations

from helpers.postgres_model import PostgresModel
from helpers.transcript import transcript
from pgtrunk.wire.framing import messages
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.requests import Requests
from pgtrunk_gateway.session.shapes import OTHER
from pgtrunk_gateway.session.statements import Catalogue, Prepared

__all__ = ["Exchange"]


class Exchange:
    """What is sent and what comes back, with nothing in between that would decide anything."""

    def __init__(self, *, prepared: int = 200, tracked: bool = True, catalogue: Catalogue | None = None) -> None:
        self.requests = Requests(catalogue if catalogue is not None else Catalogue(), tracked=tracked)
        self.replies = Replies(Prepared(prepared), {})
        self.postgres = PostgresModel()

    def plan(self, data: bytes, shape: int = OTHER) -> bytes:
        """What goes to the backend for ``data``."""
        return self.requests.plan(data, self.replies, shape)

    def kinds(self, data: bytes) -> str:
        """The types of the messages that go to the backend for ``data``, and nothing is answered."""
        return "".join(chr(kind) for kind, _, _ in messages(self.plan(data)))

    def feed(self, *answers: bytes) -> list[str]:
        """What the client gets of ``answers``."""
        return transcript(self.replies.feed(b"".join(answers)))

    def send(self, data: bytes) -> list[str]:
        """Sends to the model, and gives what the client gets."""
        sent = self.plan(data)
        given = self.replies.take_given()
        return transcript(given + self.replies.feed(self.postgres.feed(sent)))

    def owed(self) -> list[str]:
        """The labels of what is owed."""
        return [owed.label for owed in self.replies.queue]
