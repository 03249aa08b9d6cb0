"""The plan of declared features: what is counted, looked up and computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import LAST_IMPRESSION, KeyedView
from shortlist.features.counts.tiles import DAY_LENGTH, WHOLE_DAYS, Tiles
from shortlist.features.counts.vocabulary import VocabularyLimits
from shortlist.features.declared.feature_interfaces import (
    DerivingFeature,
    EventListFeature,
    IdOutputs,
    MeanVectorFeature,
    SlateComparison,
    StandardisedFeature,
)
from shortlist.features.declared.feature_kind import (
    FeatureKind,
    OutputForm,
    StandardisedNumber,
    WindowedFeature,
    declared_kinds,
)
from shortlist.features.declared.joined_lists import JoinedList
from shortlist.features.declared.slates import SlateValue, slate_columns
from shortlist.features.declared.static_view_plan import MeanView, StaticView, static_views
from shortlist.features.live.open_events import StreamingPlan
from shortlist.features.values.columns import DeclaredColumns, PlanError
from shortlist.features.values.derived_columns import DerivedColumn, log_derived_columns
from shortlist.spec.base import find_problems
from shortlist.spec.data import Data
from shortlist.spec.features import FeatureReader, Features, streamed_columns
from shortlist.spec.gates import Gates
from shortlist.spec.text.durations import parse_duration


@dataclass(frozen=True)
class FeatureColumn:
    """A column of the feature table."""

    name: str
    kind: OutputForm


PlannedView = StaticView | MeanView | KeyedView


@dataclass(frozen=True)
class Plan:
    """Everything that fitting and transforming need to know, derived once from the declaration."""

    declared: DeclaredColumns
    features: tuple[FeatureKind, ...]
    slices: tuple[str, ...]
    outputs: tuple[FeatureColumn, ...]
    static_views: tuple[StaticView, ...]
    mean_views: tuple[MeanView, ...]
    counted_views: tuple[KeyedView, ...]
    """Keys to count; views are made of those with `looked_up`."""
    vocabularies: tuple[VocabularyLimits, ...]
    """Limits of the vocabularies, one per column."""
    slates: tuple[SlateValue, ...] = ()
    """Values that are compared among the rows of a request."""
    joined_lists: tuple[JoinedList, ...] = ()
    """Lists of events that are joined when rows are looked up."""
    tiles: Tiles = WHOLE_DAYS
    """Tiles by which statistics are counted."""
    streaming: StreamingPlan | None = None
    """Keys and lists of events that are counted as they arrive; None where none are."""

    @property
    def views(self) -> tuple[PlannedView, ...]:
        """Views to look up, in an order in which every key is available when it is needed."""
        return (*self.static_views, *self.mean_views, *(view for view in self.counted_views if view.looked_up))

    @property
    def slates_have_moments(self) -> bool:
        """Whether all rows of a slate are as of its first row: a server answers a request from the same statistics."""
        return bool(self.slates) and (self.tiles.within_days or self.streaming is not None)

    @property
    def read(self) -> tuple[str, ...]:
        """Columns that become features, that are derived from in the log, or by which scores are sliced."""
        sources = [column.source for column in log_derived_columns(self.derived_columns, self.declared)]
        return tuple(dict.fromkeys((*_columns_read(self.features, self.slices), *sources)))

    @property
    def columns_of_log(self) -> frozenset[str]:
        """Columns of the log that are read from rows or counted."""
        names = (*self.read, *self.read_for_counting)
        return frozenset(self.declared.log_column(name) for name in names if self.declared.side_table_of(name) is None)

    @property
    def derived_columns(self) -> tuple[DerivedColumn, ...]:
        """Columns that are derived from others before features are computed."""
        return _derived_columns(self.features)

    @property
    def read_for_counting(self) -> tuple[str, ...]:
        """Columns that are counted or standardised."""
        keys = [key for view in self.counted_views for key in view.keys if key != Columns.GLOBAL_KEY]
        measures = [
            name.partition("_")[2] for view in self.counted_views for name in view.measures if name != Columns.ROWS
        ]
        lasts = [name for view in self.counted_views for name in view.last_value_columns]
        list_columns = [
            name for view in self.counted_views if view.newest for name in (view.newest.column, *view.newest.numbers)
        ]
        numbers = [number.column for number in self.standardised_numbers]
        return tuple(dict.fromkeys([*keys, *measures, *lasts, *list_columns, *numbers]))

    @property
    def counted_columns(self) -> tuple[str, ...]:
        """Columns of the valid log that counting reads; at least the label, which tells the number of rows."""
        read = self.read_for_counting
        if self.counted_sides or any(view.ordered or view.by_tile for view in self.counted_views):
            return self.log_columns(read)
        return tuple(dict.fromkeys((Columns.LABEL, *(self.declared.log_column(name) for name in read))))

    @property
    def counted_sides(self) -> tuple[StaticView, ...]:
        """Views of the side tables with their counted columns alone."""
        read = self.read_for_counting
        columns_by_view = ((view, tuple(name for name in view.features if name in read)) for view in self.static_views)
        return tuple(replace(view, features=names) for view, names in columns_by_view if names)

    def log_columns(self, read: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of the valid log from which some columns are read or looked up."""
        data = self.declared.data
        always_read = (Columns.LABEL, Columns.TIME, Columns.DAY, Columns.IMPRESSION)
        keys = (data.user, data.item, *(key for view in self.static_views for key in view.keys))
        log_columns = [self.declared.log_column(name) for name in read if self.declared.side_table_of(name) is None]
        log_columns += slate_columns(data) if self.slates else ()
        return tuple(dict.fromkeys(name for name in (*always_read, *keys, *log_columns) if name))

    def counting(self) -> dict[str, Any]:
        """Return a description of a day's statistics: equal descriptions mean equal statistics."""
        keyed = {
            view.name: {
                "keys": list(view.keys),
                "measures": sorted(view.measures),
                "lasts": sorted(view.last_value_columns),
            }
            for view in self.counted_views
        }
        for view in self.counted_views:
            if view.newest is not None:
                keyed[view.name]["newest"] = [view.newest.name]
        if self.tiles.within_days:
            for settings in keyed.values():
                settings["tile"] = [f"{self.tiles.length.total_seconds():.0f} s"]
        return {
            "keyed": keyed,
            "standardised": {number.output: dict(number.settings) for number in self.standardised_numbers},
        }

    @property
    def standardised_numbers(self) -> tuple[StandardisedNumber, ...]:
        """The numbers whose mean and deviation are counted."""
        return tuple(
            number
            for feature in self.features
            if isinstance(feature, StandardisedFeature)
            for number in feature.standardised_numbers(self.declared)
        )


