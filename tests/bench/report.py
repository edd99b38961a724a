"""What the rounds say: results/bench.json, and a table for whoever ran them.

A figure is the median of its rounds; a ratio is the median of the rounds' ratios, and "ratios" lists them all.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.table import Table

if TYPE_CHECKING:
    from bench.rounds import Figures, Quic, Tcp, Versions

__all__ = ["summary", "tables"]

_T = TypeVar("_T")


def summary(figures: Figures) -> dict[str, Any]:
    """The figures as bench.json has them: tps and qps per second, ``us`` in microseconds of CPU per query."""
    found: dict[str, Any] = {}
    if figures.own:
        found["own_python_us"] = {flow: round(statistics.median(each), 2) for flow, each in figures.own.items()}
    if figures.quic:
        found["quic"] = {shape: _quic(rounds) for shape, rounds in figures.quic.items()}
    if figures.tcp:
        found["tcp"] = {mode: _tcp(rounds) for mode, rounds in figures.tcp.items()}
    if figures.versions:
        found["protocol"] = {cost: _versions(rounds) for cost, rounds in figures.versions.items()}
    return found


def _quic(rounds: Sequence[Quic]) -> dict[str, Any]:
    return {
        "qps": round(_median(rounds, lambda each: each.load.qps)),
        "gateway_us": _us(_median(rounds, lambda each: each.load.gateway_us)),
        "client_us": _us(_median(rounds, lambda each: each.load.client_us)),
        "echo_us": _us(_median(rounds, lambda each: each.echo.server_us)),
        "echo_qps": round(_median(rounds, lambda each: each.echo.rate)),
        **_ratio(each.ratio for each in rounds),
    }


def _tcp(rounds: Sequence[Tcp]) -> dict[str, Any]:
    peers = [each.peer for each in rounds if each.peer is not None]
    return {
        "pgtrunk_tps": round(_median(rounds, lambda each: each.pgtrunk.tps)),
        "peer_tps": round(_median(peers, lambda each: each.tps)) if peers else None,
        "pgtrunk_us": _us(_median(rounds, lambda each: each.pgtrunk.us)),
        "peer_us": _us(_median(peers, lambda each: each.us)) if peers else None,
        **_ratio(each.ratio for each in rounds if each.ratio is not None),
    }


def _versions(rounds: Sequence[Versions]) -> dict[str, Any]:
    return {
        "tps_3_0": round(_median(rounds, lambda each: each.old.tps)),
        "tps_3_2": round(_median(rounds, lambda each: each.new.tps)),
        "us_3_0": _us(_median(rounds, lambda each: each.old.us)),
        "us_3_2": _us(_median(rounds, lambda each: each.new.us)),
        **_ratio(each.ratio for each in rounds),
    }


def _ratio(ratios: Iterable[float]) -> dict[str, Any]:
    rounded = [round(each, 3) for each in ratios]
    return {"ratio": round(statistics.median(rounded), 3) if rounded else None, "ratios": rounded}


def _median(rounds: Sequence[_T], value: Callable[[_T], float]) -> float:
    return statistics.median(map(value, rounds))


def _us(value: float) -> float:
    return round(value, 1)


def tables(found: dict[str, Any], peer: str | None) -> Iterable[Table]:
    """The same for a reader."""
    if "own_python_us" in found:
        yield _own_table(found["own_python_us"])
    if "quic" in found:
        yield _quic_table(found["quic"])
    if "tcp" in found:
        yield _tcp_table(found["tcp"], peer or "peer")
    if "protocol" in found:
        yield _protocol_table(found["protocol"])


def _own_table(own: dict[str, float]) -> Table:
    table = _table("the gateway's own Python, in process", "what a driver sends", "us per query")
    for flow, us in own.items():
        table.add_row(flow, f"{us:.2f}")
    return table


def _quic_table(quic: dict[str, Any]) -> Table:
    title = "over QUIC: asyncpg, prepared point selects; ratio: gateway / bare echo of stock aioquic"
    table = _table(title, "shape", "queries/s", "gateway us", "client us", "echo us", "ratio", "from - to")
    for shape, each in quic.items():
        table.add_row(
            shape,
            f"{each['qps']:,}",
            f"{each['gateway_us']:.1f}",
            f"{each['client_us']:.1f}",
            f"{each['echo_us']:.1f}",
            *_ratio_cells(each),
        )
    return table


def _tcp_table(tcp: dict[str, Any], peer: str) -> Table:
    title = f"over TCP: pgbench -S; ratio: tps / those of {peer}"
    table = _table(title, "protocol", "tps", "peer tps", "us", "peer us", "ratio", "from - to")
    for mode, each in tcp.items():
        table.add_row(
            mode,
            f"{each['pgtrunk_tps']:,}",
            "-" if each["peer_tps"] is None else f"{each['peer_tps']:,}",
            f"{each['pgtrunk_us']:.1f}",
            "-" if each["peer_us"] is None else f"{each['peer_us']:.1f}",
            *_ratio_cells(each),
        )
    return table


def _protocol_table(protocol: dict[str, Any]) -> Table:
    title = "protocol 3.0 and 3.2: pgbench -S -M extended -c 100; ratio: us at 3.2 / us at 3.0"
    table = _table(title, "each", "3.0 tps", "3.2 tps", "3.0 us", "3.2 us", "ratio", "from - to")
    for cost, each in protocol.items():
        table.add_row(
            cost,
            f"{each['tps_3_0']:,}",
            f"{each['tps_3_2']:,}",
            f"{each['us_3_0']:.1f}",
            f"{each['us_3_2']:.1f}",
            *_ratio_cells(each),
        )
    return table


def _ratio_cells(each: dict[str, Any]) -> tuple[str, str]:
    ratios = each["ratios"]
    if not ratios:
        return "-", "-"
    return f"[bold]{each['ratio']:.2f}[/]", f"{min(ratios):.2f} - {max(ratios):.2f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table
