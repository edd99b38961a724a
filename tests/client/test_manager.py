"""What an application sees of a manager: its arguments, its life, its words."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import pgtrunk
from helpers.fake_gateway import FakeGateway, Sink
from helpers.trunks import until
from pgtrunk import CertificateFileError, StreamManager, TrunkClosed, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def manager(gateway: FakeGateway | None = None, **settings: Any) -> StreamManager:
    made = StreamManager("gw.test", dangerously_skip_certificate_verification=True, **settings)
    made._dialer.dial = (gateway or FakeGateway()).connect  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"connections": 0}, "connections=0: a whole number of at least 1"),
        ({"connections": True}, "connections=True"),
        ({"streams_per_connection": -1}, "streams_per_connection=-1"),
        ({"streams_per_connection": 1.5}, r"streams_per_connection=1\.5"),
        ({"acquire_timeout": 0}, "acquire_timeout=0: seconds are needed"),
        ({"acquire_timeout": None}, "acquire_timeout=None"),
        ({"acquire_timeout": float("inf")}, "acquire_timeout=inf.*not for ever"),
        ({"connect_timeout": float("nan")}, "connect_timeout=nan"),
        ({"connect_timeout": "5"}, "connect_timeout='5'"),
        ({"min_connections": -1}, r"min_connections=-1: a whole number from 0 to 4 is needed \(connections=4\)"),
        ({"min_connections": 3, "connections": 2}, "min_connections=3.*connections=2"),
        ({"min_connections": True}, "min_connections=True"),
        ({"max_idle": 600}, r"max_idle=600: at most 5 s, half of QUIC's idle timeout.*min_connections"),
        ({"max_idle": 0}, "max_idle=0: seconds are needed"),
        ({"max_lifetime": 0}, "max_lifetime=0: seconds are needed"),
        ({"keepalive": -1}, "keepalive=-1: seconds are needed"),
    ],
)
def test_wrong_arguments_are_refused_by_name_and_value(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        manager(**settings)


def test_a_wrong_address_is_refused() -> None:
    with pytest.raises(UsageError, match="is no gateway address"):
        StreamManager("gw:port")


async def test_files_that_cannot_be_read_are_told_when_it_is_opened(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(CertificateFileError, match=r"ca_file.*ca\.pem"):
        await StreamManager("gw.test", ca_file=missing).open()


async def test_the_words_of_pool_users_reach_those_who_act_by_them() -> None:
    made = manager(min_connections=2, max_idle=3, max_lifetime=60, keepalive=1.5)
    assert (made._rules.min_connections, made._rules.max_idle, made._rules.max_lifetime) == (2, 3, 60)
    assert made._config.limits.keepalive == 1.5
    assert manager(max_lifetime=None)._rules.expiry(0.0, 0.5) == float("inf")


async def test_min_connections_are_opened_in_the_background() -> None:
    gateway = FakeGateway()
    async with manager(gateway, min_connections=2) as trunk:
        assert gateway.dials == 0
        await until(lambda: trunk.stats().connections.ready == 2)
        await trunk.open()
        assert gateway.dials == 2
        assert all(connection.is_kept for connection in gateway.connections)


async def test_a_stream_carries_any_protocol() -> None:
    gateway = FakeGateway()
    async with manager(gateway) as trunk:
        transport, protocol = await trunk.open_stream(Sink)
        assert isinstance(protocol, Sink)
        transport.write(b"hello")
        await asyncio.sleep(0)
        assert gateway.connections[0].streams[0].peer.protocol.data == b"hello"
        assert trunk.stats().streams_in_use == 1
        transport.close()
        await protocol.lost


async def test_opened_by_hand() -> None:
    trunk = manager()
    await trunk.open()
    await trunk.open()
    transport, _ = await trunk.open_stream(Sink)
    await trunk.close()
    await trunk.close()
    assert transport.is_closing()


async def test_before_it_is_opened_everything_says_so() -> None:
    trunk = manager()
    with pytest.raises(TrunkClosed, match="is not open: use `async with StreamManager"):
        await trunk.open_stream(Sink)
    with pytest.raises(TrunkClosed):
        await trunk.connect()
    with pytest.raises(TrunkClosed):
        trunk.create_pool()
    with pytest.raises(TrunkClosed):
        trunk.stats()
    await trunk.close()
    with pytest.raises(TrunkClosed, match="is closed"):
        await trunk.open()


async def test_after_it_is_closed_everything_says_so_but_stats() -> None:
    async with manager() as trunk:
        await trunk.open_stream(Sink)
    with pytest.raises(TrunkClosed, match="is closed"):
        await trunk.open_stream(Sink)
    with pytest.raises(TrunkClosed):
        await trunk.open()
    assert trunk.stats().streams_opened == 1


async def test_a_second_loop_is_refused_for_every_use() -> None:
    async with manager() as trunk:

        async def use() -> None:
            for attempt in (trunk.open, trunk.close, trunk.connect):
                with pytest.raises(UsageError, match="another event loop"):
                    await attempt()
            with pytest.raises(UsageError, match="another event loop"):
                await trunk.open_stream(Sink)
            with pytest.raises(UsageError, match="another event loop"):
                trunk.create_pool()

        await asyncio.to_thread(lambda: asyncio.run(use()))


async def test_repr_in_each_state() -> None:
    trunk = manager(connections=2, streams_per_connection=3)
    assert repr(trunk) == "<StreamManager gw.test:6432 not open>"
    async with trunk:
        await trunk.open_stream(Sink)
        counts = "[connections: 1 ready, of 2 | streams: 1 in use, of 6 | 0 waiting]"
        assert repr(trunk) == f"<StreamManager gw.test:6432 open {counts}>"
    assert repr(trunk).startswith("<StreamManager gw.test:6432 closed [")


async def test_several_gateways() -> None:
    for gateway in ("gw1.test,gw2.test:1", ["gw1.test", "gw2.test:1"]):
        trunk = StreamManager(gateway)
        assert trunk.gateway == "gw1.test:6432,gw2.test:1"
        assert repr(trunk) == "<StreamManager gw1.test:6432,gw2.test:1 not open>"
        async with trunk:
            assert [each.gateway for each in trunk.stats().gateways] == ["gw1.test:6432", "gw2.test:1"]
    with pytest.raises(UsageError, match="load_balance_hosts='round-robin'"):
        StreamManager("gw1.test", load_balance_hosts="round-robin")  # type: ignore[arg-type]


def test_all_that_is_public_is_there() -> None:
    assert all(hasattr(pgtrunk, name) for name in pgtrunk.__all__)


def test_importing_it_loads_neither_asyncpg_nor_quic_nor_the_gateway() -> None:
    script = (
        "import sys, pgtrunk\n"
        "heavy = {'asyncpg', 'aioquic', 'cryptography', 'hdrh', 'uvloop', 'scramp', 'pgtrunk_gateway'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_redundancy_is_auto_or_off() -> None:
    with pytest.raises(UsageError, match='redundancy=True: "auto" or "off" is needed'):
        StreamManager("gw.example.net", redundancy=True)  # type: ignore[arg-type]
    for value in ("auto", "off"):
        assert StreamManager("gw.example.net", redundancy=value)._config.limits.redundancy == value


def test_path_mtu_is_auto_or_off() -> None:
    with pytest.raises(UsageError, match='path_mtu=1500: "auto" or "off" is needed'):
        StreamManager("gw.example.net", path_mtu=1500)  # type: ignore[arg-type]
    for value in ("auto", "off"):
        assert StreamManager("gw.example.net", path_mtu=value)._config.limits.path_mtu == value
