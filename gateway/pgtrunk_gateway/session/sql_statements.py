"""Statements that have to do with SQL: those that PREPARE makes, and those whose texts name others.

A name in SQL is the client's own, as that in a message is, so it has to be written anew; and what it means is known
when the text runs, not when it is parsed. Pure data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire import frontend as client
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.statements import Statement

if TYPE_CHECKING:
    from pgtrunk_gateway.session.parameters import Profile
    from pgtrunk_gateway.session.sql.commands import Naming

__all__ = ["MADE", "MAKES", "Made", "Template", "passes", "passing", "quoted"]

_MAKER: Final = b"~+"
"""The statement and the portal by which a backend is made to run PREPARE."""
MAKES: Final = (owed.HIDDEN_CLOSE, owed.HIDDEN_PARSE, owed.HIDDEN_BIND)
"""What is owed for :attr:`Made.parse` ahead of the answer that it is there."""
MADE: Final = (owed.HIDDEN_CLOSE, owed.HIDDEN_CLOSE)
"""And behind it."""


def quoted(name: bytes) -> bytes:
    """``name`` as SQL has it."""
    return b'"' + name.replace(b'"', b'""') + b'"'


def passing(number: int) -> bytes:
    """A statement that is there to be deallocated, in the place of one that others may have."""
    return b"~-%d" % number


def passes(name: bytes) -> bytes:
    """Messages after which there is :func:`passing`, whatever was before. They never fail."""
    return client.close_statement(name) + client.parse(name, b"")


class Made(Statement):
    """One that a client's PREPARE makes. No other session has it."""

    __slots__ = ("sql",)

    def __init__(self, name: bytes, text: bytes, command: Naming) -> None:
        super().__init__(name, text)
        self.sql = b"PREPARE " + quoted(name) + text[command.upto : command.ends]

    @property
    def parse(self) -> bytes:
        """The messages that prepare it on another backend."""
        return (
            client.close_statement(_MAKER)
            + client.parse(_MAKER, self.sql)
            + client.bind(_MAKER, _MAKER)
            + client.execute(_MAKER)
            + client.close_portal(_MAKER)
            + client.close_statement(_MAKER)
        )


class Template(Statement):
    """One of the extended protocol whose text names another: no backend has it, but its ``variant``."""

    __slots__ = ("command", "made", "own", "target", "text", "types", "variant")

    def __init__(self, own: bytes, body: bytes, command: Naming) -> None:
        super().__init__(b"", body)
        self.own = own
        """The client's name for it."""
        end = body.index(0)
        self.text, self.types = body[:end], body[end:]
        self.command = command
        self.target: tuple[bytes, Profile] | None = None
        """The name in the text of :attr:`variant`, and the settings that it is parsed under."""
        self.variant: Statement | None = None
        self.made: Made | None = None
        """Of PREPARE: what it makes when it runs."""

    def body_with(self, name: bytes) -> bytes:
        """Its body with another name in the text."""
        return self.text[: self.command.at] + quoted(name) + self.text[self.command.upto :] + self.types
