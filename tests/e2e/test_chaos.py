"""Clients that do everything, rightly and wrongly, at once on few backends: nobody gets what is another's, what was
committed is there, what was not is not, and in the end the pool is as good as new."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import pytest

from helpers.gateways import POOLED
from helpers.raw_session import RawSession
from helpers.waiting import until
from pgtrunk.wire import frontend

if TYPE_CHECKING:
    from helpers.gateways import LocalGateway, Start
    from helpers.raw_session import Message

CLIENTS: Final = 14
BACKENDS: Final = 4
_GONE: Final = ("57P01", "08006")
"""What a session is told whose backend somebody has ended."""


class Client:
    """One after the other it opens sessions, each of which does a few things and then ends in some way."""

    def __init__(self, gateway: LocalGateway, number: int, luck: random.Random) -> None:
        self.gateway = gateway
        self.number = number
        self.luck = luck
        self.committed = 0
        self.did = 0
        self.session: RawSession
        self.doings: tuple[Callable[[], Awaitable[None]], ...] = (
            self.simple, self.simple, self.extended, self.pipeline, self.failing_pipeline, self.named, self.large,
            self.insert, self.insert, self.rollback, self.copy_in, self.copy_out, self.cancelled, self.broken,
        )  # fmt: skip
        self.ends: tuple[Callable[[], Awaitable[None]], ...] = (
            self.terminate, self.terminate, self.vanish, self.vanish_in_a_query, self.vanish_in_a_transaction,
            self.vanish_in_a_batch, self.vanish_in_a_copy, self.vanish_in_a_message, self.vanish_unread,
            self.break_the_protocol, self.lose_the_backend,
        )  # fmt: skip

    async def run(self, sessions: int) -> None:
        for _ in range(sessions):
            self.session = await RawSession.start(self.gateway, self.luck.choice(POOLED))
            for _ in range(self.luck.randrange(4)):
                await self.luck.choice(self.doings)()
                self.did += 1
            await self.luck.choice(self.ends)()
            self.did += 1

    # -- what is asked and answered

    def value(self) -> bytes:
        """Nobody else has it, nor had this client before."""
        return b"%d-%d-%d" % (self.number, self.did, self.luck.randrange(1 << 30))

    async def answers(self, *request: bytes, batches: int = 1) -> list[Message]:
        self.session.send(*request)
        return await self.session.until_ready(batches)

    def check(self, messages: list[Message], kinds: str, *values: bytes) -> None:
        told = self.session.kinds(messages)
        errors = [message.error for message in messages if message.kind == "E"]
        assert told == kinds, (told, kinds, errors)
        rows = [message.body[6:] for message in messages if message.kind == "D"]
        assert rows == list(values)

    async def simple(self) -> None:
        value = self.value()
        self.check(await self.answers(frontend.query(b"SELECT '%s'" % value)), "TDCZI", value)

    def batch(self, value: bytes, name: bytes = b"") -> bytes:
        return frontend.bind(b"", name, [value]) + frontend.execute()

    async def extended(self) -> None:
        value = self.value()
        # Texts that others have too, so that statements are shared and pushed out.
        text = b"SELECT $1::text, %d" % self.luck.randrange(30)
        name = self.luck.choice([b"", b"n%d" % self.luck.randrange(1000)])
        request = [frontend.parse(name, text), self.batch(value, name)]
        request += [frontend.close_statement(name)] if name else []
        messages = await self.answers(*request, frontend.SYNC_MESSAGE)
        assert self.session.kinds(messages) == f"12DC{'3' if name else ''}ZI"
        assert [value in message.body for message in messages if message.kind == "D"] == [True]

    async def pipeline(self) -> None:
        values = [self.value() for _ in range(self.luck.randrange(2, 20))]
        parse = frontend.parse(b"", b"SELECT $1::text")
        request = [parse + self.batch(value) + frontend.SYNC_MESSAGE for value in values]
        self.check(await self.answers(*request, batches=len(values)), "12DCZ" * len(values) + "I", *values)

    async def failing_pipeline(self) -> None:
        value = self.value()
        bad = (
            frontend.parse(b"bad", b"SELECT 1 / ($1::int + (random() * 0)::int)")
            + self.batch(b"0", b"bad")
            + self.batch(b"1", b"bad")
        )
        good = frontend.parse(b"bad", b"SELECT $1::text") + self.batch(value, b"bad") + frontend.close_statement(b"bad")
        close = frontend.close_statement(b"bad") + frontend.SYNC_MESSAGE
        self.check(
            await self.answers(bad + frontend.SYNC_MESSAGE, close, good + frontend.SYNC_MESSAGE, batches=3),
            "12EZ" + "3Z" + "12DC3ZI",
            value,
        )

    async def named(self) -> None:
        """Prepared as asyncpg does it, with Flush, and used in several batches."""
        text = b"SELECT $1::text AS n%d" % self.luck.randrange(20)
        self.session.send(frontend.parse(b"stmt", text), frontend.describe_statement(b"stmt"), frontend.FLUSH_MESSAGE)
        assert self.session.kinds(await self.session.until("TE")) == "1tT"
        for _ in range(self.luck.randrange(4)):
            value = self.value()
            self.check(await self.answers(self.batch(value, b"stmt"), frontend.SYNC_MESSAGE), "2DCZI", value)
        close = frontend.close_statement(b"stmt") + frontend.SYNC_MESSAGE
        self.check(await self.answers(close), "3ZI")

    async def insert(self) -> None:
        row = b"INSERT INTO chaos VALUES (%d, %d)" % (self.number, self.committed)
        self.check(await self.answers(frontend.query(b"BEGIN; " + row)), "CCZT")
        if self.luck.random() < 0.3:
            await asyncio.sleep(self.luck.random() / 100)
        self.check(await self.answers(frontend.query(b"COMMIT")), "CZI")
        self.committed += 1

    async def rollback(self) -> None:
        row = b"INSERT INTO chaos VALUES (%d, %d)" % (self.number, self.committed)
        self.check(await self.answers(frontend.query(b"BEGIN")), "CZT")
        self.check(await self.answers(frontend.query(row)), "CZT")
        self.check(await self.answers(frontend.query(row)), "EZE")
        self.check(await self.answers(frontend.query(self.luck.choice([b"ROLLBACK", b"COMMIT"]))), "CZI")

    async def broken(self) -> None:
        """Messages whose content is wrong are refused by Postgres itself, and the session goes on."""
        message = self.luck.choice([b"B\0\0\0\x05x", b"P\0\0\0\x06ab", b"D\0\0\0\x05S"])
        self.check(await self.answers(message, frontend.SYNC_MESSAGE), "EZI")

    async def copy_in(self) -> None:
        begin, committed = self.committed, self.luck.randrange(1, 200)
        self.session.send(frontend.query(b"COPY chaos FROM STDIN"))
        assert self.session.kinds(await self.session.until("GE")) == "G"
        rows = b"".join(b"%d\t%d\n" % (self.number, begin + at) for at in range(committed))
        if self.luck.random() < 0.5:
            self.session.send(frontend.copy_data(rows), frontend.copy_fail(b"no"))
            self.check(await self.session.until_ready(), "EZI")
        else:
            self.session.send(frontend.copy_data(rows), frontend.COPY_DONE_MESSAGE)
            self.check(await self.session.until_ready(), "CZI")
            self.committed += committed

    async def copy_out(self) -> None:
        rows = self.luck.randrange(3000)
        query = b"COPY (SELECT %d, n FROM generate_series(1, %d) n) TO STDOUT" % (self.number, rows)
        messages = await self.answers(frontend.query(query))
        assert self.session.kinds(messages) == "H" + "d" * rows + "cCZI"
        assert all(message.body.startswith(b"%d\t" % self.number) for message in messages if message.kind == "d")

    async def large(self) -> None:
        value = self.value() * self.luck.randrange(1, 30_000)
        request = frontend.parse(b"", b"SELECT $1::text") + self.batch(value) + frontend.SYNC_MESSAGE
        self.check(await self.answers(request), "12DCZI", value)

    async def cancelled(self) -> None:
        """By its own request, which comes before it begins, while it waits or runs, or after its end."""
        seconds = self.luck.choice([b"0", b"0.001", b"60"])
        self.session.send(frontend.query(b"SELECT pg_sleep(%s)" % seconds))
        await asyncio.sleep(self.luck.choice([0, 0, 0.001, 0.01]))
        while True:
            cancel = await RawSession.open(self.gateway, self.luck.choice(POOLED))
            cancel.send(self.session.cancel_request())
            await cancel.until_lost()
            if seconds != b"60" or self.session.has_answer:
                break
        messages = await self.session.until_ready()
        codes = [message.error.sqlstate for message in messages if message.kind == "E"]
        assert codes in ([], ["57014"])

    # -- ends

    async def terminate(self) -> None:
        self.session.send(frontend.TERMINATE_MESSAGE)
        assert await self.session.until_lost() == []

    async def vanish(self) -> None:
        self.session.abort()

    async def linger(self) -> None:
        await asyncio.sleep(self.luck.choice([0, 0, 0.001, 0.01]))
        self.session.abort()

    async def vanish_in_a_query(self) -> None:
        self.session.send(frontend.query(b"INSERT INTO chaos SELECT %d, -1 FROM pg_sleep(30)" % self.number))
        await self.linger()

    async def vanish_in_a_transaction(self) -> None:
        self.session.send(frontend.query(b"BEGIN"), frontend.query(b"INSERT INTO chaos VALUES (%d, -2)" % self.number))
        if self.luck.random() < 0.5:
            await self.session.until_ready(2)
        await self.linger()

    async def vanish_in_a_batch(self) -> None:
        text = b"INSERT INTO chaos VALUES (%d, $1::int)" % self.number
        self.session.send(frontend.parse(b"", text), self.batch(b"-3"), self.luck.choice([b"", frontend.FLUSH_MESSAGE]))
        await self.linger()

    async def vanish_in_a_copy(self) -> None:
        self.session.send(frontend.query(b"COPY chaos FROM STDIN"))
        if self.luck.random() < 0.5:
            await self.session.until("GE")
            self.session.send(frontend.copy_data(b"%d\t-4\n" % self.number * 1000))
        await self.linger()

    async def vanish_in_a_message(self) -> None:
        self.session.send(frontend.query(b"SELECT '" + b"x" * 500_000 + b"'")[: self.luck.randrange(1, 400_000)])
        await self.linger()

    async def vanish_unread(self) -> None:
        self.session.transport.pause_reading()
        self.session.send(frontend.query(b"SELECT repeat('x', 1000) FROM generate_series(1, 20000)"))
        await self.linger()

    async def break_the_protocol(self) -> None:
        garbage = self.luck.choice([b"?\0\0\0\x04", b"Q\0\0\0\x03", b"Q\xff\xff\xff\xff"])
        self.session.send(garbage)
        messages = await self.session.until_lost()
        assert [message.error.severity for message in messages if message.kind == "E"] == ["FATAL"]

    async def lose_the_backend(self) -> None:
        self.session.send(frontend.query(b"SELECT pg_terminate_backend(pg_backend_pid())"))
        messages = await self.session.until_lost()
        assert [message.error.sqlstate for message in messages if message.kind == "E"][-1] in _GONE


@pytest.mark.both_loops
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sessions", [6, pytest.param(150, marks=pytest.mark.long)])
async def test_chaos(start: Start, sessions: int) -> None:
    gateway = await start(
        default_pool_size=BACKENDS, max_prepared_statements=10, auth_type="trust", max_client_conn=200
    )
    seed = random.randrange(1 << 32)
    gateway.site.admin.execute("DROP TABLE IF EXISTS chaos")
    gateway.site.admin.execute("CREATE TABLE chaos (client int, step int, PRIMARY KEY (client, step))")
    gateway.site.admin.execute("ALTER TABLE chaos OWNER TO app")
    clients = [Client(gateway, number, random.Random(seed + number)) for number in range(CLIENTS)]
    print(f"seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(sessions))
    await until(lambda: gateway.counts(sessions=0, leased=0, waiting=0, cancels=0))
    await until(lambda: set(gateway.site.admin.backends().values()) <= {"idle"})
    there = gateway.site.admin.rows("SELECT client, count(*), min(step), max(step) FROM chaos GROUP BY client")
    assert sorted(there) == [
        (client.number, client.committed, 0, client.committed - 1) for client in clients if client.committed
    ]
    assert gateway.counters()["backends"] <= BACKENDS
    # All of them work, and whose they were does not show.
    rest = [await RawSession.start(gateway, "tcp") for _ in range(BACKENDS)]
    for session in rest:
        assert await session.ask(frontend.query(b"BEGIN")) == "CZT"
        assert await session.ask(frontend.query(b"SELECT count(*) FROM chaos")) == "TDCZT"
    assert gateway.counts(leased=BACKENDS)
