"""Statistics of the days before per value of a key: which keys need which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shortlist.config.features import Count, Feature, Lag, Target, TimeSince
from shortlist.contracts import Columns
from shortlist.features.columns import Declared, PlanError

LAST_TIME = "last_time"
LAST_IMPRESSION = "last_impression"


@dataclass(frozen=True, order=True)
class Total:
    """A measure summed over all days before a moment, or over the last few of them."""

    measure: str
    window_days: int = 0
    """0: all days."""

    @property
    def name(self) -> str:
        """Name of its column in a view."""
        return f"{self.measure}_{self.window_days}d" if self.window_days else self.measure


ROWS = Total(Columns.ROWS)


@dataclass(frozen=True)
class KeyedView:
    """What is known, at the start of a day, of each value of a key."""

    keys: tuple[str, ...]
    tags: tuple[str, ...] = ()
    """Those of the keys that hold several values per row."""
    totals: tuple[Total, ...] = (ROWS,)
    lasts: tuple[str, ...] = ()
    """Columns whose value at the key's last impression is kept."""
    timed: bool = False
    """Whether the time of the key's last impression is kept."""
    histories: tuple[str, ...] = ()
    """Lists of items, of the user's side table, in which the key is counted."""
    looked_up: bool = True
    """False when only a vocabulary needs the counts."""

    @property
    def name(self) -> str:
        """Name of the view and of its statistics."""
        return "all_rows" if self.keys == (Columns.EVERYTHING,) else "by_" + "__".join(self.keys)

    @property
    def measures(self) -> tuple[str, ...]:
        """What is counted per day, `rows` first."""
        return tuple(dict.fromkeys(total.measure for total in self.totals))

    @property
    def features(self) -> tuple[str, ...]:
        """Columns of the view besides its keys and its time."""
        times = (LAST_TIME,) if self.timed else ()
        lasts = tuple(f"last_{name}" for name in self.lasts)
        return (*(total.name for total in self.totals), *times, *lasts, *(f"count_{name}" for name in self.histories))


def totals_of_target(feature: Target, declared: Declared) -> tuple[Total, Total]:
    """Return the rows and the sum behind a target encoding; a null outcome counts in neither."""
    outcome = declared.in_log(feature.of or declared.data.label)
    window = feature.window_days or 0
    never_null = outcome == Columns.LABEL or not declared.column(outcome).nullable
    rows = Columns.ROWS if never_null else f"{Columns.ROWS}_{outcome}"
    return Total(rows, window), Total(f"sum_{outcome}", window)


def view_of(feature: Count | Target | TimeSince | Lag, declared: Declared) -> KeyedView:
    """Return the view that holds what one feature looks up.

    Raises:
        PlanError: Its key cannot be counted that way.
    """
    keys = declared.key(feature.key)
    tags = tuple(name for name in keys if declared.is_tags(name))
    match feature:
        case Count(of=str(history)):
            _check_history_key(feature, declared)
            return KeyedView(keys, tags, histories=(history,))
        case Count():
            return KeyedView(keys, tags, _with_rows(Total(Columns.ROWS, feature.window_days or 0)))
        case Target():
            return KeyedView(keys, tags, _with_rows(*totals_of_target(feature, declared)))
        case TimeSince():
            return KeyedView(keys, tags, timed=True)
        case Lag():
            return KeyedView(keys, tags, lasts=(declared.in_log(feature.column),), timed=True)


def keyed_views(features: tuple[Feature, ...], declared: Declared, counted: tuple[str, ...]) -> tuple[KeyedView, ...]:
    """Return the statistics to keep, one per key, in the order of first use.

    Args:
        features: The declared operations.
        declared: The declared columns.
        counted: Columns whose values are counted for a vocabulary.
    """
    views: dict[str, KeyedView] = {}
    for view in _wanted(features, declared, counted):
        known = views.get(view.name)
        if known is not None and known.keys != view.keys:
            raise PlanError(
                f"features: keys {list(known.keys)} and {list(view.keys)} would both be named '{view.name}'"
            )
        views[view.name] = view if known is None else _merged(known, view)
    return tuple(views.values())


def _wanted(features: tuple[Feature, ...], declared: Declared, counted: tuple[str, ...]) -> Iterator[KeyedView]:
    for role in (declared.data.user, declared.data.item):
        if role is not None:  # tells cold users and items
            yield KeyedView(declared.key((role,)))
    for feature in features:
        if isinstance(feature, Count | Target | TimeSince | Lag):
            yield view_of(feature, declared)
        if isinstance(feature, Target):
            yield KeyedView((Columns.EVERYTHING,), totals=_with_rows(*totals_of_target(feature, declared)))
    for name in counted:
        yield KeyedView(declared.key((name,)), (name,) if declared.is_tags(name) else (), looked_up=False)


def _with_rows(*totals: Total) -> tuple[Total, ...]:
    return tuple(dict.fromkeys((ROWS, *totals)))


def _merged(one: KeyedView, other: KeyedView) -> KeyedView:
    return KeyedView(
        keys=one.keys,
        tags=one.tags,
        totals=tuple(dict.fromkeys((*one.totals, *other.totals))),
        lasts=tuple(dict.fromkeys((*one.lasts, *other.lasts))),
        timed=one.timed or other.timed,
        histories=tuple(dict.fromkeys((*one.histories, *other.histories))),
        looked_up=one.looked_up or other.looked_up,
    )


def _check_history_key(feature: Count, declared: Declared) -> None:
    if feature.window_days is not None:
        raise PlanError(
            f"features: count '{feature.name}': a history ('{feature.of}') has no days, so window_days has no meaning;"
            " leave it out."
        )
    check_history(str(feature.of), declared)
    data = declared.data
    for name in feature.key:
        table = declared.owner(name)
        if name not in (data.user, data.item) and (table is None or table.key not in (data.user, data.item)):
            raise PlanError(
                f"features: count '{feature.name}': '{name}' is not known of a user or an item alone, so '{feature.of}'"
                " cannot be counted by it; use columns of their side tables."
            )


def check_history(history: str, declared: Declared) -> None:
    """Raise where a list of the user's side table cannot hold item keys.

    Raises:
        PlanError: Its values are of another type than the item column.
    """
    item = declared.data.item or ""
    if declared.is_text(history) != declared.is_text(item):
        raise PlanError(
            f"features: '{history}' holds items, but its tag_type is {declared.column(history).tag_type}"
            f" and '{item}' is of type {declared.column(item).type}; declare them alike."
        )
