"""Conversations about what a session has beyond its transactions, as in :mod:`behaviour.portal_conversations`.

Where no other backend has it, a session keeps its backend in transaction mode: that is so in those of :data:`PINS`, and
in no others. Advisory locks are first waited for: who held them before may not have given them back yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from behaviour.statement_conversations import batch, once, run, said
from pgtrunk.wire.frontend import FLUSH_MESSAGE, describe_portal, execute, parse, query

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["PINS", "STATES"]

SERIES: Final = b"select generate_series(1, 5)"
WHERE: Final = b"select coalesce(current_setting('app.place', true), '')"

PINS: Final[dict[str, list[Step]]] = {
    "listening": [
        said(b"listen one"),
        said(b"notify one, 'first'"),
        said(b"select pg_notify('one', 'second'), pg_notify('another', 'third')"),
        said(b"unlisten one"),
        said(b"notify one, 'fourth'"),
        said(b"select 1"),
    ],
    "listening, in a transaction": [
        said(b"begin"),
        said(b"listen two"),
        said(b"notify two, 'first'"),
        said(b"commit"),
        said(b"begin; notify two, 'rolled back'; rollback"),
        said(b"begin; unlisten two; rollback"),
        said(b"notify two, 'second'"),
        said(b"unlisten *"),
        said(b"notify two"),
    ],
    "listening, in the extended protocol": [
        batch(once(b"listen three")),
        batch(once(b"notify three, 'a'"), once(b"select 1")),
        batch(parse(b"n", b"select pg_notify('three', $1)"), run(b"n", b"b"), run(b"n", b"b"), run(b"n", b"c")),
        batch(parse(b"u", b"unlisten three"), run(b"u")),
        batch(run(b"n", b"d")),
    ],
    "listening, in a pipeline": [
        (query(b"listen four") + query(b"notify four") + query(b"select 1") + query(b"notify four, 'x'"), "ZZZZ"),
        (query(b"listen five; notify five") + query(b"unlisten *") + query(b"notify four"), "ZZZ"),
        said(b"select 1"),
    ],
    "listening, up to DISCARD ALL": [
        said(b"listen six; listen seven"),
        said(b"notify six; notify seven, 'x'"),
        said(b"discard all"),
        said(b"notify six; notify seven, 'x'"),
    ],
    "a temporary table": [
        said(b"create temp table own (n int)"),
        said(b"insert into own values (1), (2)"),
        batch(parse(b"s", b"select n from own"), run(b"s")),
        said(b"begin; insert into own values (3)"),
        said(b"rollback"),
        batch(run(b"s")),
        said(b"drop table own"),
        batch(run(b"s")),
        said(b"select * from own"),
    ],
    "a temporary table in place of another": [
        said(b"insert into t values (7)"),
        said(b"create temp table t as select 'own' as n"),
        said(b"select n from t"),
        said(b"select n from public.t"),
        said(b"drop table pg_temp.t"),
        said(b"select n from t"),
    ],
    "a temporary table, made otherwise": [
        said(b"select 1 as n into temp own"),
        said(b"select n from own"),
        said(b"create temporary table pg_temp.own2 on commit delete rows as select 2 as n"),
        said(b"select count(*) from own2"),
        batch(once(b"create temp table own3 as select $1::int as n", b"3")),
        batch(once(b"select n from own3")),
        said(b"discard temp"),
        said(b"select n from own"),
    ],
    "other things that are temporary": [
        said(b"create temp sequence own_s; create temp view own_v as select 1 as n"),
        said(b"select nextval('own_s'), n from own_v"),
        said(b"select currval('own_s')"),
        said(b"create function pg_temp.own_f() returns int language sql as 'select 5'"),
        said(b"select pg_temp.own_f()"),
        said(b"discard all"),
        # Whether there is a schema pg_temp, without anything in it, depends on what the backend has had before.
        said(b"select count(*) from pg_proc where proname = 'own_f'"),
        said(b"select n from own_v"),
    ],
    "a temporary table that a failed transaction leaves alone": [
        said(b"begin; create temp table own (n int)"),
        said(b"savepoint a"),
        said(b"create temp table own (n int)"),
        said(b"rollback to a; commit"),
        said(b"select count(*) from own"),
        said(b"begin; drop table own; rollback"),
        said(b"select count(*) from own"),
    ],
    "a lock": [
        said(b"select pg_advisory_lock(5001)"),
        said(b"select pg_try_advisory_lock(5001)"),
        said(b"select pg_advisory_unlock(5001)"),
        said(b"select pg_advisory_unlock(5001)"),
        said(b"select pg_advisory_unlock(5001)"),
        said(b"select 1"),
    ],
    "locks of all kinds": [
        said(b"select pg_advisory_lock(5002, 1), pg_advisory_lock_shared(5002, 2)"),
        batch(once(b"select pg_try_advisory_lock_shared($1, 2)", b"5002")),
        said(
            b"select count(*) from pg_locks where locktype = 'advisory' and classid = 5002 and pid = pg_backend_pid()"
        ),
        said(b"select pg_advisory_unlock_shared(5002, 2)"),
        said(b"select pg_advisory_unlock_all()"),
        said(b"select pg_advisory_unlock(5002, 1)"),
    ],
    "a lock outlives its transaction": [
        said(b"begin; select pg_advisory_lock(5003)"),
        said(b"rollback"),
        said(b"select pg_advisory_unlock(5003)"),
        said(b"begin; select pg_advisory_lock(5003); select 1/0"),
        said(b"commit"),
        said(b"select pg_advisory_unlock(5003)"),
    ],
    "a cursor that is held": [
        said(b"begin"),
        said(b"declare h scroll cursor with hold for " + SERIES),
        said(b"fetch 1 from h"),
        said(b"commit"),
        said(b"fetch 2 from h"),
        said(b"move backward 1 in h; fetch 1 from h"),
        said(b"begin; fetch 1 from h; rollback"),
        said(b"fetch all from h"),
        said(b"close h"),
        said(b"fetch 1 from h"),
    ],
    "a cursor that is held is a portal": [
        said(b"declare h cursor with hold for " + SERIES),
        batch(describe_portal(b"h"), execute(b"h", 2)),
        batch(once(b"fetch 1 from h")),
        (execute(b"h", 1) + FLUSH_MESSAGE, "s"),
        batch(once(b"close h")),
        batch(execute(b"h", 1)),
    ],
    "settings of which the names are put together": [
        said(b"select set_config('app.' || 'place', 'here', false)"),
        said(WHERE),
        said(b"begin; select set_config('app.' || 'place', 'there', false); rollback"),
        said(WHERE),
        said(b"discard all"),
        said(WHERE),
    ],
    "a backend that is kept, and all else": [
        batch(parse(b"before", b"select $1::int"), run(b"before", b"1")),
        said(b"prepare before_sql as select 2"),
        said(b"set app.place = 'before'"),
        said(b"create temp table own (n int)"),
        batch(run(b"before", b"1")),
        said(b"execute before_sql"),
        batch(parse(b"while", b"select count(*) from own"), run(b"while")),
        said(b"prepare while_sql as select 3; set app.place = 'while'"),
        said(b"execute while_sql"),
        said(WHERE),
        batch(parse(b"while", b"select 1")),
        batch(once(b"deallocate before")),
        batch(run(b"before", b"1")),
        said(b"drop table own"),
        said(WHERE),
        said(b"execute while_sql; execute before_sql"),
        batch(parse(b"after", b"select $1::int"), run(b"after", b"1")),
        batch(run(b"while")),
        said(b"discard all"),
        said(WHERE),
        batch(run(b"after", b"1")),
    ],
    "a backend that is kept twice": [
        said(b"create temp table own (n int)"),
        said(b"select pg_advisory_lock(5004)"),
        said(b"drop table own"),
        said(b"select pg_advisory_unlock(5004)"),
        said(b"select 1"),
        said(b"create temp table own (n int)"),
        said(b"insert into own values (1); select n from own"),
        said(b"discard all"),
        said(b"select n from own"),
    ],
}

STATES: Final[dict[str, list[Step]]] = {
    "nobody listens": [
        said(b"begin; listen eight"),
        said(b"rollback"),
        said(b"notify eight"),
        said(b"listen eight; unlisten eight"),
        said(b"notify eight"),
        said(b"begin; listen eight; notify eight; unlisten eight; commit"),
        said(b"unlisten never; unlisten *"),
        said(b"listen"),
        said(b"select 1"),
    ],
    "temporary for a transaction": [
        said(b"begin"),
        said(b"create temp table own (n int) on commit drop"),
        said(b"insert into own values (1)"),
        said(b"select n from own"),
        said(b"commit"),
        said(b"select n from own"),
        said(b"begin; create temp table own (n int)"),
        said(b"select n from own"),
        said(b"rollback"),
        said(b"select n from own"),
        said(b"create temp table own (n int) on commit drop; insert into own values (2); select n from own"),
        said(b"select n from own"),
    ],
    "temporary for a savepoint": [
        said(b"begin; savepoint a; create temp table own (n int)"),
        said(b"rollback to a"),
        said(b"select n from own"),
        said(b"commit"),
    ],
    "never made": [
        said(b"create temp table own (n nothing)"),
        said(b"create temp table own (n int); select 1/0"),
        said(b"select n from own"),
        batch(once(b"create temp table own (n int)"), once(b"select 1/0")),
        said(b"select n from own"),
        said(b"create temp table own (n int); drop table own"),
        said(b"select n from own"),
    ],
    "locks of a transaction": [
        said(b"begin; select pg_advisory_xact_lock(5005)"),
        said(b"select pg_try_advisory_xact_lock(5005), pg_advisory_unlock(5005)"),
        said(b"commit"),
        said(b"select pg_advisory_xact_lock_shared(5005)"),
        said(b"select pg_advisory_lock(5006), pg_advisory_unlock(5006)"),
        said(b"select pg_advisory_unlock_all()"),
    ],
    "a cursor that is not held any more": [
        said(b"begin; declare h cursor with hold for " + SERIES),
        said(b"fetch 1 from h"),
        said(b"rollback"),
        said(b"fetch 1 from h"),
        said(b"declare h cursor with hold for " + SERIES + b"; close h"),
        said(b"declare h cursor with hold for " + SERIES + b"; close all"),
        said(b"close h"),
        said(b"close all"),
    ],
    "sequences, in one transaction": [
        said(b"begin; create sequence own_numbers"),
        said(b"select nextval('own_numbers'), nextval('own_numbers')"),
        said(b"select currval('own_numbers'), lastval(), setval('own_numbers', 9)"),
        said(b"commit"),
        said(b"select nextval('own_numbers')"),
        said(b"drop sequence own_numbers"),
    ],
    "a library that is refused": [
        said(b"load 'plpgsql'"),
        said(b"select 1"),
    ],
    "words that mean nothing": [
        said(b"select 'listen x', 'create temp table y', $$ pg_advisory_lock(1) $$"),
        said(b'select 1 as temp, 2 as "listen", 3 as hold -- create temp table own (n int)'),
        said(b"select proname from pg_proc where proname = 'pg_advisory_lock_shared' limit 1"),
        said(b"create table temporary_not (n int); drop table temporary_not"),
        said(b"do $$ begin perform 'create table temp'; end $$"),
    ],
}
