"""What Prometheus and OpenTelemetry get of a trunk, by their own libraries; and that nothing is left out."""

from __future__ import annotations

import asyncio
import sys
import threading
import urllib.request
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import start_http_server
from prometheus_client.parser import text_string_to_metric_families

from helpers.trunks import fake_trunk, open_session, turns
from pgtrunk import StreamManager
from pgtrunk.errors import TrunkClosed, UsageError
from pgtrunk.exporting import Recent, Trunks
from pgtrunk.histogram import Histogram
from pgtrunk.metric import counter, each, families, gauge, label
from pgtrunk.opentelemetry import instrument
from pgtrunk.prometheus import collector
from pgtrunk.stages import Stages, Timing
from pgtrunk.telemetry import ConnectionStats, PathStats, SessionStats, TransferStats, TrunkStats, WaitStats

if TYPE_CHECKING:
    from collections.abc import Iterator


def timing(*seconds: float) -> Timing:
    histogram = Histogram()
    for each_one in seconds:
        histogram.add(each_one)
    return Timing.of(histogram)


STATS = TrunkStats(
    connections=ConnectionStats(ready=2, connecting=1, max=4, opened=7, reconnects=3),
    sessions=SessionStats(in_use=5, moved=2, round_trips_saved=21),
    waits=WaitStats(waiting=1, total=1.5, longest=0.5),
    stages=Stages(execution=timing(0.001, 0.02, 0.02, 60.0), exchange=timing(0.03)),
    path=(
        PathStats(connection=1, peer="192.0.2.1:6432", rtt=0.031, packets_sent=100, packets_lost=2),
        PathStats(connection=4, peer="[2001:db8::1]:6432", rtt=0.029),
    ),
    transfer=TransferStats(sent=1000, received=2000),
)


class Watched:
    """A trunk that has done what the test says."""

    def __init__(self, gateway: str = "gw:6432", stats: TrunkStats | None = STATS) -> None:
        self.gateway = gateway
        self.told = stats
        self.looks = 0

    def stats(self) -> TrunkStats:
        self.looks += 1
        if self.told is None:
            raise TrunkClosed("the trunk to gw:6432 is not open")
        return self.told


def leaves(picture: Any, path: str = "") -> Iterator[str]:
    """All fields that are neither areas nor tuples of pictures."""
    for one in fields(picture):
        value = getattr(picture, one.name)
        if isinstance(value, tuple):
            yield from (name for member in value for name in leaves(member, f"{path}{one.name}."))
        elif is_dataclass(value) and not isinstance(value, Timing):
            yield from leaves(value, f"{path}{one.name}.")
        else:
            yield path + one.name


# What there is.


def test_each_field_of_the_picture_is_a_metric_or_a_label() -> None:
    found = families(STATS)
    samples = sum(len(family.samples) for family in found)
    labels = 2 * len(STATS.path)
    assert samples + labels == len(list(leaves(STATS)))
    assert len({family.name for family in found}) == len(found)
    assert all(family.help.endswith(".") for family in found)
    # Two values of one family are told apart.
    for family in found:
        told = [tuple(sorted(sample.labels.items())) for sample in family.samples]
        assert len(set(told)) == len(told), family.name


def test_a_field_that_is_added_is_exported_and_an_empty_tuple_has_its_families() -> None:
    @dataclass(frozen=True)
    class Member:
        number: int = label(0)
        sent: int = counter("Sent.", unit="bytes")

    @dataclass(frozen=True)
    class Area:
        depth: float = gauge("Depth.", default=2.5)
        left: int = gauge("By side.", name="sides", side="left")
        right: int = gauge("By side.", name="sides", side="right")

    @dataclass(frozen=True)
    class Picture:
        area: Area = Area()
        members: tuple[Member, ...] = each(Member)

    def seen(picture: Picture) -> list[tuple[str, str, list[tuple[dict[str, str], Any]]]]:
        return [(f.name, f.kind, [(dict(s.labels), s.value) for s in f.samples]) for f in families(picture)]

    first = [
        ("area_depth", "gauge", [({}, 2.5)]),
        ("sides", "gauge", [({"side": "left"}, 0), ({"side": "right"}, 0)]),
    ]
    assert seen(Picture()) == [*first, ("members_sent", "counter", [])]
    assert seen(Picture(members=(Member(3, 30), Member(4, 40)))) == [
        *first,
        ("members_sent", "counter", [({"number": "3"}, 30), ({"number": "4"}, 40)]),
    ]


# Prometheus.


def scraped(*trunks: Watched | StreamManager) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """What the library's own parser reads of what the library writes: value by labels, by name."""
    registry = CollectorRegistry()
    registry.register(collector(*trunks))
    values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.documentation
        for sample in family.samples:
            values.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return values


