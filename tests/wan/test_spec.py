"""How a link is specified, and what becomes of it in the words of ip and tc."""

from __future__ import annotations

import json

import pytest

from netem import topology
from netem.errors import LabError
from netem.measure import round_trips
from netem.spec import WAN, Direction, LinkSpec


def test_the_long_link_has_30_ms() -> None:
    assert pytest.approx(0.030) == WAN.rtt


def test_a_specification_as_text() -> None:
    spec = LinkSpec.parse("rtt=50, jitter=2,loss=1,burst=0.5:30,rate=100,buffer=375,reorder=1,limit=9,seed=7")
    assert spec.there == spec.back
    assert spec.there == Direction(
        delay=0.025, jitter=0.002, loss=0.01, burst=(0.005, 0.3), rate=100e6, buffer=375_000, reorder=True, limit=9
    )
    assert spec.seed == 7


def test_what_is_not_named_stays() -> None:
    assert LinkSpec.parse("") == WAN
    assert LinkSpec.parse("loss=1", LinkSpec.parse("rtt=80")).rtt == pytest.approx(0.08)


@pytest.mark.parametrize(
    "text", ["foo=1", "loss=101", "loss=-1", "rtt=x", "rtt=", "rtt=inf", "burst=1", "burst=1:0", "seed=1.5", "loss"]
)
def test_what_is_wrong_is_said(text: str) -> None:
    with pytest.raises(LabError, match="link: "):
        LinkSpec.parse(text)


def test_a_specification_goes_through_json() -> None:
    spec = LinkSpec.parse("loss=1,burst=0.5:30,seed=3")
    assert LinkSpec.from_json(json.loads(json.dumps(spec.as_json()))) == spec


def test_netem_gets_the_same() -> None:
    plain = topology.netem_options(WAN.there)
    assert plain == ["limit", "100000", "delay", "15000us"]
    lossy = topology.netem_options(LinkSpec.parse("jitter=2,reorder=1,loss=0.1,rate=100").there)
    assert lossy[3:] == ["15000us", "2000us", "loss", "0.100000%", "rate", "100000000bit"]
    assert topology.netem_options(LinkSpec.parse("burst=0.5:30").there)[4:] == [
        "loss",
        "gemodel",
        "0.500000%",
        "30.000000%",
    ]


@pytest.mark.parametrize("text", ["rate=10,buffer=5", "jitter=2", "loss=1,burst=0.5:30"])
def test_what_netem_cannot_do_is_said(text: str) -> None:
    with pytest.raises(LabError, match="--link tun"):
        topology.netem_options(LinkSpec.parse(text).there)


def test_hosts_have_the_routes_that_the_direct_way_needs() -> None:
    routes = [
        " ".join(command.argv)
        for command in [*topology.wan(), *topology.lan({"database": 1, "gateway": 2, "client": 3})]
    ]
    assert "ip route add 10.78.0.0/24 via 10.77.0.2" in routes
    assert "ip route add 10.77.0.0/24 via 10.78.0.1" in routes


def test_round_trips_are_summed_up() -> None:
    trips = round_trips(102, [each / 1000 for each in range(1, 101)])
    assert (trips.lost, trips.minimum, trips.median, trips.p90, trips.p99, trips.maximum) == (2, 1, 50, 90, 99, 100)
    with pytest.raises(LabError, match="none of 3 pings"):
        round_trips(3, [])
