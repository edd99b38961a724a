"""What sessions say by chance: conversations as hypothesis draws them, of several sessions that take turns.

Each says whole flights, of which it is known how their answers end. What is drawn keeps clear of the known differences
(:mod:`behaviour.differences`, :mod:`helpers.pipeline_differences`): a name is parsed once, and is used in the same
write only where its Parse comes first; it is closed when all is answered; what has a name means the same under all
settings; what the startup packet asked for is given back by DISCARD ALL alone. Whatever sessions make is their own, so
that none waits for another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hypothesis import strategies as st

from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    close_portal,
    close_statement,
    copy_data,
    copy_fail,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    from hypothesis.strategies import DrawFn

    T = TypeVar("T")

__all__ = ["ROLE", "SESSIONS", "STARTUPS", "Flight", "closing", "conversations", "ending"]

ROLE: Final = "improvising"
"""A role that the sessions may take, which may read their tables and nothing else."""
STARTUPS: Final[tuple[dict[str, str], ...]] = ({}, {"options": "-c lock_timeout=5s -c app.start=begun"}, {})
"""What each session says in its startup packet."""
SESSIONS: Final = len(STARTUPS)

PLAIN: Final = (
    b"select 1",
    b"select $1::int",
    b"select $1::text || 'x'",
    b"select generate_series(1, 3)",
    b"select 1/0",
    b"select 1/(random()*0)::int",
    b"selec",
    b"",
)
ALL_SETTINGS: Final = (
    b"select "
    + b", ".join(
        b"coalesce(current_setting('" + name + b"', true), '')"
        for name in (
            *(b"application_name", b"timezone", b"intervalstyle", b"client_encoding", b"standard_conforming_strings"),
            *(b"search_path", b"default_transaction_read_only", b"default_transaction_isolation", b"work_mem"),
            *(b"lock_timeout", b"escape_string_warning", b"app.k", b"app.j", b"app.start", b"role"),
            *(b"session_authorization", b"transaction_isolation", b"transaction_read_only"),
        )
    )
    + b", current_user, session_user"
)
SETTING_BOUND: Final = b"select 'a\\\\b'"
"""Means what standard_conforming_strings says; and a statement with a name, what that says when it is used."""
READS: Final = (
    ALL_SETTINGS,
    ALL_SETTINGS,
    b"show work_mem",
    b"show application_name",
    b"show transaction_isolation",
    SETTING_BOUND,
    b"select timestamptz '2020-01-31 12:00:00+00', interval '1 day'",
)
SETS: Final = (
    b"set application_name = 'a'",
    b"set application_name to b",
    b"set timezone = 'Asia/Tokyo'",
    b"set time zone local",
    b"set intervalstyle = 'iso_8601'",
    b"set client_encoding = 'latin1'",
    b"reset client_encoding",
    b"set standard_conforming_strings = off; set escape_string_warning = off",
    b"set search_path = nowhere",
    b"reset search_path",
    b"set default_transaction_read_only = on",
    b"set default_transaction_read_only = off",
    b"set session characteristics as transaction isolation level repeatable read",
    b"set work_mem = '1MB'",
    b"set work_mem = '2MB'",
    b"set local work_mem = '3MB'",
    b"reset work_mem",
    b"set lock_timeout = '7s'",
    b"set app.k = 'x'",
    b"set local app.k = 'l'",
    b"set app.k to default",
    b"set app.start = 'other'",
    b"select set_config('app.k', 'y', false)",
    b"select set_config('app.k', $1, false)",
    b"select set_config('work_mem', '4MB', true)",
    b"do $$ begin perform set_config('app.k', 'd', false); end $$",
    b"set role " + ROLE.encode(),
    b"set local role " + ROLE.encode(),
    b"reset role",
    b"set role none",
    b"set session authorization default",
    b"set work_mem = 'much'",
    b"set nonsense = 1",
)
BLOCKS: Final = (
    b"begin",
    b"begin",
    b"begin isolation level repeatable read",
    b"begin read only",
    b"start transaction",
    b"commit",
    b"commit",
    b"end",
    b"rollback",
    b"rollback",
    b"savepoint a",
    b"rollback to a",
    b"release a",
    b"commit and chain",
    b"rollback and chain",
)
PREPARED: Final = (b"select 7", b"select 1/0", b"selec", b"select set_config('app.k', 'p', false)")
OWN: Final = (
    b"insert into own_%d values (1)",
    b"insert into public.own_%d values (2)",
    b"select count(*), sum(n) from public.own_%d",
    b"copy public.own_%d to stdout",
    b"listen channel_%d",
    b"notify channel_%d, 'x'",
    b"listen channel_%d; notify channel_%d, 'y'",
    b"unlisten channel_%d",
    b"select pg_advisory_lock(%d)",
    b"select pg_advisory_unlock(%d)",
    b"select pg_advisory_xact_lock(%d)",
    b"create temp table made_%d (n int)",
    b"insert into made_%d values (1)",
    b"select count(*) from made_%d",
    b"drop table made_%d",
    b"declare held_%d cursor with hold for select generate_series(1, 3)",
    b"fetch 1 from held_%d",
    b"close held_%d",
    b"select set_config('app.' || 'j', '%d', false)",
)
"""Of these a session writes its number into."""
KINDS: Final = (PLAIN, READS, READS, SETS, SETS, BLOCKS, BLOCKS, OWN, OWN)
ALONE: Final = (b"deallocate all", b"discard all", b"discard temp", b"close all", b"unlisten *", b"rollback")
PIECES: Final = st.lists(st.integers(1, 400), max_size=3)


class Flight(NamedTuple):
    """What a session writes at once, cut behind so many octets; and the kinds that end the answers, one after another.

    Where an end is of several kinds, any of them is.
    """

    data: bytes
    ends: tuple[str, ...]
    cuts: tuple[int, ...] = ()


def once(text: bytes, limit: int = 0) -> bytes:
    return parse(b"", text) + bind(b"", b"", [b"1"] * text.count(b"$1")) + describe_portal(b"") + execute(b"", limit)


class Speaker:
    """One session, as ``draw`` decides."""

    def __init__(self, draw: DrawFn, number: int) -> None:
        self._draw = draw
        self._number = number
        self._names: list[bytes] = [b"unknown"]
        self._texts: dict[bytes, bytes] = {}
        self._asked = b""
        """The name of a statement that was prepared with Flush; the end of that batch is still to come."""

    def flight(self) -> Flight:
        """What it says next."""
        data, ends = self._say()
        cuts = self._draw(PIECES)
        return Flight(data, ends, tuple(sorted(cut for cut in cuts if cut < len(data))))

    def _say(self) -> tuple[bytes, tuple[str, ...]]:
        if self._asked:
            name, self._asked = self._asked, b""
            return (self._run(name) if self._draw(st.booleans()) else b"") + SYNC_MESSAGE, ("Z",)
        match self._draw(st.integers(0, 11)):
            case 0:
                return self._alone(), ("Z",)
            case 1:
                text = self._lasting_text()
                self._asked = name = self._new(text)
                self._names.append(name)
                return parse(name, text) + describe_statement(name) + FLUSH_MESSAGE, ("TnE",)
            case 2 | 3 | 4:
                units = self._draw(st.integers(2, 4))
            case _:
                units = 1
        made: list[bytes] = []
        data = b"".join(self._unit(made) for _ in range(units))
        self._names += made
        return data, ("Z",) * units

    # -- parts of a flight ---------------------------------------------------------------------------------------------

    def _pick(self, among: Sequence[T]) -> T:
        return among[self._draw(st.integers(0, len(among) - 1))]

    def _new(self, text: bytes) -> bytes:
        name = b"n%d" % (len(self._texts) + 1)
        self._texts[name] = text
        return name

    def _command(self) -> bytes:
        """A command of any kind; sometimes several."""
        among = self._pick(KINDS)
        text = self._pick(among)
        return text % ((self._number,) * text.count(b"%d")) if among is OWN else text

    def _text(self) -> bytes:
        """One for Parse, which takes one command."""
        text = self._command()
        return text if text.startswith(b"do ") else text.partition(b"; ")[0]

    def _lasting_text(self) -> bytes:
        """One for the Parse of a name."""
        text = self._text()
        return PLAIN[0] if text == SETTING_BOUND else text

    def _alone(self) -> bytes:
        name = self._pick(self._names[-5:])
        match self._draw(st.integers(0, 3)):
            case 0:
                return query(b'deallocate "' + name + b'"')
            case 1:
                return close_statement(name) + SYNC_MESSAGE
            case 2:
                return once(self._pick(ALONE)) + SYNC_MESSAGE
            case _:
                return query(self._pick(ALONE))

    def _unit(self, made: list[bytes]) -> bytes:
        """What ReadyForQuery answers once. ``made``: the names that later flights may use."""
        match self._draw(st.integers(0, 9)):
            case 0 | 1 | 2 | 3:
                return query(self._command())
            case 4:
                return query(b"; ".join(self._command() for _ in range(self._draw(st.integers(2, 3)))))
            case 5:
                text = self._lasting_text()
                self._names.append(self._new(text))
                return parse(self._names[-1], text) + SYNC_MESSAGE
            case 6:
                return self._pick((self._copy, self._prepare, self._execute))()
            case _:
                count = self._draw(st.integers(1, 4))
                return b"".join(self._message(made) for _ in range(count)) + SYNC_MESSAGE

    def _copy(self) -> bytes:
        data = self._pick(
            (copy_data(b"7\n") + COPY_DONE_MESSAGE, copy_data(b"x\n") + COPY_DONE_MESSAGE, copy_fail(b"no"))
        )
        return query(b"copy own_%d from stdin" % self._number) + data

    def _prepare(self) -> bytes:
        text = self._pick(PREPARED)
        self._names.append(self._new(text))
        return query(b'select 1; prepare "' + self._names[-1] + b'" as ' + text)

    def _execute(self) -> bytes:
        name = self._pick(self._names[-5:])
        # EXECUTE of these outside of a block is a FATAL "unexpected state" of PostgreSQL's own.
        if self._texts.get(name, b"").startswith((b"savepoint", b"release", b"rollback to")):
            name = self._names[0]
        return query(b'execute "' + name + b'"')

    def _message(self, made: list[bytes]) -> bytes:
        match self._draw(st.integers(0, 8)):
            case 0:
                text = self._lasting_text()
                made.append(self._new(text))
                return parse(made[-1], text) + self._run(made[-1])
            case 1:
                return describe_statement(self._pick(self._names[-5:]))
            case 2:
                return FLUSH_MESSAGE
            # The unnamed portal may be what a simple query has left that failed: PostgreSQL 18 crashes over that one.
            case 3:
                return execute(b"p", self._draw(st.integers(0, 2)))
            case 4:
                return describe_portal(b"p") + close_portal(b"p")
            case 5 | 6:
                return once(self._text(), self._draw(st.integers(0, 1)))
            case _:
                return self._run(self._pick(self._names[-5:]))

    def _run(self, name: bytes) -> bytes:
        portal = self._pick((b"", b"", b"p"))
        values = [b"1"] * self._draw(st.integers(0, 1))
        return bind(portal, name, values) + describe_portal(portal) + execute(portal, self._draw(st.integers(0, 1)))


@st.composite
def conversations(draw: DrawFn) -> list[tuple[int, Flight]]:
    """Whose turn it is, and what it says."""
    speakers = [Speaker(draw, number) for number in range(SESSIONS)]
    turns = draw(st.lists(st.integers(0, SESSIONS - 1), min_size=2, max_size=14))
    return [(who, speakers[who].flight()) for who in turns]


def closing(number: int) -> Flight:
    """What shows what a session has in the end."""
    texts = (b"rollback", ALL_SETTINGS, b"select n from public.own_%d" % number, b"select n from made_%d" % number)
    return Flight(SYNC_MESSAGE + b"".join(map(query, texts)), ("Z",) * 5)


def ending(number: int) -> Flight:
    """What brings it back to where it began."""
    texts = (b"discard all", b"delete from own_%d" % number)
    return Flight(b"".join(map(query, texts)), ("Z",) * 2)
