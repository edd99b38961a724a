"""The answers that a backend owes: one entry for each request that it was sent, in the order of the requests.

What an entry means, and how it ends, is in :mod:`~pgtrunk_gateway.session.replies`. Here they are values: most are one
constant for all, since nothing distinguishes one Bind from another; those that have a story of their own are classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.wire.backend import CLOSE_COMPLETE_MESSAGE, PARSE_COMPLETE_MESSAGE

if TYPE_CHECKING:
    from pgtrunk_gateway.session.inquiry import Inquiry
    from pgtrunk_gateway.session.statements import Statement

__all__ = [
    "AHEAD",
    "BATCH",
    "BEGIN",
    "BIND",
    "CLOSE",
    "COMMAND",
    "COPY_DATA",
    "COPY_END",
    "DESCRIBE",
    "DESCRIBE_AGAIN",
    "EXECUTE",
    "FAILING",
    "HIDDEN_BIND",
    "HIDDEN_CLOSE",
    "HIDDEN_PARSE",
    "HIDDEN_QUERY",
    "HIDDEN_SYNC",
    "NOTHING",
    "PARSE",
    "QUERY",
    "SYNC",
    "TOLD",
    "Again",
    "Applying",
    "Asking",
    "Closing",
    "Describing",
    "Naming",
    "Owed",
    "Parsing",
    "Refused",
    "closed",
    "made",
    "parsed",
]


class Owed:
    """One answer. ``ends`` are the message types that complete it.

    ``hidden``: the gateway asked, not the client. ``given``: no answer will come; it is over when it is at the head,
    and then the client gets ``message``. ``plain``: a whole batch or query, of which the client gets all. ``ready``:
    ReadyForQuery ends it. ``syncs``: with a Sync, which ends the skipping after an error. ``simple``: a command of a
    simple query, whose own entry comes behind those of its commands.
    """

    __slots__ = ("ends", "given", "hidden", "label", "message", "plain", "ready", "simple", "syncs")

    def __init__(
        self,
        label: str,
        ends: bytes = b"",
        *,
        hidden: bool = False,
        given: bool = False,
        message: bytes = b"",
        plain: bool = False,
        syncs: bool = False,
        simple: bool = False,
    ) -> None:
        self.label = label
        self.ends = ends
        self.hidden = hidden
        self.given = given
        self.message = message
        self.plain = plain
        self.ready = ends == b"Z"
        self.syncs = syncs
        self.simple = simple

    def __repr__(self) -> str:
        return f"<{self.label}>"


class Naming(Owed):
    """Its request changed what one of the client's names means, from ``before`` to ``after`` (None: nothing).

    That was done when it was sent; if it is skipped or refused, it is undone. The unnamed statement has the name b"".
    ``told``: the client had been told the columns of what the name meant before.
    """

    __slots__ = ("after", "before", "name", "told")

    def __init__(
        self,
        label: str,
        ends: bytes,
        name: bytes,
        before: Statement | None,
        after: Statement | None,
        *,
        given: bool = False,
        message: bytes = b"",
        told: bool = False,
    ) -> None:
        super().__init__(label, ends, given=given, message=message)
        self.name = name
        self.before = before
        self.after = after
        self.told = told


class Parsing(Naming):
    """A Parse of ``statement`` in the batch of this number; ``name`` is the client's, b"" where we injected it.

    ``unsure``: what the backend had of it was not known, so a Close went ahead; if both are skipped, it is not known
    either. ``ends``: by what it is parsed; SQL, where that is CommandComplete.
    """

    __slots__ = ("batch", "moved", "statement", "unsure")

    def __init__(
        self,
        name: bytes,
        before: Statement | None,
        statement: Statement,
        batch: int,
        *,
        unsure: bool = False,
        ends: bytes = b"1",
    ) -> None:
        super().__init__("parse", ends, name, before, statement)
        self.hidden = not name
        self.statement = statement
        self.batch = batch
        self.unsure = unsure
        self.moved = False
        """It was asked under other settings than it is parsed under."""


class Describing(Owed):
    """Describe of ``statement`` in the batch of this number, by the client, which calls it ``name``, or by the gateway.

    ``parameters``: ParameterDescription, which the client gets with what comes behind it.
    """

    __slots__ = ("batch", "name", "parameters", "statement")

    def __init__(self, name: bytes, statement: Statement, batch: int, *, hidden: bool = False) -> None:
        super().__init__("inspect" if hidden else "describe", b"Tn", hidden=hidden)
        self.name = name
        self.statement = statement
        self.batch = batch
        self.parameters = b""


class Again(Owed):
    """The end of a batch or query that failed by a stale plan, of which the client has seen nothing: it is asked again,
    unless something has come behind it. Then the client gets ``message``, the error."""

    __slots__ = ()

    def __init__(self, error: bytes) -> None:
        super().__init__("again", b"Z", hidden=True, message=error, syncs=True)


class Applying(Owed):
    """SQL of the gateway's that gives the backend the settings of a session; ``others`` are those not reported."""

    __slots__ = ("failed", "others")

    def __init__(self, others: str) -> None:
        super().__init__("settings", b"Z", hidden=True)
        self.others = others
        self.failed = False