def plan(data: Data, features: Features, gates: Gates | None = None) -> Plan:
    """Return the plan of the declared features.

    Args:
        data: The log's declaration.
        features: The operations.
        gates: Reads columns of the log beside the scores, which the table keeps.

    Raises:
        PlanError: They cannot be computed from the declared columns.
    """
    declared, operations = DeclaredColumns(data), declared_kinds(features)
    tiles = Tiles.from_declaration(data, features, declared.timezone)
    slices = gates.kept_columns(data) if gates is not None else ()
    vocabularies = _vocabularies(operations, declared)
    planned = Plan(
        declared=declared,
        features=operations,
        slices=slices,
        outputs=tuple(
            FeatureColumn(name, form)
            for feature in operations
            for name, form in zip(feature.outputs, feature.forms(declared), strict=True)
        ),
        static_views=static_views(_columns_read(operations, slices), _derived_columns(operations), declared),
        mean_views=tuple(
            dict.fromkeys(
                mean
                for feature in operations
                if isinstance(feature, MeanVectorFeature)
                for mean in feature.mean_views(declared)
            )
        ),
        counted_views=tuple(
            replace(view, by_tile=tiles.within_days and view.looked_up)
            for view in _counted_views(operations, declared, vocabularies)
        ),
        vocabularies=vocabularies,
        slates=tuple(
            feature.slate_value(declared, operations) for feature in operations if isinstance(feature, SlateComparison)
        ),
        joined_lists=tuple(
            dict.fromkeys(
                joined_list
                for feature in operations
                if isinstance(feature, EventListFeature)
                if (joined_list := feature.joined_list(declared)) is not None
            )
        ),
        tiles=tiles,
        streaming=_streaming(features, operations, declared, tiles),
    )
    checks = [partial(_check_names, planned)]
    checks += (partial(check, planned, feature) for feature in operations for check in (_check_reads, _check_window))
    if messages := find_problems(checks):
        raise PlanError("\n".join(messages))
    return planned


