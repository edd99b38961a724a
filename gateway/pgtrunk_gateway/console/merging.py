"""How the rows of a fleet's workers become one answer. Pure.

Three kinds of shows. Rows that are about something that one worker has, such as a session, stand one behind the other,
with the worker's number. Rows that are the same everywhere, such as settings, are those of the worker that is asked.
Rows about what all of them share, such as a pool, become one by :func:`by_key`: counts are added, of times the longest
counts, averages are weighted by what they are averages of, limits are what is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from pgtrunk_gateway.console.columns import Column, Kind

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row, Value
    from pgtrunk_gateway.console.view import View

__all__ = ["WORKER", "Merge", "Rule", "Told", "by_key", "longest", "merge_rows", "most", "total", "weighted"]

WORKER: Final = Column("worker", Kind.INT4)
"""Behind the columns of a show, where its rows are about one worker."""

Told: TypeAlias = Mapping[str, Sequence[Sequence["Row"]]]
"""By the name of a show what the workers have answered: a table of each, the asked worker's own first."""
Merge: TypeAlias = Callable[["View", Told], "Iterable[Row]"]
Group: TypeAlias = Mapping[str, Sequence["Value"]]
"""By the name of a column its values in rows that become one."""
Rule: TypeAlias = Callable[[str, Group], "Value"]
"""The value of a column, by its name."""


def first(name: str, group: Group) -> Value:
    """What is the same on all workers."""
    return group[name][0]


def total(name: str, group: Group) -> Value:
    """Counts add up."""
    return sum(_number(value) for value in group[name])


def most(name: str, group: Group) -> Value:
    """The largest."""
    return max(_number(value) for value in group[name])


def longest(*parts: str) -> Rule:
    """For a time in columns ``parts``, the largest unit first: all of them from the row with the longest."""

    def rule(name: str, group: Group) -> Value:
        times = list(zip(*([_number(value) for value in group[part]] for part in parts), strict=True))
        return group[name][times.index(max(times))]

    return rule


def weighted(by: str) -> Rule:
    """An average of something that column ``by`` has the number of. Where that is rounded to 0, it counts as one."""

    def rule(name: str, group: Group) -> Value:
        averages = [_number(value) for value in group[name]]
        weights = [_number(count) or int(average != 0) for average, count in zip(averages, group[by], strict=True)]
        whole = sum(average * weight for average, weight in zip(averages, weights, strict=True))
        return whole // sum(weights) if any(weights) else 0

    return rule


def by_key(show: str, columns: Sequence[Column], keys: str, rules: Mapping[str, Rule]) -> Merge:
    """One row for each value of the columns ``keys`` (with spaces in between); what has no rule is the same everywhere,
    and so is what is not there on all of them."""

    def merge(view: View, told: Told) -> Iterable[Row]:
        rows = [row for table in told[show] for row in table]
        return merge_rows([column.name for column in columns], rows, keys.split(), rules)

    return merge


def merge_rows(names: Sequence[str], rows: Iterable[Row], keys: Sequence[str], rules: Mapping[str, Rule]) -> list[Row]:
    """What :func:`by_key` makes of ``rows`` with columns of these ``names``: in the order in which keys first came."""
    places = [names.index(key) for key in keys]
    groups: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[place] for place in places), []).append(row)
    return [_merged(names, group, rules) for group in groups.values()]


def _merged(names: Sequence[str], rows: Sequence[Row], rules: Mapping[str, Rule]) -> Row:
    if len(rows) == 1:
        return rows[0]
    group = dict(zip(names, zip(*rows, strict=True), strict=True))
    return tuple(rules.get(name, first)(name, group) for name in names)


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 0
