"""The connections of auth_query: shared, pipelined, made anew, given up; and that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from helpers.waiting import until
from pgtrunk.wire import backend as b
from pgtrunk.wire import frontend
from pgtrunk.wire.framing import MessageReader, encode
from pgtrunk.wire.startup import parse_startup
from pgtrunk_gateway.auth import Derivation, Found, Plain, ScramKeys
from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.errors import BackendUnavailable, LookupFailed
from pgtrunk_gateway.pool.lookups import Lookups
from pgtrunk_gateway.pool.target import Target

WELCOME = b.authentication_ok() + b.backend_key_data(7, b"key!") + b.ready()
_DONE = b.command_complete("SET") + b.ready()
SHOP = DatabaseConfig(name="shop", auth_user="asker")


class Directory:
    """A server that knows a password for each name but "nobody". The test tells it how to behave."""

    def __init__(self) -> None:
        self.port = 0
        self.begun = self.ended = 0
        self.welcome = WELCOME
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: list[str] = []
        self.first: list[bytes] = []
        """The queries that each connection began with."""
        self.early = False
        """It answers what comes first before it has come, with its welcome."""
        self.nonsense = b""
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.begun += 1
        self.writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            self.ended += 1
            self.writers.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        while (found := parse_startup(head)) is None:
            head += await reader.readexactly(1)
        assert len(head) == found[1]
        writer.write(self.welcome + (_DONE if self.early else b""))
        messages = MessageReader(1 << 20)
        while data := await reader.read(1 << 16):
            messages.feed(data)
            while (message := messages.next()) is not None:
                await self._message(*message, writer)

    async def _message(self, kind: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if kind == frontend.QUERY:
            self.first.append(body[:-1])
            if not self.early:
                writer.write(_DONE)
        elif kind == frontend.BIND:
            self.asked.append(body[12:-4].decode())
        elif kind == frontend.SYNC:
            name = self.asked[-1]
            await self.answers.wait()
            row = b"" if name == "nobody" else b.data_row([name.encode(), b"secret of " + name.encode()])
            head = encode(b"1") + encode(b"2") + b.row_description(["name", "secret"])
            writer.write(self.nonsense or head + row + b.command_complete("SELECT") + b.ready())

    def drop_all(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Site:
    """Lookups, and what they go by."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.config = Config(databases={"shop": SHOP}, server_connect_timeout=20.0)
        self.target = Target(host="127.0.0.1", port=directory.port, dbname="shop", user="asker")
        self.disabled: set[str] = set()
        self.lookups = Lookups(
            config=lambda: self.config,
            target=lambda database, user: self.target,
            disabled=self.disabled.__contains__,
            derive=self._derive,
            tune=lambda sock: None,
        )

    async def _derive(self, derivation: Derivation) -> ScramKeys:
        return derivation.run()

    async def find(self, user: str) -> Found | None:
        return await self.lookups.find(SHOP, user)

    def finding(self, user: str) -> asyncio.Task[Found | None]:
        return asyncio.create_task(self.find(user))

    def change(self, **settings: Any) -> None:
        self.config = replace(self.config, **settings)


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    directory = Directory()
    server = await asyncio.start_server(directory.serve, "127.0.0.1", 0)
    directory.port = server.sockets[0].getsockname()[1]
    site = Site(directory)
    before = asyncio.all_tasks()
    try:
        yield site
    finally:
        directory.answers.set()
        await site.lookups.close()
        await until(lambda: directory.ended == directory.begun)
        server.close()
        await server.wait_closed()
    await until(lambda: asyncio.all_tasks() == before)
    assert len(site.lookups) == 0


def known(user: str) -> Found:
    return Found(user, (Plain(f"secret of {user}"),))


async def test_questions_share_one_connection_and_are_answered_in_their_order() -> None:
    async with serving() as site:
        names = [f"user{number}" for number in range(20)]
        assert await asyncio.gather(*map(site.find, names)) == [known(name) for name in names]
        assert await site.find("nobody") is None
        assert (site.directory.begun, len(site.lookups)) == (1, 1)
        assert site.directory.first == [b"SET statement_timeout = 20000; SET search_path = pg_catalog, pg_temp"]


async def test_the_same_question_is_asked_once_at_a_time() -> None:
    async with serving() as site:
        site.directory.answers.clear()
        waiting = [site.finding("app") for _ in range(5)] + [site.finding("other")]
        await until(lambda: site.directory.asked)
        site.directory.answers.set()
        assert await asyncio.gather(*waiting) == [known("app")] * 5 + [known("other")]
        assert site.directory.asked == ["app", "other"]
        await site.find("app")
        assert site.directory.asked == ["app", "other", "app"]


async def test_one_who_does_not_wait_any_more_takes_nothing_from_the_others() -> None:
    async with serving() as site:
        site.directory.answers.clear()
        first, second = site.finding("app"), site.finding("app")
        await until(lambda: site.directory.asked)
        first.cancel()
        await asyncio.wait([first])
        site.directory.answers.set()
        assert await second == known("app")
        alone = site.finding("app")
        await asyncio.sleep(0)
        alone.cancel()
        await asyncio.wait([alone])
        assert await site.find("other") == known("other")


async def test_a_query_of_ones_own_runs_with_the_search_path_of_its_user() -> None:
    async with serving() as site:
        site.change(auth_query="SELECT name, secret FROM mine WHERE name = $1", server_connect_timeout=0)
        assert await site.find("app") == known("app")
        assert site.directory.first == [b"SET statement_timeout = 0"]


