"""Conversations about prepared statements, those of SQL too, as in :mod:`behaviour.portal_conversations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgtrunk.wire.frontend import (
    FLUSH_MESSAGE,
    SYNC_MESSAGE,
    bind,
    close_statement,
    copy_data,
    describe_portal,
    describe_statement,
    execute,
    parse,
    query,
)

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["STATEMENTS"]

SYNC, FLUSH = SYNC_MESSAGE, FLUSH_MESSAGE
ONE, TEXT = b"select $1::int", b"select $1::text"


def run(statement: bytes = b"", *values: bytes | None) -> bytes:
    return bind(b"", statement, values) + describe_portal(b"") + execute()


def once(sql: bytes, *values: bytes | None) -> bytes:
    return parse(b"", sql) + run(b"", *values)


def said(sql: bytes) -> Step:
    """A simple query."""
    return query(sql), "Z"


def batch(*messages: bytes) -> Step:
    return b"".join(messages) + SYNC, "Z"


STATEMENTS: Final[dict[str, list[Step]]] = {
    "prepare, execute, deallocate": [
        said(b"prepare a as select 1"),
        said(b"execute a"),
        said(b"execute a"),
        said(b"deallocate a"),
        said(b"execute a"),
        said(b"deallocate a"),
        said(b"prepare a as select 2"),
        said(b"EXECUTE a;"),
        said(b"deallocate prepare A"),
    ],
    "with types and values": [
        said(b"prepare a (int, text, numeric(10,2)[]) as select $1, $2 || '!', $3"),
        said(b"execute a (1, 'it''s', '{1.5}')"),
        said(b"execute a (1)"),
        said(b"execute a ('x', 'y', null)"),
        batch(describe_statement(b"a")),
        batch(run(b"a", b"7", b"seven", b"{7}")),
        batch(close_statement(b"a")),
        said(b"execute a (1, '', null)"),
    ],
    "names": [
        said(b'prepare "A b;""c" as select 1; prepare B as select 2'),
        said(b'execute "A b;""c"; execute b; execute "b"'),
        said(b'execute "B"'),
        said(b'execute "~0"'),
        said(b'deallocate "~0"'),
        batch(run(b"~0")),
        batch(describe_statement(b"~0")),
        batch(close_statement(b"~0"), close_statement(b"~1"), close_statement(b"~2")),
        said(b'prepare "~0" as select 3'),
        said(b'execute "~0"'),
        said(b"execute b; execute b"),
        said(b"prepare " + b"n" * 63 + b" as select 5"),
        said(b"execute " + b"n" * 63),
        said(b'deallocate "A b;""c"; deallocate b; deallocate "~0"; execute b'),
    ],
    "a name in use": [
        said(b"prepare a as select 1"),
        said(b"prepare a as select 2"),
        said(b"prepare a as selec"),
        batch(parse(b"a", b"select 3")),
        said(b"execute a"),
        batch(parse(b"p", ONE)),
        said(b"prepare p as select 4"),
        batch(run(b"p", b"5")),
        said(b"deallocate p; prepare p as select 6; execute p"),
        batch(run(b"p")),
    ],
    "what fails makes nothing": [
        said(b"prepare a as selec"),
        said(b"prepare a as select * from nowhere"),
        said(b"execute a"),
        said(b"prepare a as select 1; select 1/0; prepare b as select 2"),
        said(b"execute a"),
        said(b"execute b"),
        said(b"select 1; deallocate a; select 1/0"),
        said(b"execute a"),
        said(b"select 1/0; prepare c as select 3"),
        said(b"execute c"),
        said(b"prepare c as select 3; selec"),
        said(b"prepare c as select 3; execute c"),
        said(b"prepare v as vacuum"),
        said(b"execute v"),
    ],
    "of the protocol, in sql": [
        batch(parse(b"s", ONE)),
        said(b"execute s (3)"),
        said(b"explain (costs off) execute s (3)"),
        said(b"create temp table x on commit drop as execute s (4)"),
        said(b"deallocate s"),
        batch(run(b"s", b"1")),
        batch(parse(b"s", TEXT), run(b"s", b"x")),
        said(b"deallocate all"),
        batch(run(b"s", b"y")),
        batch(parse(b"s", TEXT), run(b"s", b"z")),
        said(b"discard all"),
        said(b"execute s ('z')"),
    ],
    "of sql, in the protocol": [
        batch(once(b"prepare a as select 1")),
        batch(once(b"execute a")),
        batch(run(b"a")),
        batch(once(b"explain (costs off) execute a")),
        batch(once(b"prepare a as select 2")),
        batch(once(b"deallocate a")),
        batch(once(b"execute a")),
        batch(once(b"deallocate a")),
        batch(once(b"prepare b as select 3"), once(b"execute b"), once(b"deallocate b")),
        batch(once(b"prepare b as select 4"), once(b"execute b"), once(b"select 1/0"), once(b"deallocate b")),
        batch(once(b"execute b")),
        batch(once(b"deallocate all")),
        batch(once(b"execute b")),
    ],
    "named texts that name others": [
        batch(parse(b"p", b"prepare a as select 1"), parse(b"d", b"deallocate a")),
        batch(run(b"p")),
        batch(run(b"p")),
        batch(parse(b"e", b"execute a"), describe_statement(b"e")),
        batch(run(b"e"), run(b"e")),
        batch(run(b"d")),
        batch(run(b"d")),
        batch(run(b"p"), run(b"d"), run(b"p")),
        batch(run(b"e")),
        batch(close_statement(b"p"), close_statement(b"d"), close_statement(b"e")),
        batch(run(b"e")),
    ],
    "inside a transaction": [
        said(b"begin"),
        said(b"prepare a as select 1"),
        said(b"execute a"),
        said(b"rollback"),
        said(b"execute a"),
        said(b"begin; select 1/0"),
        said(b"execute a"),
        said(b"deallocate a"),
        said(b"prepare b as select 2"),
        said(b"rollback"),
        said(b"execute a"),
        said(b"execute b"),
        said(b"begin; prepare b as select 3; commit; execute b"),
    ],
    "what happens is undone where it is skipped": [
        batch(parse(b"s", ONE)),
        (run(b"no") + query(b"prepare a as select 1; deallocate s") + SYNC, "Z"),
        said(b"execute a"),
        batch(run(b"s", b"1")),
        (once(b"select 1/0") + once(b"deallocate s") + once(b"prepare a as select 2") + SYNC, "Z"),
        batch(run(b"s", b"2")),
        said(b"execute a"),
    ],
    "pipelined": [
        (
            b"".join(query(sql) for sql in (b"prepare a as select 1", b"execute a", b"deallocate a", b"execute a"))
            + parse(b"a", ONE)
            + run(b"a", b"1")
            + SYNC
            + query(b"execute a (2)")
            + query(b"deallocate a"),
            "ZZZZZZZ",
        ),
        (query(b"select 1; prepare b as select 5") + query(b"execute b") + once(b"execute b") + SYNC, "ZZZ"),
    ],
    "with copy": [
        said(b"prepare a as select count(*) from t"),
        (query(b"prepare b as select 1; copy t from stdin; execute a; execute b"), "G"),
        (copy_data(b"1\n") + b"c\0\0\0\4", "Z"),
        (query(b"prepare c as select 1; copy t from stdin; execute c") + copy_data(b"x\n") + b"c\0\0\0\4", "Z"),
        said(b"execute c"),
    ],
    "comments, quotes and bodies": [
        said(b"/* prepare x */ prepare a as select ';execute b' as \"execute c\" -- execute d"),
        said(b"-- first\nexecute a /* and */"),
        said(b"do $$ begin perform 'prepare a as select 1;'; end $$; execute a"),
        said(b"create function f_of_statements() returns int begin atomic select 1; select 2; end; execute a"),
        said(b"execute a; select f_of_statements(); drop function f_of_statements()"),
        said(b"select $x$; execute a; $x$, E'\\'; execute a', 'a''; execute a'; execute a"),
        said(b"execute a; 'open"),
        said(b"prepare"),
        said(b"execute"),
        said(b"deallocate"),
        said(b"set standard_conforming_strings = off"),
        said(b"set escape_string_warning = off; select 'a\\'; execute b'; execute a"),
        said(b"discard all"),
    ],
    "the unnamed statement": [
        batch(parse(b"", ONE)),
        batch(run(b"", b"1")),
        batch(describe_statement(b"")),
        said(b"select 1"),
        batch(run(b"", b"1")),
        batch(parse(b"", b"prepare u as select 8")),
        batch(run()),
        batch(run()),
        batch(parse(b"", b"execute u")),
        batch(run()),
        batch(run(), run()),
    ],
    "duplicates, unknown names and failures": [
        batch(parse(b"s", ONE)),
        batch(parse(b"s", TEXT)),
        batch(run(b"s", b"4")),
        batch(run(b"no")),
        batch(describe_statement(b"no")),
        batch(close_statement(b"no")),
        batch(parse(b"f", b"selec")),
        batch(parse(b"f", b"select 1")),
        batch(run(b"f")),
    ],
    "a query inside a batch": [
        (parse(b"s", ONE) + run(b"s", b"1") + query(b"select 2") + run(b"s", b"3") + SYNC, "ZZ"),
        (once(b"select 1/0") + query(b"select 2") + run(b"s", b"3") + SYNC, "Z"),
        (run(b"s", b"4") + FLUSH + query(b"execute s (5)") + run(b"s", b"6") + SYNC, "ZZ"),
    ],
    "a thousand queries at once": [(b"".join(query(b"select %d" % n) for n in range(1000)), "Z" * 1000)],
    "a thousand batches at once": [
        (
            parse(b"s", ONE) + b"".join(run(b"s", b"%d" % n if n % 100 else b"x") + SYNC for n in range(1000)),
            "Z" * 1000,
        )
    ],
}
