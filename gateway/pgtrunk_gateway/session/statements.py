"""Prepared statements: one object per distinct statement, and what each backend has of them.

A client's name for a statement is its own; on the backends the gateway uses names of its choice, of the same length as
the client's where that is possible, so that renaming a Bind is one concatenation. A name begins with ``~``, which no
driver does; what a client calls so reaches no backend unchanged (:func:`foreign`). Those that SQL makes are in
:mod:`~pgtrunk_gateway.session.sql_statements`. Pure data; who sends what is decided in
:mod:`~pgtrunk_gateway.session.requests`.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from pgtrunk.wire.framing import encode
from pgtrunk_gateway.session.descriptions import Description

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from pgtrunk_gateway.session.parameters import Profile
    from pgtrunk_gateway.session.sql.traces import Traces

__all__ = ["Catalogue", "Prepared", "Statement", "Unkept", "foreign"]

_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNKNOWN: Final = -(1 << 62)
"""Neither there nor known to be missing; the number of no batch."""
_LONG = 16
"""Length of the names that are used where short ones have run out, and in place of long ones."""
_LONGEST: Final = 63
"""Octets of a name that Postgres tells from another (NAMEDATALEN); and a Describe of 10 kB it takes for an attack."""


class Statement:
    """A text with its parameter types, and the name it has on every backend; b"" is the unnamed statement.

    ``body`` is what follows the name in a Parse message, and ``dialect`` the settings that its meaning depends on.
    Statements are compared by identity: :class:`Catalogue` makes equal ones the same. But what is described in another
    way is another one, since clients that were told the one must not get the other.
    """

    __slots__ = ("__weakref__", "body", "dialect", "name", "told", "traces")

    def __init__(self, name: bytes, body: bytes, dialect: Profile = ()) -> None:
        self.name = name
        self.body = body
        self.dialect = dialect
        self.traces: Traces | None = None
        """What it may leave behind in a session that runs it."""
        self.told: Description | None = None
        """What every session has been told that had it described."""

    @property
    def parse(self) -> bytes:
        """The Parse message that prepares it on a backend."""
        return encode(b"P", self.name + b"\0" + self.body)

    def __repr__(self) -> str:
        return f"<Statement {self.name.decode()!r} {self.body[:40]!r}>"


class Unkept(Statement):
    """An unnamed statement whose text is too long to be kept: another backend than the one that has it gets none."""

    __slots__ = ()

    def __init__(self) -> None:
        # Postgres reads no further than the first word.
        super().__init__(b"", b"pgtrunk has not kept this statement\0\0\0")


def foreign(name: bytes) -> bytes:
    """What a name that means nothing is called on a backend, where it shall mean nothing either."""
    return b"~" + name if name.startswith(b"~") else name


class Catalogue:
    """All statements that some session or some backend has, each once.

    A statement lives as long as somebody holds it; names are never used twice.
    """

    def __init__(self) -> None:
        self._statements: WeakValueDictionary[tuple[int, bytes, Profile], Statement] = WeakValueDictionary()
        self._told: WeakValueDictionary[tuple[int, bytes, Profile, Description], Statement] = WeakValueDictionary()
        self._descriptions: WeakValueDictionary[bytes, Description] = WeakValueDictionary()
        self.moves = 0
        """How often something was altered or dropped: what was parsed before may mean something else by now."""
        self.on_moved: Callable[[], None] | None = None
        """Told when a session here has done so."""
        self._used: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._statements)

    def intern(self, length: int, body: bytes, dialect: Profile = ()) -> Statement:
        """The statement with this ``body`` for clients of this ``dialect`` whose name for it has ``length`` octets."""
        key = (length, body, dialect)
        statement = self._statements.get(key)
        if statement is None:
            statement = self._statements[key] = Statement(self.new_name(length), body, dialect)
        return statement

    def move(self) -> None:
        """A session has altered or dropped something."""
        self.moves += 1
        if self.on_moved is not None:
            self.on_moved()

    def retire(self, length: int, statement: Statement) -> None:
        """Who has ``statement`` keeps it; who asks for its text from now on gets another, parsed anew everywhere."""
        key = (length, statement.body, statement.dialect)
        if self._statements.get(key) is statement:
            del self._statements[key]
            self.moves += 1

    def description(self, key: bytes) -> Description:
        """The description with this key, see :func:`~pgtrunk_gateway.session.descriptions.key_of`."""
        description = self._descriptions.get(key)
        if description is None:
            description = self._descriptions[key] = Description(key)
        return description

    def as_told(self, length: int, statement: Statement, description: Description) -> Statement:
        """That with the text of ``statement`` which is described so; it may be ``statement``."""
        key = (length, statement.body, statement.dialect, description)
        found = self._told.get(key)
        if found is None:
            found = statement
            if statement.told is not None:
                found = Statement(self.new_name(length), statement.body, statement.dialect)
                found.traces = statement.traces
            found.told = description
            self._told[key] = found
        return found

    def tell(self, length: int, statement: Statement, description: Description) -> Statement:
        """As :meth:`as_told`, where a backend has just said so: who asks for the text from now on gets this one."""
        found = self.as_told(length, statement, description)
        if found is not statement:
            self._statements[length, statement.body, statement.dialect] = found
        return found

    def new_name(self, length: int) -> bytes:
        """A name that no statement has had, for clients whose name has ``length`` octets."""
        number = self._used.get(length, 0)
        if length > _LONGEST or (length != _LONG and number >= 62 ** (length - 1)):
            return self.new_name(_LONG)
        self._used[length] = number + 1
        digits = bytearray()
        while number:
            number, digit = divmod(number, 62)
            digits.append(_DIGITS[digit])
        digits.reverse()
        return b"~" + bytes(digits).rjust(length - 1, b"0")


class Prepared:
    """The statements that a backend has, least recently used first, at most ``limit`` of them (0: no limit).

    Of each it is kept how sure that is: its ParseComplete came, or it is under way with a batch, whose number counts
    the batches of this backend; then a message of that batch can rely on it, since all is skipped if its Parse fails. A
    later batch can where the Parse is the client's own, by the only name that it has for it: if it failed, so must what
    relies on it. It cannot rely on one that we injected, of which the client knows nothing.

    It is also kept how this backend describes them, where it has been asked.
    """

    __slots__ = ("_closing", "_known", "_moves", "_old", "_seen", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._known: OrderedDict[Statement, int] = OrderedDict()
        """0: there; n: under way with batch n, parsed by the client; -n: the same, injected; or _UNKNOWN."""
        self._closing: dict[Statement, tuple[int, int]] = {}
        """Those that had to make room, until their Close is confirmed: its batch, and what was known before."""
        self._seen: dict[Statement, Description] = {}
        """Of those that are there: how they are described here, by what they were parsed to."""
        self._moves = 0
        self._old: set[Statement] = set()
        """Those that may have been parsed before the last of the moves."""

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Statement]:
        return iter(self._known)

    # -- sending -------------------------------------------------------------------------------------------------------

    def serves(self, statement: Statement, batch: int) -> bool:
        """As :meth:`usable`, and it is here what clients have been told that it is. Hot."""
        known = self._known.get(statement)
        if known is None or (statement.told is not None and self._seen.get(statement) is not statement.told):
            return False
        self._known.move_to_end(statement)
        return known >= 0 or known == -batch

    def usable(self, statement: Statement, batch: int) -> bool:
        """Whether a message of ``batch`` can rely on it. Marks it as used."""
        known = self._known.get(statement)
        if known is None:
            return False
        self._known.move_to_end(statement)
        return known >= 0 or known == -batch

    def sure(self, statement: Statement, batch: int) -> bool:
        """Whether the backend has it, or nothing else of ``batch`` will be acted on."""
        known = self._known.get(statement)
        return known is not None and (known == 0 or abs(known) == batch)

    def unsure(self, statement: Statement, batch: int) -> bool:
        """Whether the backend may have it and may not: then a Close, which does no harm, has to go ahead of a Parse."""
        known = self._known.get(statement)
        if known is None:
            return self._closing.get(statement, (batch, 0))[0] != batch
        return known != 0

    def is_new(self, statement: Statement, batch: int) -> bool:
        """Whether its Parse goes out in ``batch``."""
        return abs(self._known.get(statement, 0)) == batch

    def is_old(self, statement: Statement, moves: int) -> bool:
        """Whether its Parse may have gone out before the last of the ``moves``, of which the catalogue knows."""
        if self._moves != moves:
            self._moves = moves
            self._old = set(self._known)
        return statement in self._old

    def seen(self, statement: Statement) -> Description | None:
        """How it is described here, where that is known."""
        return self._seen.get(statement)

    def expect(self, statement: Statement, batch: int, *, injected: bool) -> None:
        """Its Parse goes out in ``batch``."""
        self._known[statement] = -batch if injected else batch
        self._known.move_to_end(statement)
        self._seen.pop(statement, None)
        self._old.discard(statement)

    def evict(self, batch: int, used: Container[Statement] = ()) -> list[Statement]:
        """What has to be closed in ``batch`` to keep the limit; what is under way or ``used`` is not."""
        excess = len(self._known) - self.limit if self.limit else 0
        if excess <= 0:
            return []
        settled = (one for one, known in self._known.items() if known in (0, _UNKNOWN) and one not in used)
        evicted = list(islice(settled, excess))
        for statement in evicted:
            self._closing[statement] = batch, self._known.pop(statement)
            self._seen.pop(statement, None)
            self._old.discard(statement)
        return evicted

    # -- receiving; what is said of another batch than the last that a statement went out with changes nothing ---------

    def confirm(self, statement: Statement, batch: int) -> None:
        """Its ParseComplete came."""
        if abs(self._known.get(statement, 0)) == batch:
            self._known[statement] = 0

    def forget(self, statement: Statement, batch: int) -> None:
        """Its Parse failed, or was skipped and what was before is known."""
        if abs(self._known.get(statement, 0)) == batch:
            del self._known[statement]

    def doubt(self, statement: Statement, batch: int) -> None:
        """Its Parse was skipped, and the Close ahead of it too."""
        if abs(self._known.get(statement, 0)) == batch:
            self._known[statement] = _UNKNOWN

    def suspect(self, statement: Statement) -> None:
        """What is there under its name is something else."""
        if statement in self._known:
            self._known[statement] = _UNKNOWN
            self._seen.pop(statement, None)

    def described(self, statement: Statement, batch: int, description: Description) -> None:
        """The answer to a Describe of it came, which went out in ``batch``."""
        if abs(self._known.get(statement, _UNKNOWN)) in (0, batch):
            self._seen[statement] = description

    def closed(self, statement: Statement, batch: int) -> None:
        """Its CloseComplete came."""
        if self._closing.get(statement, (0, 0))[0] == batch:
            del self._closing[statement]

    def kept(self, statement: Statement, batch: int) -> None:
        """Its Close was skipped: the backend still has it, unless it has been sent anew since."""
        if self._closing.get(statement, (0, 0))[0] == batch:
            _, before = self._closing.pop(statement)
            if abs(self._known.get(statement, batch)) == batch:
                self._known[statement] = before

    def clear(self) -> None:
        """DISCARD ALL or DEALLOCATE ALL ran; what is under way comes after it."""
        for statement, known in list(self._known.items()):
            if known in (0, _UNKNOWN):
                del self._known[statement]
                self._seen.pop(statement, None)
                self._old.discard(statement)
