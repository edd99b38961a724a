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
    assert plain == ["limit", "100000", "delay", "15000us", "rate", "0bit"]
    lossy = topology.netem_options(LinkSpec.parse("jitter=2,loss=0.1,rate=100").there)
    assert lossy[3:] == ["15000us", "2000us", "loss", "0.100000%", "rate", "100000000bit"]
    # A rate, however high, is what keeps packets in order.
    assert topology.netem_options(LinkSpec.parse("jitter=2").there)[5:] == ["rate", "100000000000bit"]
    assert topology.netem_options(LinkSpec.parse("jitter=2,reorder=1").there)[4:] == ["2000us", "rate", "0bit"]
    assert topology.netem_options(LinkSpec.parse("burst=0.5:30").there)[4:] == [
        "loss",
        "gemodel",
        "0.500000%",
        "30.000000%",
        "rate",
        "0bit",
    ]


@pytest.mark.parametrize("text", ["jitter=2,reorder=1,rate=10", "loss=1,burst=0.5:30"])
def test_what_netem_cannot_do_is_said(text: str) -> None:
    with pytest.raises(LabError, match="--link tun"):
        topology.netem_options(LinkSpec.parse(text).there)


def test_a_buffer_in_octets_is_behind_netem_and_goes_when_it_is_no_longer_asked_for() -> None:
    plain, narrow = LinkSpec.parse(""), LinkSpec.parse("rate=10,buffer=75")
    steps: list[tuple[LinkSpec, LinkSpec | None, str, str | None]] = [
        (plain, None, "add", None),
        (narrow, plain, "change", "replace"),
        (narrow, narrow, "change", "replace"),
        (plain, narrow, "change", "del"),
        (plain, plain, "change", None),
    ]
    for spec, before, first, second in steps:
        commands = [command.argv for command in topology.netem(spec, before) if command.host == "client"]
        assert [argv[2] for argv in commands] == [verb for verb in (first, second) if verb]
        assert commands[0][5:9] == ("root", "handle", "1:", "netem")
        if second:
            assert commands[1][5:7] == ("parent", "1:1")
    words = next(command.argv for command in topology.netem(narrow, plain) if "tbf" in command.argv)
    assert words[-6:] == ("rate", "10000000bit", "burst", "1600", "limit", "75000")
    assert topology.netem_options(narrow.there)[-2:] == ["rate", "0bit"]


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
