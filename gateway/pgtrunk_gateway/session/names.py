"""What the names of a client's prepared statements mean.

Changed when a request is sent, not when it is answered: what comes behind it in a pipeline relies on it. Where the
request turns out to be skipped or refused, its change is undone. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk_gateway.session.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgtrunk_gateway.session.descriptions import Description
    from pgtrunk_gateway.session.owed import Naming
    from pgtrunk_gateway.session.parameters import Profile
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["Names"]


class Names:
    """The statements of one session."""

    __slots__ = ("_lost", "_unlikely", "catalogue", "described", "dialect", "statements", "unnamed")

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.dialect: Profile = ()
        """The settings under which texts are parsed, see :func:`~pgtrunk_gateway.session.parameters.dialect`."""
        self.statements: dict[bytes, Statement] = {}
        """By the client's names."""
        self.unnamed: Statement | None = None
        self.described: set[bytes] = set()
        """The names of statements whose columns the client has been told: it is :attr:`Statement.told` then."""
        self._lost: dict[bytes, bytes] = {}
        """The client's names of statements that they do not mean any more, by ours: an error may yet be about them."""

        self._unlikely: list[tuple[bytes, Statement, Statement]] = []
        """Names that were in use when they were parsed again, in the batch that is being sent: before and after."""

    def speak(self, dialect: Profile) -> None:
        """The session's settings have changed.

        Where its statements have to be parsed again, that will be under these; so they are other statements now.
        """
        if dialect != self.dialect:
            self.dialect = dialect
            for name, statement in self.statements.items():
                if type(statement) is Statement:
                    anew = self._anew(name, statement, dialect)
                    if statement.told is not None and self._is_told(name, statement):
                        anew = self.catalogue.as_told(len(name), anew, statement.told)
                    self.statements[name] = anew

    def _anew(self, name: bytes, statement: Statement, dialect: Profile) -> Statement:
        anew = self.catalogue.intern(len(name), statement.body, dialect)
        anew.traces = anew.traces or statement.traces
        return anew

    def _is_told(self, name: bytes, statement: Statement) -> bool:
        """Whether the client goes by what it was told of ``statement``, which it calls so."""
        return statement.told is not None and (not name or name in self.described)

    def name(self, name: bytes, after: Statement) -> Statement | None:
        """A Parse gives ``name`` to ``after`` -> what it meant before, which makes it unlikely."""
        before = self.statements.get(name)
        self.statements[name] = after
        if before is not None:
            self._lost[before.name] = name
            self._unlikely.append((name, before, after))
        return before

    def batch_ends(self) -> None:
        """What comes next can rely on it that the Parse of a name in use has failed."""
        for name, before, after in reversed(self._unlikely):
            if self.statements.get(name) is after:
                self.statements[name] = before
        self._unlikely.clear()

    def redo(self, change: Naming) -> None:
        """The Parse of a name in use has not failed."""
        if change.after is not None and self.statements.get(change.name) is change.before:
            self.statements[change.name] = change.after

    def undo(self, change: Naming) -> None:
        """The request that made ``change`` was skipped or refused; a later one may have overtaken it."""
        name, after, before = change.name, change.after, change.before
        if not name:
            if self.unnamed is after:
                self.unnamed = before
        elif self.statements.get(name) is after:
            if after is not None:
                self._lost[after.name] = name
            if before is None:
                self.statements.pop(name, None)
            else:
                self.statements[name] = before
                if change.told:
                    self.described.add(name)

    def description(self, key: bytes) -> Description:
        """As an `Asker` has it."""
        return self.catalogue.description(key)

    def told(self, name: bytes, statement: Statement, description: Description, later: Iterable[Naming]) -> None:
        """The client has been told that ``statement``, which it calls ``name``, is described so.

        If others were told otherwise, the name means another statement from now on; ``later`` has what was asked behind
        it, where that is to be undone.
        """
        if not name:
            if self.unnamed is statement and not description.is_empty:
                statement.told = description
            return
        # Under other settings it may be another statement by now.
        meant = self.statements.get(name)
        if type(meant) is not Statement or meant.body != statement.body:
            return
        if meant.told is None and description.is_empty:
            return
        self.described.add(name)
        after = self.catalogue.tell(len(name), meant, description)
        if after is meant:
            return
        self._lost[meant.name] = name
        self.statements[name] = after
        for change in later:
            if change.name == name:
                change.before = after if change.before is meant else change.before
                change.after = after if change.after is meant else change.after

    def forget_all(self, later: Sequence[Naming]) -> None:
        """DISCARD ALL or DEALLOCATE ALL ran; ``later`` has what was asked after it."""
        asked = {(change.name, change.after) for change in later}
        for name, statement in list(self.statements.items()):
            if (name, statement) not in asked:
                self._lost[statement.name] = name
                del self.statements[name]
        for change in later:
            if change.name and change.before is not None and (change.name, change.before) not in asked:
                # The name is free, and its Parse, if it is one, not unlikely any more.
                change.before = None
                if change.after is not None:
                    self.statements[change.name] = change.after

    def retire(self) -> Iterable[Statement]:
        """The columns of one of them changed, and it is not known which: this session's names mean new ones.

        Other sessions keep theirs. Returns those that stay, to be parsed anew in place: SQL has made them, and nobody
        else has them; or the client was told their columns, and goes by these until it is told others.
        """
        kept = []
        for name, statement in self.statements.items():
            self.catalogue.retire(len(name), statement)
            if type(statement) is Statement and not self._is_told(name, statement):
                self._lost[statement.name] = name
                self.statements[name] = self._anew(name, statement, statement.dialect)
            else:
                kept.append(statement)
        return kept

    def in_own_names(self, message: bytes) -> bytes:
        """``message`` with the client's names of statements in place of ours; its length field is not corrected."""
        known = {statement.name: name for name, statement in self.statements.items() if statement.name}
        for ours, own in (known | self._lost).items():
            message = message.replace(b'"' + ours + b'"', b'"' + own + b'"')
        return message