async def test_a_connection_that_was_lost_meanwhile() -> None:
    async with serving() as site:
        await site.find("app")
        site.directory.drop_all()
        # At once: the loss may be known by now, or not.
        assert await site.find("app") == known("app")
        site.directory.drop_all()
        await until(lambda: not len(site.lookups))
        assert await site.find("app") == known("app")
        assert site.directory.begun == 3


async def test_a_connection_that_is_lost_with_questions_on_it() -> None:
    async with serving() as site:
        await site.find("app")
        site.directory.answers.clear()
        waiting = [site.finding("one"), site.finding("two")]
        await until(lambda: "one" in site.directory.asked)
        site.directory.drop_all()
        site.directory.answers.set()
        assert await asyncio.gather(*waiting) == [known("one"), known("two")]


async def test_a_server_that_talks_nonsense_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as site:
        for nonsense in (b"HTTP/1.1 400\r\n\r\n", encode(b"G", b"\0\0\0"), b"\xff" * 10):
            site.directory.nonsense = nonsense
            site.lookups._failed.clear()
            with pytest.raises(BackendUnavailable, match="users cannot be looked up just now"):
                await site.find("app")
        assert "closed because" in caplog.text
        assert len(site.lookups) == 0


async def test_a_refused_login_is_not_tried_by_each_client_anew() -> None:
    async with serving() as site:
        site.directory.welcome = b.error("28P01", "password authentication failed", severity="FATAL")
        for _ in range(5):
            with pytest.raises(LookupFailed) as caught:
                await site.find("app")
            assert caught.value.log == "auth_query in 'shop' as 'asker': password authentication failed"
        assert site.directory.begun == 1


async def test_all_who_wait_hear_of_a_refused_login() -> None:
    async with serving() as site:
        site.directory.welcome = b.error("28P01", "no", severity="FATAL")
        told = await asyncio.gather(*(site.find(f"user{n}") for n in range(5)), return_exceptions=True)
        assert [type(each) for each in told] == [LookupFailed] * 5
        assert site.directory.begun == 1


async def test_a_question_that_hangs_takes_those_behind_it_no_longer() -> None:
    async with serving() as site:
        site.change(server_connect_timeout=0.1)
        site.directory.answers.clear()
        told = await asyncio.gather(site.find("one"), site.find("two"), return_exceptions=True)
        assert [type(each) for each in told] == [BackendUnavailable] * 2
        assert len(site.lookups) == 0
        site.directory.answers.set()
        site.change(server_connect_timeout=20.0)
        site.lookups._failed.clear()
        assert await site.find("app") == known("app")


async def test_a_reload_that_changes_where_it_goes() -> None:
    async with serving() as site:
        site.directory.answers.clear()
        before = site.finding("app")
        await until(lambda: site.directory.asked)
        site.target = replace(site.target, secret=Plain("another"))
        after = site.finding("other")
        await until(lambda: site.directory.begun == 2)
        site.directory.answers.set()
        # What has been asked is answered; then nothing is left of the old one.
        assert await before == known("app")
        assert await after == known("other")
        await until(lambda: site.directory.ended == 1)
        assert len(site.lookups) == 1


async def test_idle_and_old_connections() -> None:
    async with serving() as site:
        site.change(server_idle_timeout=0.01)
        await site.find("app")
        await until(lambda: site.directory.ended == 1)
        site.change(server_idle_timeout=600.0, server_lifetime=0.0)
        await site.find("app")
        await until(lambda: site.directory.ended == 2)


async def test_an_end_with_questions_under_way() -> None:
    async with serving() as site:
        site.directory.answers.clear()
        waiting = [site.finding("one"), site.finding("two")]
        await until(lambda: site.directory.asked)
        await site.lookups.close()
        await asyncio.wait(waiting)


async def test_an_end_while_it_connects() -> None:
    async with serving() as site:
        site.directory.welcome = b""
        waiting = site.finding("one")
        await until(lambda: site.directory.begun)
        await site.lookups.close()
        await asyncio.wait([waiting])


async def test_who_is_not_asked() -> None:
    async with serving() as site:
        assert await site.lookups.find(DatabaseConfig(name="shop"), "app") is None
        site.disabled.add("shop")
        with pytest.raises(LookupFailed, match='authentication database "shop" is disabled'):
            await site.find("app")
        for name, log in (("nowhere", '"nowhere" is not configured'), ("pgbouncer", 'reserved "pgbouncer" database')):
            with pytest.raises(LookupFailed) as caught:
                await site.lookups.find(replace(SHOP, auth_dbname=name), "app")
            assert log in (caught.value.log or "")
        assert site.directory.begun == 0


async def test_one_that_lives_for_one_question_waits_for_it() -> None:
    """Its first answer may be there before whoever made it has had a turn."""
    async with serving() as site:
        site.change(server_lifetime=0.0)
        site.directory.early = True
        for _ in range(2):
            assert await site.find("app") == known("app")
            await until(lambda: not len(site.lookups))


async def test_one_whose_only_asker_has_left_before_it_was_open_is_closed() -> None:
    async with serving() as site:
        site.change(server_lifetime=0.0)
        site.directory.welcome = b""
        waiting = site.finding("app")
        await until(lambda: site.directory.begun)
        (task,) = site.lookups._asking.values()
        task.cancel()
        await asyncio.wait([waiting])
        for writer in site.directory.writers:
            writer.write(WELCOME)
        await until(lambda: not len(site.lookups))
