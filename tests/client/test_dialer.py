"""Dials over real QUIC on loopback, to several gateways by names that a table resolves."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from helpers.certificates import SERVER_AUTH, Identity, authority
from helpers.datagrams import relay
from helpers.listening import CA, echo_server, server_config
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import identities
from helpers.silence import refusing_port, silence
from helpers.trunks import until
from pgtrunk.address import Address
from pgtrunk.dialer import Dialer
from pgtrunk.errors import CertificateError, GatewayUnreachable
from pgtrunk.gateways import Move
from pgtrunk.quic import racing
from pgtrunk.quic.client_config import ClientConfig
from pgtrunk.quic.control import Goaway
from pgtrunk.quic.ticket_store import MemoryTickets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pgtrunk.connection import Connection

V4, V6 = "127.0.0.1", "::1"


class Names:
    """A resolver: addresses by name, each with the port of who listens there."""

    def __init__(self, **names: Sequence[tuple[str, int]]) -> None:
        self.names = dict(names)
        self.slow: dict[str, asyncio.Event] = {}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int, deadline: float, timeout: float) -> list[Any]:
        self.asked.append(host)
        if host in self.slow:
            await self.slow[host].wait()
        if host in (V4, V6):
            return [self._info(host, port)]
        if host not in self.names:
            raise GatewayUnreachable(f"host {host!r} cannot be resolved")
        return [self._info(each, at) for each, at in self.names[host]]

    @staticmethod
    def _info(host: str, port: int) -> Any:
        return (socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, port))


class Trunk:
    """A dialer, and the connections that it has made."""

    def __init__(self, *gateways: str, names: Names | None = None, timeout: float = 20.0, **settings: Any) -> None:
        spreads = settings.pop("spreads", False)
        config = ClientConfig(**{"ca_data": identities()[0].pem, "server_name": "localhost", **settings})
        self.dialer = Dialer([Address.parse(each) for each in gateways], config, timeout=timeout, spreads=spreads)
        if names is not None:
            self.dialer.resolver = names
        self.connections: list[Any] = []

    async def __aenter__(self) -> Trunk:
        return self

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.timeout(20):
            for connection in self.connections:
                connection.close()
                await connection.wait_closed()

    async def dial(self, at: Address | None = None) -> int:
        """Returns the port of the gateway that took the call."""
        return self._keep(await self.dialer.dial(at))

    async def probe(self, move: Move) -> int:
        return self._keep(await self.dialer.probe(move))

    def _keep(self, connection: Connection) -> int:
        self.connections.append(connection)
        return self.port(connection)

    def port(self, connection: Any) -> int:
        return int(connection.driver.peername[1])


def cert(name: str, authority: Identity | None = None) -> Any:
    identity = (authority or identities()[0]).issue("gateway", usage=(SERVER_AUTH,), names=(name,))

    def configure(configuration: Any) -> None:
        configuration.certificate, configuration.private_key = identity.certificate, identity.key
        configuration.certificate_chain = list(identity.chain)

    return configure


def stranger() -> Any:
    """A certificate of a CA that nobody trusts."""
    return cert("localhost", authority("another CA"))


async def test_families_of_a_name_are_raced_and_a_silent_one_is_remembered() -> None:
    async with LoopbackServer(host=V4) as server:
        with silence(V6) as silent:
            names = Names(gw=[(V6, silent.port), (V4, server.port)])
            async with Trunk("gw", names=names) as trunk:
                assert await trunk.dial() == server.port
                assert silent.callers() == 1
                for _ in range(3):
                    assert await trunk.dial() == server.port
                assert silent.callers() == 0
                assert names.asked == ["gw"] * 4, "names are resolved for each dial"


async def test_a_silent_gateway_costs_the_first_dial_its_delay_and_later_ones_nothing() -> None:
    async with LoopbackServer() as server:
        with silence() as silent:
            async with Trunk(f"{V4}:{silent.port}", f"{V4}:{server.port}") as trunk:
                loop = asyncio.get_running_loop()
                began = loop.time()
                assert await trunk.dial() == server.port
                assert loop.time() - began >= racing.ATTEMPT_DELAY
                assert silent.callers() == 1
                assert await trunk.dial() == server.port
                assert silent.callers() == 0


async def test_what_is_due_is_tried_beside_another_and_not_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LoopbackServer() as server:
        with silence() as silent:
            async with Trunk(f"{V4}:{silent.port}", f"{V4}:{server.port}") as trunk:
                await trunk.dial()
                monkeypatch.setattr(racing, "SHORTEST_DELAY", 60.0)
                health = trunk.dialer.gateways._health
                for each in health.values():
                    each.retry_at = 0.0
                silent.callers()
                async with asyncio.timeout(30):
                    assert await trunk.dial() == server.port
                assert silent.callers() == 1


async def test_a_gateway_that_refuses_costs_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "ATTEMPT_DELAY", 60.0)
    async with LoopbackServer() as server, Trunk(f"{V4}:{refusing_port()}", f"{V4}:{server.port}") as trunk:
        async with asyncio.timeout(30):
            assert await trunk.dial() == server.port


async def test_the_losers_leave_nothing_on_their_gateways() -> None:
    async with LoopbackServer() as slow, LoopbackServer(host=V6) as quick, relay(slow.port, delay=0.5) as way:
        names = Names(gw=[(V4, way.port), (V6, quick.port)])
        async with Trunk("gw", names=names) as trunk:
            assert await trunk.dial() == quick.port
            await until(lambda: slow.drivers != [] and slow.driver.is_lost)
            assert quick.driver.is_ready


async def test_all_that_fail_are_named_with_their_reasons() -> None:
    first, second = refusing_port(), refusing_port()
    names = Names(gw1=[(V4, first)], gw2=[(V6, second)])
    async with Trunk("gw1", "gw2", "gw3", names=names) as trunk:
        with pytest.raises(GatewayUnreachable) as caught:
            await trunk.dial()
        words = str(caught.value)
        assert "no address of gw1:6432, gw2:6432, gw3:6432 can be reached" in words
        assert f"127.0.0.1:{first} refused" in words
        assert f"[::1]:{second} refused" in words
        assert "host 'gw3' cannot be resolved" in words


async def test_one_wrong_certificate_is_told_once_and_another_gateway_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pgtrunk")
    async with LoopbackServer(configure=stranger()) as wrong, LoopbackServer() as right:
        async with Trunk(f"{V4}:{wrong.port}", f"{V4}:{right.port}") as trunk:
            assert await trunk.dial() == right.port
            for each in trunk.dialer.gateways._health.values():
                each.retry_at = 0.0
            assert await trunk.dial() == right.port
        warnings = [record.getMessage() for record in caplog.records if record.name == "pgtrunk"]
        assert len(warnings) == 1
        assert f"gateway {V4}:{wrong.port} cannot be used, and {V4}:{right.port} is instead: " in warnings[0]
        assert "issuer" in warnings[0]


@pytest.mark.parametrize("also_dead", [False, True])
async def test_wrong_certificates_alone_are_final(also_dead: bool) -> None:
    """Where another gateway is merely away, it is worth waiting for."""
    async with LoopbackServer(configure=stranger()) as one, LoopbackServer(configure=stranger()) as other:
        gateways = [f"{V4}:{one.port}", f"{V4}:{other.port}"] + [f"{V4}:{refusing_port()}"] * also_dead
        async with Trunk(*gateways) as trunk:
            with pytest.raises(GatewayUnreachable) as caught:
                await trunk.dial()
            assert isinstance(caught.value, CertificateError) is not also_dead
            assert str(caught.value).count("issuer") == 2


async def test_each_gateway_has_to_show_its_own_name() -> None:
    async with LoopbackServer(configure=cert("gw1.test")) as one, LoopbackServer(configure=cert("gw2.test")) as two:
        names = Names(**{"gw1.test": [(V4, two.port)], "gw2.test": [(V4, two.port)]})
        async with Trunk("gw1.test", "gw2.test", names=names, server_name=None) as trunk:
            assert await trunk.dial() == two.port
            assert {each.gateway.host for each in trunk.dialer.counts()} == {"gw2.test"}
            names.names["gw1.test"] = [(V4, one.port)]
            assert await trunk.dial() == one.port


async def test_a_name_that_is_slow_does_not_keep_the_others_waiting() -> None:
    async with LoopbackServer() as first, LoopbackServer() as second:
        names = Names(gw1=[(V4, first.port)], gw2=[(V4, second.port)])
        names.slow["gw1"] = asyncio.Event()
        async with Trunk("gw1", "gw2", names=names) as trunk:
            assert await trunk.dial() == second.port


async def test_a_name_that_comes_late_takes_part() -> None:
    async with LoopbackServer() as first:
        names = Names(gw1=[(V4, first.port)], gw2=[(V4, refusing_port())])
        late = names.slow["gw1"] = asyncio.Event()
        async with Trunk("gw1", "gw2", names=names) as trunk:
            dial = asyncio.ensure_future(trunk.dial())
            await asyncio.sleep(0.2)
            assert not dial.done()
            late.set()
            assert await dial == first.port


async def test_a_name_server_that_is_away_takes_nothing_along() -> None:
    async with LoopbackServer() as server:
        names = Names(gw=[(V4, server.port)])
        async with Trunk("gw", names=names) as trunk:
            await trunk.dial()
            names.names.clear()
            assert await trunk.dial() == server.port
            with pytest.raises(GatewayUnreachable, match="cannot be resolved"):
                await Trunk("gw", names=names).dial()


async def test_connections_are_spread_evenly_over_gateways_and_over_the_addresses_of_a_name() -> None:
    async with LoopbackServer() as a, LoopbackServer() as b, LoopbackServer(host=V6) as c, LoopbackServer(host=V6) as d:
        names = Names(pair=[(V6, c.port), (V6, d.port)])
        gateways = (f"{V4}:{a.port}", f"{V4}:{b.port}", "pair")
        async with Trunk(*gateways, names=names, spreads=True) as trunk:
            ports = Counter([await trunk.dial() for _ in range(12)])
            assert ports == {a.port: 4, b.port: 4, c.port: 2, d.port: 2}
            for connection in [each for each in trunk.connections if trunk.port(each) == a.port][:2]:
                connection.close()
                await connection.wait_closed()
            assert [await trunk.dial() for _ in range(2)] == [a.port] * 2


async def test_a_gateway_that_is_lost_is_not_the_next_one() -> None:
    async with LoopbackServer() as a, LoopbackServer() as b, Trunk(f"{V4}:{a.port}", f"{V4}:{b.port}") as trunk:
        assert await trunk.dial() == a.port
        a.vanish()
        assert trunk.dialer.lost(trunk.connections[0], GatewayUnreachable("gone"))
        assert await trunk.dial() == b.port
        assert not trunk.dialer.lost(trunk.connections[1], GatewayUnreachable("gone too"))


async def test_a_gateway_that_sends_elsewhere_is_known_there_by_its_own_name() -> None:
    async with (
        LoopbackServer(configure=cert("gw1.test")) as one,
        LoopbackServer(configure=cert("gw2.test")) as two,
        LoopbackServer(configure=cert("gw2.test")) as next_one,
    ):
        names = Names(**{"gw1.test": [(V4, one.port)], "gw2.test": [(V4, two.port)], "next": [(V4, next_one.port)]})
        async with Trunk("gw1.test", "gw2.test", names=names, server_name=None, spreads=True) as trunk:
            ports = [await trunk.dial(), await trunk.dial()]
            leaving = trunk.connections[ports.index(two.port)]
            leaving.leave = Goaway(to=("next", 1))
            trunk.dialer.told_to_leave(leaving)
            assert await trunk.dial(Address("next", 1)) == next_one.port
            # It takes the place of the one gateway, and the other has its share.
            assert [await trunk.dial(Address("next", 1)) for _ in range(2)].count(one.port) == 1
            names.names["next"] = [(V4, refusing_port())]
            for connection in trunk.connections:
                if trunk.port(connection) == next_one.port:
                    connection.leave = Goaway()
            await trunk.dial(Address("next", 1))
            trunk.dialer.gateways._health.clear()
            assert two.port in [await trunk.dial(Address("next", 1)) for _ in range(4)]


async def test_a_probe_goes_nowhere_else() -> None:
    async with LoopbackServer() as a, LoopbackServer() as b:
        gateways = Address.parse(f"{V4}:{a.port}"), Address.parse(f"{V4}:{b.port}")
        async with Trunk(*map(str, gateways)) as trunk:
            await trunk.dial()
            source = next(iter(trunk.dialer.counts()))
            assert await trunk.probe(Move(source, gateways[1])) == b.port
            b.vanish()
            await asyncio.sleep(0)
            with pytest.raises(GatewayUnreachable, match="refused"):
                await trunk.probe(Move(source, gateways[1]))


async def test_an_early_connection_that_is_not_answered_is_given_up_where_there_is_another(tmp_path: Path) -> None:
    configs, tickets = [server_config(tmp_path, early_data=True) for _ in range(2)], MemoryTickets()
    async with echo_server(configs[0]) as one, echo_server(configs[1]) as other, relay(one.port) as way:
        gateways = f"{V4}:{way.port}", f"{V4}:{other.port}"
        async with Trunk(*gateways, ca_data=CA.pem, tickets=tickets, early=True) as trunk:
            assert await trunk.dial() == way.port
            await until(lambda: any(map(len, tickets._kept.values())))
            way.is_silent = True
            assert await trunk.dial() == way.port
            early = trunk.connections[-1]
            assert early.is_early, "who may speak at once has won at once"
            lost: list[BaseException] = []
            early.on_lost = lost.append
            await until(lambda: lost != [])
            assert "did not answer, and there are others" in str(lost[0])
            assert trunk.dialer.lost(early, lost[0])
            assert await trunk.dial() == other.port


async def test_a_probe_that_loses_is_not_held_against_it() -> None:
    """Who is merely farther away than the one that has won may be back all the same."""
    async with (
        LoopbackServer() as far,
        LoopbackServer() as near,
        relay(far.port, delay=0.04) as way,
        Trunk(f"{V4}:{way.port}", f"{V4}:{near.port}") as trunk,
    ):
        way.is_silent = True
        assert await trunk.dial() == near.port
        (health,) = [each for each in trunk.dialer.gateways._health.values() if each.failures]
        way.is_silent, health.retry_at = False, 0.0
        assert await trunk.dial() == near.port
        assert health.failures == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_a_dial_that_is_cancelled_leaves_nothing(turns: int) -> None:
    async with LoopbackServer() as server:
        with silence(V6) as silent:
            names = Names(gw1=[(V6, silent.port), (V4, server.port)], gw2=[(V4, server.port)])
            async with Trunk("gw1", "gw2", names=names, spreads=True) as trunk:
                dial = asyncio.ensure_future(trunk.dial())
                for _ in range(turns):
                    await asyncio.sleep(0)
                dial.cancel()
                await asyncio.wait([dial])