def _streaming(
    features: Features, operations: tuple[FeatureKind, ...], declared: DeclaredColumns, tiles: Tiles
) -> StreamingPlan | None:
    """Return the keys and lists of events that are counted as they arrive; None where none are."""
    if features.streaming is None:
        return None
    data = declared.data
    lists = {
        feature: open_list
        for feature in operations
        if isinstance(feature, EventListFeature) and (open_list := feature.open_list(declared)) is not None
    }
    counted = (streamed_columns(feature) for feature in operations if feature not in lists)
    longest = data.live_outcome_delay
    return StreamingPlan(
        keys=tuple(dict.fromkeys(tuple(sorted(map(declared.log_column, names))) for names in counted if names)),
        tiles=tiles,
        delay=parse_duration(features.streaming.delay),
        longest_outcome=None if longest is None else parse_duration(longest),
        clock_skew=parse_duration(data.live.max_clock_skew),
        lists=tuple(dict.fromkeys(lists.values())),
        user=data.user,
        item=data.item,
        max_share=data.live.max_share,
        max_bytes=features.streaming.max_bytes,
        max_count_bytes=features.streaming.max_count_bytes,
    )


def _columns_read(features: tuple[FeatureKind, ...], slices: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that are read from rows; a list that only histories or means use is not among them."""
    return tuple(dict.fromkeys((*(name for feature in features for name in feature.reads), *slices)))


def _derived_columns(features: tuple[FeatureKind, ...]) -> tuple[DerivedColumn, ...]:
    deriving = (feature for feature in features if isinstance(feature, DerivingFeature))
    return tuple(dict.fromkeys(column for feature in deriving for column in feature.derived_columns()))


def _vocabularies(features: tuple[FeatureKind, ...], declared: DeclaredColumns) -> tuple[VocabularyLimits, ...]:
    limits_by_column: dict[str, VocabularyLimits] = {}
    for limits in (
        limits for feature in features if isinstance(feature, IdOutputs) for limits in feature.vocabularies(declared)
    ):
        if limits_by_column.setdefault(limits.column, limits) != limits:
            raise PlanError(
                f"features: vocabularies of '{limits.column}' differ in min_rows or max_size; a column has one"
            )
    return tuple(limits_by_column.values())


def _counted_views(
    features: tuple[FeatureKind, ...], declared: DeclaredColumns, vocabularies: tuple[VocabularyLimits, ...]
) -> tuple[KeyedView, ...]:
    """Return the statistics to keep, one per key, in the order of first use."""
    views: dict[str, KeyedView] = {}
    for view in _required_views(features, declared, vocabularies):
        previous_view = views.get(view.name)
        if previous_view is not None and previous_view.keys != view.keys:
            raise PlanError(
                f"features: keys {list(previous_view.keys)} and {list(view.keys)} would both be named '{view.name}'"
            )
        views[view.name] = view if previous_view is None else previous_view.merge(view)
    return tuple(views.values())


def _required_views(
    features: tuple[FeatureKind, ...], declared: DeclaredColumns, vocabularies: tuple[VocabularyLimits, ...]
) -> Iterator[KeyedView]:
    for role in (declared.data.user, declared.data.item):
        if role is not None:  # identifies cold users and items
            yield KeyedView(declared.key((role,)))
    for feature in features:
        yield from feature.views(declared)
    for name in (declared.log_column(limits.column) for limits in vocabularies):
        yield KeyedView(declared.key((name,)), (name,) if declared.is_tags(name) else (), looked_up=False)


def _check_window(planned: Plan, feature: FeatureKind) -> None:
    tiles = planned.tiles
    if not isinstance(feature, WindowedFeature) or feature.window is None:
        return
    if tiles.length == DAY_LENGTH or parse_duration(feature.window) % tiles.length:
        length = int(tiles.length.total_seconds())
        raise PlanError(
            f"{feature.title}: window {feature.window} is no multiple of features.tile ({length // 60}m), or that"
            " is not below 1d; declare another window or tile, or window_days"
        )


def _check_reads(planned: Plan, feature: FeatureKind) -> None:
    forms = {output.name: output.kind for output in planned.outputs}
    for name in feature.reads_features if isinstance(feature, FeatureReader) else ():
        if forms[name] != "dense":
            raise PlanError(f"{feature.title}: '{name}' is no number, but of the form {forms[name]}")


def _check_names(planned: Plan) -> None:
    names = [view.name for view in planned.views]
    statistics = {
        LAST_IMPRESSION,
        *(name for view in planned.counted_views for name in (*view.measures, *view.features)),
    }
    for view in planned.views:
        if names.count(view.name) > 1:
            raise PlanError(f"features: two views would be named '{view.name}'; give the side table another name")
        clash = statistics.intersection(view.keys) | set(view.features).intersection((*view.keys, Columns.VALID_FROM))
        if clash:
            raise PlanError(f"features: '{min(clash)}' is the name of a statistic; give that column another name")
        if len(set(view.features)) < len(view.features):
            raise PlanError(f"features: view '{view.name}' would hold a column twice: {', '.join(view.features)}")
