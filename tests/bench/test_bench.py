"""The pieces of ``make bench``, with numbers too small to mean anything."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from bench import (
    asyncpg_load,
    fleet,
    machine,
    own_python,
    pgbench,
    pgbouncer,
    point_select,
    poolers,
    quic_echo,
    report,
    timings,
)
from bench.errors import BenchError
from bench.rounds import Figures, Quic, Tcp, Versions
from bench.site import BenchSite
from helpers.fake_postgres import FakePostgres


@pytest.fixture(scope="module")
def site() -> Iterator[BenchSite]:
    with BenchSite() as site:
        site.open()
        yield site


def test_asyncpg_load_counts_checked_answers(site: BenchSite) -> None:
    load = asyncpg_load.measure(site, 2, 3, seconds=0.5)
    assert load.qps > 0
    assert load.client_us > 0


@pytest.mark.parametrize("mode", ["simple", "prepared"])
def test_pgbench_over_the_tcp_front(site: BenchSite, mode: str) -> None:
    run = pgbench.run(site, site.port, mode, lambda: site.gateway_cpu, seconds=0.5)
    assert run.tps > 0


@pytest.mark.parametrize("reconnects", [False, True])
@pytest.mark.parametrize("version", ["3.0", "3.2"])
def test_pgbench_at_each_version_of_the_protocol(site: BenchSite, version: str, reconnects: bool) -> None:
    run = pgbench.run(
        site,
        site.port,
        "extended",
        lambda: site.gateway_cpu,
        seconds=0.5,
        clients=4,
        version=version,
        reconnects=reconnects,
    )
    assert run.tps > 0


def test_pgbouncer_is_set_up_like_the_gateway(site: BenchSite) -> None:
    program = pgbouncer.find()
    if program is None:
        assert "apt-get install pgbouncer" in pgbouncer.NOT_FOUND
        return
    with pgbouncer.PgBouncer(program) as peer:
        assert re.fullmatch(r"PgBouncer \d+\.\d+.*", peer.name)
        peer.start(site)
        run = pgbench.run(site, peer.port, "simple", lambda: peer.cpu, seconds=0.5)
        folder = peer._folder.path
    assert run.tps > 0
    assert not folder.exists()


def test_fleets_are_measured_by_their_processes(site: BenchSite) -> None:
    plan = fleet.Plan(1, 0.5, (2,), modes=("simple",), clients=(2,), shapes=("2x2",))
    with poolers.gateway(site, 2) as pooler:
        assert len(pooler.pids) == 2 and len(pooler.others) == 1
        figures = fleet.run(plan, site, [pooler], lambda _: None)
    assert figures.keys() == {"tcp simple 2", "quic 2x2"}
    for each in figures.values():
        [sample] = each["2 workers"]
        assert sample.tps > 0 and sample.postgres_us > 0
        assert len(sample.shares) == 2


def test_fleets_of_pgbouncers(site: BenchSite) -> None:
    program = pgbouncer.find()
    if program is None:
        return
    with poolers.bouncers(site, program, 2) as pooler:
        meter = poolers.Meter(pooler, site.postgres.pid)
        assert pgbench.run(site, pooler.port, "simple", meter, seconds=0.5, clients=8).tps > 0
        assert len(meter.worker_cpu) == 2


def test_what_fleets_cost_on_more_cores() -> None:
    found = fleet.model(30.0, 60.0, 10.0, cores=(2, 16))
    assert found["one_worker_tps"] == 33_333
    assert found["by_cores"]["2"] == {"tps_with_load": 20_000, "tps": 22_222, "workers": 1}
    assert found["by_cores"]["16"] == {"tps_with_load": 160_000, "tps": 177_778, "workers": 5}
    one, two = (fleet.Sample(tps, 30.0, 0.0, 60.0, 10.0, (1.0,)) for tps in (1000.0, 950.0))
    summed = fleet.summary({"tcp simple 8": {"1 worker": [one], "2 workers": [two]}}, 2)
    assert summed["tcp simple 8"]["2 workers"]["ratio"] == 0.95
    assert summed["tcp simple 8"]["1 worker"]["model"]["predicted_here"] == 20_000
    assert len(list(fleet.tables(summed))) == 1
    assert (fleet.worker_counts(1), fleet.worker_counts(2), fleet.worker_counts(16)) == ((1, 2), (1, 2), (1, 2, 16))


def test_own_python_of_each_flow() -> None:
    assert own_python.measure(50).keys() == {*point_select.FLOWS, "prepared_queued"}
    assert own_python.measure(50, reported=True).keys() == {*point_select.FLOWS, "prepared_queued"}


def test_what_timing_an_exchange_costs() -> None:
    assert all(us > 0 for us in timings.client(1000).values())


def test_echo_with_answers_of_another_size() -> None:
    result = quic_echo.measure("stock", 1, 3, seconds=0.2, sizes=quic_echo.Sizes(58, 31))
    assert result.requests > 0


@pytest.fixture
async def tapped() -> AsyncIterator[tuple[list[bytes], int]]:
    chunks: list[bytes] = []
    fake = FakePostgres()

    def session() -> asyncio.Protocol:
        protocol = fake()
        take = protocol.data_received

        def data_received(data: bytes) -> None:
            chunks.append(data)
            take(data)

        protocol.data_received = data_received  # type: ignore[method-assign]
        return protocol

    async with await asyncio.get_running_loop().create_server(session, "127.0.0.1", 0) as server:
        yield chunks, server.sockets[0].getsockname()[1]


async def test_request_has_the_size_that_asyncpg_sends(tapped: tuple[list[bytes], int]) -> None:
    chunks, port = tapped
    connection = await asyncpg.connect(host="127.0.0.1", port=port, user="x", database="x", ssl=False, timeout=10)
    try:
        await connection.fetchval("select 1")
    finally:
        await connection.close()
    (request,) = [chunk for chunk in chunks if chunk.startswith(b"B")]
    assert request.endswith(point_select.ASYNCPG.request[-15:])
    # The fake's statements have no parameters: a length of 4 octets and a value of 4 less.
    assert _without_name(request) == _without_name(point_select.ASYNCPG.request) - 8


def _without_name(bind: bytes) -> int:
    # What number the statement has depends on what else this process did.
    return len(bind) - bind.index(0, 6)


def test_cpu_of_a_process_is_counted() -> None:
    before, ours = machine.cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() < ours + 0.05:
        pass
    assert machine.cpu_seconds(os.getpid()) > before


def test_facts_are_of_the_kind_of_machine_alone() -> None:
    assert machine.facts().keys() == {"cpu", "cores", "kernel", "python", "aioquic", "asyncpg", "uvloop"}


def test_summary_has_medians_of_the_rounds_ratios() -> None:
    load = asyncpg_load.Load(1000, 30, 20)
    quic = [Quic(load, quic_echo.Result(1, 1.0, us, 9.0)) for us in (10, 15, 30)]
    alone = Tcp(pgbench.Run(1000, 10), None)
    beside = Tcp(pgbench.Run(1000, 10), pgbench.Run(800, 12))
    versions = [Versions(pgbench.Run(1000, 10), pgbench.Run(900, us)) for us in (11, 12, 20)]
    figures = Figures({"1x1": quic}, {"prepared": [alone], "simple": [beside]}, {"simple": [2.0]}, {"query": versions})
    found = report.summary(figures)
    assert found["quic"]["1x1"]["ratio"] == 2.0
    assert found["quic"]["1x1"]["ratios"] == [3.0, 2.0, 1.0]
    assert found["tcp"]["prepared"]["ratio"] is None
    assert found["tcp"]["prepared"]["pgtrunk_tps"] == 1000
    assert found["tcp"]["simple"]["ratio"] == 1.25
    assert found["own_python_us"] == {"simple": 2.0}
    assert found["protocol"]["query"]["us_3_2"] == 12
    assert found["protocol"]["query"]["ratios"] == [1.1, 1.2, 2.0]
    assert len(list(report.tables(found, "PgBouncer 1.25.2"))) == 4


def test_named_pgbouncer_has_to_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGBOUNCER", str(tmp_path / "none"))
    with pytest.raises(BenchError, match="no such program"):
        pgbouncer.find()
