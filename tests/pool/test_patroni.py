"""Following a cluster by Patroni's REST API: who is asked when, and what becomes of answers and of silence."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from helpers.fake_patroni import FakePatroni, described
from helpers.waiting import until
from pgtrunk.certs import create_certificates
from pgtrunk_gateway.config.entries import DatabaseConfig, Place
from pgtrunk_gateway.config.settings import Config
from pgtrunk_gateway.pool.hosts import Hosts
from pgtrunk_gateway.pool.patroni import Patroni
from pgtrunk_gateway.pool.primary import HostList

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pgtrunk_gateway.config.entries import SessionAttrs

A, B = described("a", 5432, "leader"), described("b", 5433, "replica", "streaming")
OTHER = [described("a", 5432, "replica", "streaming"), described("b", 5433, "leader")]
REFUSED = "http://127.0.0.1:1"
"""Nobody listens on this port, which only root could use."""


@pytest.fixture
async def node() -> AsyncIterator[FakePatroni]:
    async with FakePatroni() as node:
        node.members = [A, B]
        yield node


class Following:
    """Lists that one Patroni has the servers of."""

    def __init__(self, *urls: str, **settings: Any) -> None:
        config = Config(**{"patroni_interval": 1000.0, "patroni_timeout": 5.0, **settings})
        self.patroni = Patroni(urls, lambda: config)
        self.lists: list[HostList] = []

    def list(self, attrs: SessionAttrs = "primary") -> HostList:
        servers = HostList((), attrs, "round-robin", label="cluster", retry=lambda: 1.0)
        self.lists.append(servers)
        self.patroni.follow(servers)
        return servers

    async def __aenter__(self) -> Following:
        return self

    async def __aexit__(self, *_: object) -> None:
        for servers in self.lists:
            self.patroni.leave(servers)
        await self.patroni.ended()


def ports(servers: HostList) -> list[int]:
    return [server.place.port for server in servers.servers]


async def test_lists_hear_where_their_servers_are(node: FakePatroni) -> None:
    async with Following(node.url) as following:
        primary, standby = following.list(), following.list("standby")
        await until(lambda: ports(primary) and ports(standby))
        assert (ports(primary), ports(standby)) == ([5432], [5433])
        # A later one need not wait.
        assert ports(following.list("prefer-standby")) == [5433, 5432]
        assert node.asked == 1
        (request,) = node.requests
        assert request.startswith(b"GET /cluster HTTP/1.1\r\n")


async def test_a_change_is_noticed(node: FakePatroni) -> None:
    async with Following(node.url, patroni_interval=0.05) as following:
        servers = following.list()
        await until(lambda: ports(servers) == [5432])
        node.members = OTHER
        await until(lambda: ports(servers) == [5433])


async def test_while_there_is_no_leader_the_last_one_counts(node: FakePatroni) -> None:
    async with Following(node.url, patroni_interval=0.05) as following:
        servers = following.list()
        await until(lambda: ports(servers))
        node.members = [B]
        asked = node.asked
        await until(lambda: node.asked > asked + 1)
        assert ports(servers) == [5432]


@pytest.mark.parametrize("how", ["broken", "hangs", "nonsense", "no json", "no http", "closed"])
async def test_the_next_node_is_asked(node: FakePatroni, how: str) -> None:
    async with FakePatroni() as bad, Following(bad.url, node.url, patroni_timeout=0.1) as following:
        match how:
            case "broken" | "hangs":
                setattr(bad, how, True)
            case "nonsense":
                bad.answer = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n[]"
            case "no json":
                bad.answer = b"HTTP/1.0 200 OK\r\n\r\nhello"
            case "no http":
                bad.answer = b"SSH-2.0-OpenSSH_9.6\r\n"
            case _:
                bad.answer = b""
        servers = following.list()
        await until(lambda: ports(servers))
        assert (bad.asked, node.asked) == (1, 1)


async def test_what_was_known_outlives_silence(node: FakePatroni, caplog: pytest.LogCaptureFixture) -> None:
    async with Following(node.url, REFUSED, patroni_interval=0.02) as following:
        servers = following.list()
        await until(lambda: ports(servers))
        node.broken = True
        asked = node.asked
        await until(lambda: node.asked > asked + 3)
        assert ports(servers) == [5432]
        said = [record.message for record in caplog.records if "patroni cannot be asked" in record.message]
        # Once, however often it is so.
        assert len(said) <= 2
        assert "HTTP status 503" in said[0]


async def test_a_list_that_finds_nobody_has_the_next_node_asked_at_once(node: FakePatroni) -> None:
    async with FakePatroni() as stale, Following(stale.url, node.url) as following:
        stale.members = [A, B]
        node.members = OTHER
        servers = following.list()
        await until(lambda: ports(servers) == [5432])
        assert servers.on_failure is not None
        servers.on_failure()
        await until(lambda: ports(servers) == [5433])


async def test_an_answer_without_end_is_none(node: FakePatroni) -> None:
    async with Following(node.url, REFUSED) as following:
        node.answer = b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (2 << 20)
        servers = following.list()
        await until(lambda: node.asked)
        await asyncio.sleep(0.05)
        assert not ports(servers)


async def test_https(tmp_path: Path) -> None:
    files = create_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.server_cert, files.server_key)
    async with FakePatroni(context) as node:
        node.members = [A]
        async with Following(node.url, patroni_ca_file=str(files.ca_cert)) as following:
            servers = following.list()
            await until(lambda: ports(servers))
        async with Following(node.url, patroni_interval=0.02) as following:
            servers = following.list()
            asked = len(node.requests)
            await asyncio.sleep(0.2)
            assert (ports(servers), len(node.requests)) == ([], asked), "a certificate of nobody we know"


# -- as databases have it ----------------------------------------------------------------------------------------------


async def test_databases_of_one_cluster_ask_together(node: FakePatroni) -> None:
    config = Config(patroni_interval=1000.0)
    hosts = Hosts(lambda: config)
    shop = DatabaseConfig(name="shop", host="", patroni=(node.url,))
    reports = DatabaseConfig(name="reports", host="", patroni=(node.url,), target_session_attrs="standby")
    first, second, third = (
        hosts.of(shop),
        hosts.of(reports),
        hosts.of(DatabaseConfig(name="x", host="", patroni=(node.url,))),
    )
    assert isinstance(first, HostList)
    assert isinstance(second, HostList)
    assert first is third
    assert first.attrs == "primary"
    await until(lambda: first.servers and second.servers)
    assert (ports(first), ports(second), node.asked) == ([5432], [5433], 1)
    await hosts.close()
    assert not hosts


async def test_until_patroni_has_answered_the_hosts_of_the_entry_count(node: FakePatroni) -> None:
    config = Config(patroni_interval=1000.0)
    hosts = Hosts(lambda: config)
    node.hangs = True
    servers = hosts.of(DatabaseConfig(name="shop", host="c", port=1, patroni=(node.url,)))
    assert isinstance(servers, HostList)
    assert [server.place for server in servers.servers] == [Place("c", 1)]
    await hosts.close()


async def test_nobody_is_asked_for_what_nobody_uses(node: FakePatroni) -> None:
    config = Config(patroni_interval=0.02)
    hosts = Hosts(lambda: config)
    hosts.of(DatabaseConfig(name="shop", host="", patroni=(node.url,)))
    await until(lambda: node.asked)
    hosts.tidy()
    await asyncio.sleep(0)
    asked = node.asked
    await asyncio.sleep(0.2)
    assert node.asked <= asked + 1
    await hosts.close()