class Asking(Owed):
    """The gateway asks what the session has left on the backend. ``rows``: bodies of DataRow, the last maybe a part."""

    __slots__ = ("failed", "inquiry", "rows")

    def __init__(self, inquiry: Inquiry) -> None:
        super().__init__("inquiry", b"Z", hidden=True)
        self.inquiry = inquiry
        self.rows: list[bytearray] = []
        self.failed = False


class Refused(Naming):
    """A text that the gateway refuses. In its place went one that fails, so that the transaction does what it does
    after an error; the client gets ``message``, in place of that error."""

    __slots__ = ()

    def __init__(self, ends: bytes, before: Statement | None, message: bytes) -> None:
        super().__init__("refused", ends, b"", before, None, message=message)


class Closing(Owed):
    """An injected Close of ``statement``, in the batch of this number: it had to make room."""

    __slots__ = ("batch", "statement")

    def __init__(self, statement: Statement, batch: int) -> None:
        super().__init__("close", b"3", hidden=True)
        self.statement = statement
        self.batch = batch


def made(message: bytes) -> Owed:
    """An answer that no request went out for: ``message`` is given when its turn comes."""
    return Owed("made", given=True, message=message)


def parsed(name: bytes, before: Statement | None, statement: Statement) -> Owed:
    """The answer to a Parse of what the backend has already."""
    return Naming("parsed", b"", name, before, statement, given=True, message=PARSE_COMPLETE_MESSAGE)


def closed(name: bytes, statement: Statement, *, told: bool = False) -> Owed:
    """The answer to a Close, of which the backend need not know."""
    return Naming("closed", b"", name, statement, None, given=True, message=CLOSE_COMPLETE_MESSAGE, told=told)


BATCH = Owed("batch", b"Z", plain=True, syncs=True)
QUERY = Owed("query", b"Z", plain=True)
SYNC = Owed("sync", b"Z", syncs=True)
PARSE = Owed("parse", b"1")
BIND = Owed("bind", b"2")
CLOSE = Owed("close", b"3")
DESCRIBE = Owed("describe", b"Tn")
DESCRIBE_AGAIN = Owed("describe again", b"Tn")
"""The client has had ParameterDescription."""
EXECUTE = Owed("execute", b"CIs")
NOTHING = Owed("nothing")
"""But an error."""
HIDDEN_SYNC = Owed("hidden sync", b"Z", hidden=True, syncs=True)
HIDDEN_QUERY = Owed("hidden query", b"Z", hidden=True)
HIDDEN_PARSE = Owed("hidden parse", b"1", hidden=True)
HIDDEN_BIND = Owed("hidden bind", b"2", hidden=True)
HIDDEN_CLOSE = Owed("hidden close", b"3", hidden=True)
COMMAND = Owed("command", b"C", simple=True)
BEGIN = tuple(Owed("begin", ends, hidden=True) for ends in (b"1", b"2", b"C", b"3"))
"""The client has been told long ago that its transaction has begun; now it has, when the third of these is answered."""
FAILING = Owed("failing", b"Z", hidden=True)
"""And that it has failed, which is brought about by something that fails."""
AHEAD = Owed("ahead", b"Z", hidden=True, syncs=True)
"""The end of what had to be prepared for the simple query behind it. If that failed, the client has had the error."""
TOLD = Owed("told", b"Z", hidden=True)
"""That query then: the client gets nothing of it but ReadyForQuery."""
COPY_DATA = Owed("copy data", given=True)
"""Data for COPY was sent before it was known whether COPY runs; nothing is owed for it."""
COPY_END = Owed("copy end", given=True)
"""The same of CopyDone and CopyFail."""
