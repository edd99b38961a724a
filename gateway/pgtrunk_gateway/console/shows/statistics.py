"""What has been done, in all and on average. Times in microseconds, rates per second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.console.columns import numerics, texts
from pgtrunk_gateway.console.merging import Rule, by_key, merge_rows, weighted
from pgtrunk_gateway.console.merging import total as added
from pgtrunk_gateway.console.registry import show
from pgtrunk_gateway.stats.averages import total

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Column, Row
    from pgtrunk_gateway.console.merging import Told
    from pgtrunk_gateway.console.view import View

__all__: list[str] = []

# PgBouncer names the same twelve things in three ways.
_TOTAL: Final = (
    "total_server_assignment_count total_xact_count total_query_count total_received total_sent total_xact_time"
    " total_query_time total_wait_time total_client_parse_count total_server_parse_count total_bind_count"
    " total_client_login_count"
)
_AVERAGE: Final = (
    "avg_server_assignment_count avg_xact_count avg_query_count avg_recv avg_sent avg_xact_time avg_query_time"
    " avg_wait_time avg_client_parse_count avg_server_parse_count avg_bind_count avg_client_login_count"
)
_PLAIN: Final = (
    "server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time wait_time"
)
_PARSES: Final = " client_parse_count server_parse_count bind_count client_login_count"
_TOTALS: Final = [
    "server_assignment_count",
    "xact_count",
    "query_count",
    "client_bytes",
    "server_bytes",
    "xact_time",
    "query_time",
    "wait_time",
    "ps_client_parse_count",
    "ps_server_parse_count",
    "ps_bind_count",
    "client_login_count",
]


_STATS: Final = (*texts("database"), *numerics(_TOTAL), *numerics(_AVERAGE))
_STATS_TOTALS: Final = (*texts("database"), *numerics(_PLAIN + _PARSES))
_STATS_AVERAGES: Final = (*texts("database"), *numerics(_PLAIN + _PARSES.replace(" ", " avg_")))

_OVER: Final = {"xact_time": "xact_count", "query_time": "query_count", "wait_time": "server_assignment_count"}
"""What the average times are averages over; all else on average is a rate, and rates add up."""
_NOTHING: Final = [0] * len(_TOTALS)
"""What workers that have gone do by now."""


def _rules(names: Sequence[str], prefix: str = "") -> dict[str, Rule]:
    """For averages of these ``names``, before which ``prefix`` stands."""
    times = {f"{prefix}{time}": weighted(f"{prefix}{count}") for time, count in _OVER.items()}
    return {name: times.get(name, added) for name in names}


def _names(columns: Sequence[Column]) -> list[str]:
    return [column.name for column in columns]


def _merge_stats(view: View, told: Told) -> Iterable[Row]:
    gone = [[*row, *_NOTHING] for table in told["DEPARTED"] for row in table]
    rules = {**dict.fromkeys(_TOTAL.split(), added), **_rules(_AVERAGE.split(), "avg_")}
    return merge_rows(_names(_STATS), chain(*told["STATS"], gone), ["database"], rules)


def _merge_stats_totals(view: View, told: Told) -> Iterable[Row]:
    rows = chain(*told["STATS_TOTALS"], *told["DEPARTED"])
    names = _names(_STATS_TOTALS)
    return merge_rows(names, rows, names[:1], dict.fromkeys(names[1:], added))


def _merge_totals(view: View, told: Told) -> Iterable[Row]:
    """A row has a name and a value: here all of a worker are put into one row, and back."""
    names = [f"{kind}_{name}" for kind in ("total", "avg") for name in _TOTALS]
    live = [["", *(value for _, value in table)] for table in told["TOTALS"]]
    gone = [["", *row[1:], *_NOTHING] for table in told["DEPARTED"] for row in table]
    rules = {**dict.fromkeys(names, added), **_rules(names[len(_TOTALS) :], "avg_")}
    (row,) = merge_rows(["", *names], [*live, *gone], [""], rules)
    return zip(names, row[1:], strict=True)


@show("STATS", _STATS, merge=_merge_stats, also=["DEPARTED"])
def show_stats(view: View) -> Iterable[Row]:
    for database, totals in view.recorder.read().items():
        yield database, *totals.row(), *view.recorder.averages(database, totals).row()


@show("STATS_TOTALS", _STATS_TOTALS, merge=_merge_stats_totals, also=["DEPARTED"])
def show_stats_totals(view: View) -> Iterable[Row]:
    for database, totals in view.recorder.read().items():
        yield database, *totals.row()


@show(
    "STATS_AVERAGES",
    _STATS_AVERAGES,
    merge=by_key("STATS_AVERAGES", _STATS_AVERAGES, "database", _rules(_names(_STATS_AVERAGES)[1:])),
)
def show_stats_averages(view: View) -> Iterable[Row]:
    for database, totals in view.recorder.read().items():
        yield database, *view.recorder.averages(database, totals).row()


@show("TOTALS", (*texts("name"), *numerics("value")), merge=_merge_totals, also=["DEPARTED"])
def show_totals(view: View) -> Iterable[Row]:
    totals = total(view.recorder.read())
    averages = view.recorder.averages("", totals)
    for kind, figures in (("total", totals), ("avg", averages)):
        for name, value in zip(_TOTALS, figures.row(), strict=True):
            yield f"{kind}_{name}", value