def test_prometheus_reads_what_the_trunk_has() -> None:
    values = scraped(Watched())
    mine = ("trunk", "gw:6432")
    assert values["pgtrunk_connections"][(("state", "ready"), mine)] == 2
    assert values["pgtrunk_connections"][(("state", "connecting"), mine)] == 1
    assert values["pgtrunk_connections_opened_total"] == {(mine,): 7}
    assert values["pgtrunk_reconnects_total"] == {(mine,): 3}
    assert values["pgtrunk_waits_seconds_total"] == {(mine,): 1.5}
    assert values["pgtrunk_sessions_moved_total"] == {(mine,): 2}
    assert values["pgtrunk_sessions_round_trips_saved_total"] == {(mine,): 21}
    assert values["pgtrunk_transfer_sent_bytes_total"] == {(mine,): 1000}
    assert values["pgtrunk_path_rtt_seconds"] == {
        (("connection", "1"), ("peer", "192.0.2.1:6432"), mine): 0.031,
        (("connection", "4"), ("peer", "[2001:db8::1]:6432"), mine): 0.029,
    }
    assert values["pgtrunk_path_packets_lost_total"][(("connection", "1"), ("peer", "192.0.2.1:6432"), mine)] == 2


def test_a_stage_is_a_histogram_to_prometheus() -> None:
    values = scraped(Watched())
    labels = (("stage", "execution"), ("trunk", "gw:6432"))
    assert values["pgtrunk_stage_seconds_count"][labels] == 4
    assert values["pgtrunk_stage_seconds_sum"][labels] == pytest.approx(60.041)
    buckets = {
        float(dict(told)["le"]): value
        for told, value in values["pgtrunk_stage_seconds_bucket"].items()
        if dict(told)["stage"] == "execution"
    }
    bounds = sorted(buckets)
    assert [round(bound * 1e6) for bound in bounds[:-1]] == [64 << power for power in range(20)]
    assert bounds[-1] == float("inf")
    assert [buckets[bound] for bound in (0.000512, 0.001024, 0.016384, 0.032768, 33.554432, float("inf"))] == [
        *(0, 1, 1, 3, 3),
        4,
    ]
    assert all(buckets[lower] <= buckets[upper] for lower, upper in pairwise(bounds))


def test_several_trunks_have_a_label_each() -> None:
    shop = Watched("gw1:6432")
    reports = Watched("gw1:6432", replace(STATS, sessions=SessionStats(in_use=9)))
    registry = CollectorRegistry()
    made = collector(shop)
    registry.register(made)
    with pytest.raises(UsageError, match="'gw1:6432' is exported already: give this one another name"):
        made.add(reports)
    made.add(reports, "reports")
    made.add(shop)
    assert registry.get_sample_value("pgtrunk_sessions_in_use", {"trunk": "gw1:6432"}) == 5
    assert registry.get_sample_value("pgtrunk_sessions_in_use", {"trunk": "reports"}) == 9
    made.remove(shop)
    assert registry.get_sample_value("pgtrunk_sessions_in_use", {"trunk": "gw1:6432"}) is None
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(collector())


def test_a_trunk_that_is_not_open_shows_nothing() -> None:
    assert scraped(Watched(stats=None)) == {}
    assert scraped(Watched("closed", None), Watched("open"))["pgtrunk_sessions_in_use"] == {(("trunk", "open"),): 5}


async def test_a_real_manager_from_another_thread() -> None:
    manager = StreamManager("127.0.0.1:6432")
    assert scraped(manager) == {}
    registry = CollectorRegistry()
    registry.register(collector(manager))
    async with manager:
        server, thread = start_http_server(0, "127.0.0.1", registry)
        told: list[bytes] = []

        def scrape() -> None:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            with urllib.request.urlopen(url, timeout=20) as answer:
                told.append(answer.read())

        # The loop does nothing in the meantime: nobody waits for it.
        scraper = threading.Thread(target=scrape)
        scraper.start()
        scraper.join(20)
        server.shutdown()
        server.server_close()
        thread.join()
    assert b'pgtrunk_connections_max{trunk="127.0.0.1:6432"} 4.0' in told[0]


async def test_looking_from_another_thread_while_things_go_on_harms_nothing() -> None:
    looks, faults, over = 0, [], threading.Event()

    def look(trunk: Any) -> None:
        nonlocal looks
        while not over.is_set():
            try:
                families(trunk.stats())
            except Exception as exc:
                faults.append(exc)
                return
            looks += 1

    interval = sys.getswitchinterval()
    async with fake_trunk(connections=20, streams=1) as (trunk, _):
        watcher = threading.Thread(target=look, args=(trunk,))
        sys.setswitchinterval(1e-6)
        watcher.start()
        try:
            async with asyncio.timeout(30):
                while looks < 200 and not faults:
                    sessions = [await open_session(trunk) for _ in range(20)]
                    for session in sessions:
                        session.transport.close()
                    await turns()
        finally:
            sys.setswitchinterval(interval)
            over.set()
            watcher.join(20)
    assert faults == []


