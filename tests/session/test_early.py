"""Which requests may run from early data."""

from __future__ import annotations

import pytest

from pgtrunk.wire import frontend as client
from pgtrunk_gateway.session.early import LONGEST, acts_outside, is_whole, may_run_early

READS = [
    "select 1",
    "SELECT 1;",
    " -- why\n select /* not /* now */ */ name from users where id = 7",
    "(select 1) union all (select 2)",
    "select count(*), max(price) from orders where placed > now() - interval '1 day'",
    "with recent as (select * from orders) select * from recent",
    "values (1), (2)",
    "table orders",
    "show TimeZone",
    "select 'delete from orders; commit'",
    "select $$; drop table orders; $$",
    'select "Name" from "Users"',
    "select shop.price_of(7)",
    "select relname from pg_class",
    "select pg_class.relname from pg_class",
    "select 'Stra\u00dfe'",
]
WAITS = [
    "",
    ";",
    "-- nothing",
    "select 1; select 2",
    "select 1;;select 2",
    "commit; delete from orders",
    "select 1; commit; delete from orders",
    "rollback",
    "begin",
    "set transaction read write",
    "set transaction read write; delete from orders",
    "set session characteristics as transaction read write",
    "reset all",
    "delete from orders",
    "with gone as (delete from orders returning *) select * from gone",
    "with new as (insert into orders values (1) returning *) select * from new",
    "select * into copy_of_orders from orders",
    "select * from orders for update",
    "select * from orders for no key update skip locked",
    "select * from orders for share",
    "explain analyze delete from orders",
    "explain select 1",
    "copy orders to stdout",
    "copy (select 1) to program 'rm'",
    "do $$ begin commit; end $$",
    "call pay(7)",
    "execute pay",
    "prepare pay as select 1",
    "deallocate all",
    "discard all",
    "listen orders",
    "notify orders",
    "lock orders",
    "declare c cursor with hold for select 1",
    "fetch all from c",
    "select pg_notify('orders', '7')",
    "select pg_catalog.pg_notify ('orders', '7')",
    "select \"pg_notify\"('orders', '7')",
    "select PG_Notify/* */\n('orders', '7')",
    "select pg_advisory_lock(7)",
    "select pg_try_advisory_xact_lock(7)",
    "select pg_terminate_backend(pid) from pg_stat_activity",
    "select pg_cancel_backend(7)",
    "select pg_sleep(60)",
    "select set_config('transaction_read_only', 'off', false)",
    "select nextval('pg_temp.numbers')",
    "select setval('numbers', 7)",
    "select dblink_exec('dbname=shop', 'delete from orders')",
    "select * from dblink('dbname=shop', 'delete from orders returning 1') as t(one int)",
    "select lo_export(7, '/tmp/it')",
    "select query_to_xml('select pg_notify(1)', true, false, '')",
    "select * from ts_stat('select pg_notify(1)')",
    "select * from crosstab('select pg_notify(1)')",
    "select http_get('http://example.net')",
    "select U&\"\\0070g_notify\"('orders', '7')",
    "select U&\"!0070g_notify\" UESCAPE '!' ('orders', '7')",
    "select '\\'; delete from orders; --'",
    "select E'\\'; delete from orders; --'",
    "select (1; delete from orders)",
    "select 'not ended",
    "select $a$ not ended",
    "select /* not ended",
]


def batch(text: str, name: bytes = b"", portal: bytes = b"", described: bytes = b"") -> bytes:
    return (
        client.parse(name, text.encode())
        + client.bind(portal, name)
        + described
        + client.execute(portal)
        + client.SYNC_MESSAGE
    )


@pytest.mark.parametrize("text", READS)
def test_what_only_reads_may_run(text: str) -> None:
    assert may_run_early(client.query(text.encode()))
    assert may_run_early(batch(text))
    assert may_run_early(batch(text, described=client.describe_portal(b"")))


@pytest.mark.parametrize("text", WAITS)
def test_what_may_do_more_waits(text: str) -> None:
    assert not may_run_early(client.query(text.encode()))
    assert not may_run_early(batch(text))


ONE = client.query(b"select 1")
PARSE, BIND, EXECUTE, SYNC = (
    client.parse(b"", b"select 1"),
    client.bind(b"", b""),
    client.execute(),
    client.SYNC_MESSAGE,
)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        ONE + ONE,
        ONE + client.TERMINATE_MESSAGE,
        ONE + b"Q",
        ONE[:-3],
        ONE + SYNC,
        SYNC,
        PARSE + SYNC,
        PARSE + BIND + EXECUTE,
        PARSE + BIND + EXECUTE + client.FLUSH_MESSAGE,
        PARSE + BIND + EXECUTE + EXECUTE + SYNC,
        PARSE + BIND + EXECUTE + SYNC + ONE,
        PARSE + PARSE + BIND + EXECUTE + SYNC,
        BIND + EXECUTE + SYNC,
        PARSE + BIND + ONE,
        batch("select 1", name=b"named"),
        batch("select 1", portal=b"named"),
        batch("select 1", described=client.describe_statement(b"other")),
        batch("select 1", described=client.close_portal(b"")),
        client.query(b"select 1\0; delete from orders"),
        client.password(b"secret"),
        client.copy_data(b"1"),
        b"F\0\0\0\x0e\0\0\0\1\0\0\0\0\0\0",
        b"Q\0\0\0\2",
        b"!\0\0\0\4",
        client.query(b"select '" + b"a" * LONGEST + b"'"),
    ],
)
def test_what_is_not_one_request_waits(data: bytes) -> None:
    assert not may_run_early(data)


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"", False),
        (ONE[:3], False),
        (ONE[:-1], False),
        (ONE, True),
        (PARSE + BIND, False),
        (PARSE + BIND + EXECUTE + SYNC[:2], False),
        (PARSE + BIND + EXECUTE + SYNC, True),
        (b"!\0\0\0\4", True),
        (b"Q\0\0\0\2", True),
        (b"Q" + bytes(LONGEST), True),
    ],
)
def test_when_a_request_can_be_judged(data: bytes, whole: bool) -> None:
    assert is_whole(data) is whole


def test_functions_are_known_by_their_names() -> None:
    assert acts_outside(b"pg_try_advisory_lock")
    assert acts_outside(b"my_advisory_lock")
    assert not acts_outside(b"lower")
    assert not acts_outside(b"http".upper())
