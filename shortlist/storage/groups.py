"""Groups of days, or of files, that machines of their own work on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import TypeVar

from shortlist.contracts import DataError
from shortlist.storage.tables import DayPart, DayTable

T = TypeVar("T")


def neighbours(items: Sequence[T], weights: Sequence[int], most: int) -> list[list[T]]:
    """Return items shared out into groups of neighbours of about the same weight.

    Args:
        items: In an order that the groups keep.
        weights: Of the items, e.g. rows or bytes.
        most: Groups wanted; there are fewer when there are fewer items.

    >>> neighbours(["a", "b", "c", "d"], [10, 30, 20, 20], 2)
    [['a', 'b'], ['c', 'd']]
    """
    total = sum(weights)
    groups: list[list[T]] = [[] for _ in range(most)]
    before = 0
    for item, weight in zip(items, weights, strict=True):  # to the group in which the middle of its weight lies
        groups[min(most - 1, (2 * before + weight) * most // max(1, 2 * total))].append(item)
        before += weight
    return [group for group in groups if group]


def groups_of(days: Sequence[DayPart], most: int) -> list[list[date]]:
    """Return days shared out into groups of neighbours with about as many rows each.

    Args:
        days: In time order.
        most: Groups wanted; there are fewer when there are fewer days.

    >>> part = lambda day, rows: DayPart(day=date(2026, 1, day), rows=rows, positives=0, files=())
    >>> [len(group) for group in groups_of([part(1, 10), part(2, 30), part(3, 20), part(4, 10), part(5, 10)], 2)]
    [2, 3]
    """
    return neighbours([part.day for part in days], [part.rows for part in days], most)


def written(days: Iterable[date]) -> str:
    """Return a group as the graph's steps are told of it: ISO dates, separated by commas."""
    return ",".join(day.isoformat() for day in days)


def read(days: str) -> frozenset[date]:
    """Return what `written` wrote."""
    return frozenset(date.fromisoformat(day) for day in days.split(",") if day)


def check_all_days_grouped(groups: Mapping[str, Iterable[date]], log: DayTable) -> None:
    """Check that every day of a log is in a group, and no day in two.

    Args:
        groups: The days of every group, by its name in messages.
        log: The log.

    Raises:
        DataError: It is not so.
    """
    seen: dict[date, str] = {}
    for name, days in groups.items():
        for day in days:
            if day in seen:
                raise DataError(f"{day} is in two groups of days, {seen[day]} and {name}; share the days out again")
            seen[day] = name
    for part in log.days:
        if part.day not in seen:
            raise DataError(f"{log.folder}: {part.day} is in no group of days; share the days out again")