def test_a_picture_is_of_one_moment_and_taken_again_later() -> None:
    now = [0.0]
    trunks, watched = Trunks(clock=lambda: now[0]), Watched()
    trunks.add(watched)
    for _ in range(50):
        assert trunks.families()
    assert watched.looks == 1
    now[0] += 1.0
    trunks.families()
    trunks.add(Watched("another"))
    assert len(trunks.families()) == 2
    assert watched.looks == 3


def test_percentiles_are_of_the_last_minutes() -> None:
    slow, fast = timing(*[1.0] * 100), timing(*[1.0] * 100, *[0.01] * 10)
    recent = Recent()
    recent.look({"a": slow}, 0.0)
    assert recent.of("a", slow) == slow
    recent.look({"a": slow}, 59.0)
    assert recent.of("a", slow) == slow
    recent.look({"a": slow}, 60.0)
    assert recent.of("a", slow).count == 0
    recent.look({"a": fast}, 119.0)
    assert recent.of("a", fast).p99 == timing(0.01).p99
    # Turned at 120; the ten are between the second minute and now, and then they are not.
    recent.look({"a": fast}, 120.0)
    assert recent.of("a", fast).count == 10
    recent.look({"a": fast, "b": slow}, 500.0)
    assert (recent.of("a", fast).count, recent.of("b", slow).count) == (0, 100)


# OpenTelemetry.


def collected(*trunks: Watched) -> dict[str, tuple[str, Any]]:
    """Unit and points of each instrument, as a reader of the SDK gets them."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instrument(provider.get_meter("test"), *trunks)
    data = reader.get_metrics_data()
    provider.shutdown()
    if data is None:
        return {}
    metrics = [metric for each_one in data.resource_metrics[0].scope_metrics for metric in each_one.metrics]
    assert all(metric.description for metric in metrics)
    return {metric.name: (metric.unit or "", metric.data) for metric in metrics}


def points(data: Any) -> dict[tuple[tuple[str, Any], ...], float]:
    return {tuple(sorted(point.attributes.items())): point.value for point in data.data_points}


def test_opentelemetry_reads_what_the_trunk_has() -> None:
    metrics = collected(Watched())
    mine = ("trunk", "gw:6432")
    unit, data = metrics["pgtrunk.connections"]
    assert (unit, points(data)[(("state", "ready"), mine)]) == ("1", 2)
    unit, data = metrics["pgtrunk.connections_opened"]
    assert (unit, points(data), data.is_monotonic) == ("1", {(mine,): 7}, True)
    unit, data = metrics["pgtrunk.transfer_sent"]
    assert (unit, points(data)) == ("By", {(mine,): 1000})
    unit, data = metrics["pgtrunk.path_rtt"]
    assert unit == "s"
    assert points(data)[(("connection", "4"), ("peer", "[2001:db8::1]:6432"), mine)] == 0.029


def test_a_stage_is_count_sum_and_percentiles_to_opentelemetry() -> None:
    metrics = collected(Watched())
    labels = (("stage", "execution"), ("trunk", "gw:6432"))
    unit, data = metrics["pgtrunk.stage.count"]
    assert (unit, points(data)[labels], data.is_monotonic) == ("1", 4, True)
    unit, data = metrics["pgtrunk.stage.time"]
    assert unit == "s"
    assert points(data)[labels] == pytest.approx(60.041)
    unit, data = metrics["pgtrunk.stage.quantile"]
    stages = {quantile: points(data)[(("quantile", quantile), *labels)] for quantile in ("0.5", "0.9", "0.99")}
    assert (unit, stages["0.5"]) == ("s", STATS.stages.execution.p50)
    assert stages["0.99"] == STATS.stages.execution.p99


def test_both_export_the_same_families() -> None:
    shown = {
        name.removeprefix("pgtrunk_").removesuffix("_total")
        for name in scraped(Watched())
        if not name.startswith("pgtrunk_stage_")
    }
    units = {"s": "_seconds", "By": "_bytes", "1": ""}
    told = {
        name.removeprefix("pgtrunk.") + units[unit]
        for name, (unit, _) in collected(Watched()).items()
        if not name.startswith("pgtrunk.stage.")
    }
    assert told == shown


def test_opentelemetry_with_several_trunks_and_none() -> None:
    assert collected() == {}
    data = collected(Watched("a"), Watched("b"), Watched("closed", None))["pgtrunk.sessions_in_use"][1]
    assert points(data) == {(("trunk", "a"),): 5, (("trunk", "b"),): 5}
