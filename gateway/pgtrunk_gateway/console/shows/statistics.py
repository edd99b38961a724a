"""What has been done, in all and on average. Times in microseconds, rates per second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.console.columns import numerics, texts
from pgtrunk_gateway.console.registry import show
from pgtrunk_gateway.stats.averages import total

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row
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


@show("STATS", (*texts("database"), *numerics(_TOTAL), *numerics(_AVERAGE)))
def show_stats(view: View) -> Iterable[Row]:
    for database, totals in view.recorder.read().items():
        yield database, *totals.row(), *view.recorder.averages(database, totals).row()


@show("STATS_TOTALS", (*texts("database"), *numerics(_PLAIN + _PARSES)))
def show_stats_totals(view: View) -> Iterable[Row]:
    for database, totals in view.recorder.read().items():
        yield database, *totals.row()


@show("STATS_AVERAGES", (*texts("database"), *numerics(_PLAIN + _PARSES.replace(" ", " avg_"))))
def show_stats_averages(view: View) -> Iterable[Row]:
    for database, totals in view.recorder.read().items():
        yield database, *view.recorder.averages(database, totals).row()


@show("TOTALS", (*texts("name"), *numerics("value")))
def show_totals(view: View) -> Iterable[Row]:
    totals = total(view.recorder.read())
    averages = view.recorder.averages("", totals)
    for kind, figures in (("total", totals), ("avg", averages)):
        for name, value in zip(_TOTALS, figures.row(), strict=True):
            yield f"{kind}_{name}", value
