"""SQL commands that name prepared statements: their names become the gateway's, and follow the session like all others.

Between :class:`~pgtrunk_gateway.session.tracing.Tracing` and :class:`~pgtrunk_gateway.session.requests.Requests`.

- PREPARE makes a statement of a name of ours (:class:`~pgtrunk_gateway.session.sql_statements.Made`); on another
  backend the same PREPARE goes ahead, hidden, when the statement is first used there.
- EXECUTE, and what contains it, names the statement as the backend does, which has it then.
- DEALLOCATE makes the client's name free. The statement may be another session's too, so that what is deallocated is
  one in passing, made for it.
- In a simple query, each command leaves an entry of its own, up to the last that changes a name: what came before an
  error stays done. What has to be prepared for it goes ahead with a Sync; if that fails, the client gets this error.
- In the extended protocol such a text is a :class:`~pgtrunk_gateway.session.sql_statements.Template`: what its name
  means is looked up whenever it is bound, and what it changes is changed when its portal is executed.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrunk.wire import frontend as client
from pgtrunk_gateway.session import owed
from pgtrunk_gateway.session.sql.commands import DEALLOCATE, EXECUTE, PREPARE
from pgtrunk_gateway.session.sql.text import glance
from pgtrunk_gateway.session.sql.traces import NOTHING
from pgtrunk_gateway.session.sql_statements import Made, Template, passes, passing, quoted
from pgtrunk_gateway.session.statements import Statement, foreign
from pgtrunk_gateway.session.tracing import NO_READING, Tracing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgtrunk_gateway.session.owed import Owed
    from pgtrunk_gateway.session.replies import Replies
    from pgtrunk_gateway.session.sql.commands import Naming
    from pgtrunk_gateway.session.sql.traces import Traces
    from pgtrunk_gateway.session.statements import Catalogue

__all__ = ["Commanding"]


class Commanding(Tracing):
    """The commands of one session."""

    __slots__ = ("_begun", "_portals")

    def __init__(self, catalogue: Catalogue, *, tracked: bool, stir: Callable[[Traces], None] | None = None) -> None:
        super().__init__(catalogue, tracked=tracked, stir=stir)
        self._begun = 0
        self._portals: dict[bytes, Template] = {}
        """The portals that were bound to a template."""

    def _bound(self, portal: bytes, statement: Statement) -> None:
        if isinstance(statement, Template):
            self._portals[portal] = statement
        elif self._portals:
            self._portals.pop(portal, None)

    # -- simple queries ------------------------------------------------------------------------------------------------

    def _command(
        self, found: tuple[Naming, ...], traces: Traces, data: bytes, pos: int, end: int, replies: Replies
    ) -> None:
        """Puts the Query at ``pos`` with these commands in its text, which leaves ``traces``; the caller owes the entry
        of the query."""
        self._used = {self.statements[command.name] for command in found if command.name in self.statements}
        targets = self._look_up(found, traces, data, pos, replies)
        text, out, at = data[pos + 5 : end - 1], [], 0
        steps: list[Owed] = []
        for command in found:
            steps += [owed.COMMAND] * (command.number - len(steps))
            name, step = targets.pop(0)
            if isinstance(step, Made):
                step = self._expect_made(command.name, step, data, pos, replies, b"C")
            if step is not None:
                step.simple = True
                steps.append(step)
            out += [text[at : command.at], quoted(name)]
            at = command.upto
        while steps and steps[-1] is owed.COMMAND:
            steps.pop()
        self._used = ()
        self._entries += steps
        self._replace(data, pos, end, client.query(b"".join([*out, text[at:]])))

    def _look_up(
        self, found: tuple[Naming, ...], traces: Traces, data: bytes, pos: int, replies: Replies
    ) -> list[tuple[bytes, Owed | Made | None]]:
        """What each name is on the backend, and what its command leaves; sends ahead what that asks for."""
        targets: list[tuple[bytes, Owed | Made | None]] = []
        was_open = self.open
        ours: set[Statement] = set()
        can_fail = False
        for command in found:
            known = self.statements.get(command.name)
            if command.kind == PREPARE and known is None:
                made = Made(self.catalogue.new_name(len(command.name)), data[pos + 5 :], command)
                made.traces = traces or None
                ours.add(made)
                self.statements[command.name] = made
                targets.append((made.name, made))
            elif known is None:
                targets.append((self._foreign(command.name), None))
            elif command.kind == DEALLOCATE:
                targets.append(self._deallocate(command, known, data, pos))
            elif known in ours:
                targets.append((known.name, None))
            else:
                before = len(self._entries)
                if known.traces is not None:
                    self._touch(known.traces)
                targets.append((self._ensure(known, data, pos, replies).name, None))
                can_fail = can_fail or len(self._entries) > before
        if can_fail and not was_open:
            # Inside a batch a Sync would end its transaction; there all is skipped if it fails.
            self._cut(data, pos, client.SYNC_MESSAGE)
            self._entries.append(owed.AHEAD)
            self._begun = len(self._entries)
            replies.batch += 1
            self.open = False
        return targets

    def _deallocate(self, command: Naming, known: Statement, data: bytes, pos: int) -> tuple[bytes, owed.Naming]:
        name = passing(command.number)
        self._pass(name, command, data, pos)
        self._lost[known.name] = command.name
        del self.statements[command.name]
        told = command.name in self.described
        return name, owed.Naming("deallocate", b"C", command.name, known, None, told=told)

    def _pass(self, name: bytes, command: Naming, data: bytes, pos: int) -> None:
        self._lost[name] = command.name
        self._owe(owed.HIDDEN_CLOSE)
        self._owe(owed.HIDDEN_PARSE)
        self._cut(data, pos, passes(name))

    def _expect_made(
        self, name: bytes, made: Made, data: bytes, pos: int, replies: Replies, ends: bytes
    ) -> owed.Parsing:
        """PREPARE of ``made`` goes out -> what it leaves."""
        self._plain = False
        replies.prepared.expect(made, replies.batch, injected=False)
        self._make_room(data, pos, replies)
        return owed.Parsing(name, None, made, replies.batch, ends=ends)

    def _foreign(self, name: bytes) -> bytes:
        """What is sent for a name that means nothing."""
        theirs = foreign(name)
        if theirs is not name:
            self._lost[theirs] = name
        return theirs

    # -- the extended protocol -----------------------------------------------------------------------------------------

    def _statement(self, name: bytes, body: bytes, data: bytes, start: int, end: int) -> Statement:
        """What a Parse with the text at ``start`` makes; ``body`` is what it has behind the name."""
        text_end = data.find(0, start, end)
        # Looked at here as well, for what is parsed each time it is asked.
        reading = (
            self._read(data, start, text_end) if text_end > start and glance(data, start, text_end) else NO_READING
        )
        if reading is NO_READING:
            return self.catalogue.intern(len(name), body, self.dialect) if name else Statement(b"", body)
        if len(reading.naming) == 1 and self.tracked:
            statement: Statement = Template(name, body, reading.naming[0])
        else:
            statement = self.catalogue.intern(len(name), body, self.dialect) if name else Statement(b"", body)
        if reading.traces:
            statement.traces = reading.traces
        return statement

    def _leaves(self, statement: Statement) -> Traces | None:
        """The traces of running ``statement``."""
        if not isinstance(statement, Template):
            return statement.traces
        own, known = statement.traces or NOTHING, self.statements.get(statement.command.name)
        if statement.command.kind == PREPARE:
            # Its parameters have their values when what it makes is run.
            return own.unbound
        if statement.command.kind == EXECUTE and known is not None and known.traces is not None:
            return own | known.traces.resolved()
        return own

    def _ensure(self, statement: Statement, data: bytes, pos: int, replies: Replies) -> Statement:
        if isinstance(statement, Template):
            statement = self._resolve(statement, data, pos, replies)
        return super()._ensure(statement, data, pos, replies)

    def _resolve(self, template: Template, data: bytes, pos: int, replies: Replies) -> Statement:
        """What ``template`` is by what the names mean now, which the backend has then."""
        target = self._target(template, data, pos, replies), self.dialect
        variant = template.variant
        if variant is None or template.target != target:
            body = template.body_with(target[0])
            if template.own:
                variant = self.catalogue.intern(len(template.own), body, self.dialect)
            else:
                variant = Statement(b"", body)
            template.variant, template.target = variant, target
        if template.own:
            self._lost[variant.name] = template.own
        return variant

    def _target(self, template: Template, data: bytes, pos: int, replies: Replies) -> bytes:
        command = template.command
        known: Statement | None = self.statements.get(command.name)
        if isinstance(known, Template):
            # Nothing that EXECUTE could run; but it might be this one.
            known = known.variant
        if known is None:
            if command.kind != PREPARE:
                return self._foreign(command.name)
            template.made = template.made or Made(self.catalogue.new_name(len(command.name)), template.text, command)
            template.made.traces = template.traces
            return template.made.name
        if command.kind == DEALLOCATE:
            name = passing(0)
            self._plain = False
            self._pass(name, command, data, pos)
            return name
        return super()._ensure(known, data, pos, replies).name

    def _run(self, portal: bytes, data: bytes, pos: int, replies: Replies) -> Owed:
        """A portal is executed -> what that leaves."""
        template = self._portals.get(portal)
        if template is None:
            return owed.EXECUTE
        name, known = template.command.name, self.statements.get(template.command.name)
        if template.command.kind == PREPARE and known is None and template.made is not None:
            made, template.made = template.made, None
            self.statements[name] = made
            return self._expect_made(name, made, data, pos, replies, b"CIs")
        if template.command.kind == DEALLOCATE and known is not None:
            self._plain = False
            del self.statements[name]
            return owed.Naming("deallocate", b"CIs", name, known, None, told=name in self.described)
        return owed.EXECUTE
