"""What a declaration asks to be counted, looked up and computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from shortlist.config.data import Data
from shortlist.config.features import (
    Cross,
    Feature,
    Features,
    Hash,
    Lag,
    Numeric,
    Similarity,
    Target,
    Vector,
    Vocabulary,
)
from shortlist.config.gates import Gates
from shortlist.contracts import Columns
from shortlist.features.columns import Declared, PlanError
from shortlist.features.keyed import LAST_IMPRESSION, KeyedView, keyed_views
from shortlist.features.standing import MeanView, StaticView, mean_views, static_views

Kind = Literal["dense", "id", "ids", "vector"]


@dataclass(frozen=True)
class Output:
    """A column of the feature table."""

    name: str
    kind: Kind


View = StaticView | MeanView | KeyedView


@dataclass(frozen=True)
class Plan:
    """Everything that fitting and transforming need to know, worked out once."""

    declared: Declared
    features: tuple[Feature, ...]
    slices: tuple[str, ...]
    outputs: tuple[Output, ...]
    statics: tuple[StaticView, ...]
    means: tuple[MeanView, ...]
    counted: tuple[KeyedView, ...]
    """Keys to count; views are made of those with `looked_up`."""
    vocabularies: tuple[Vocabulary, ...]
    """One per column."""

    @property
    def views(self) -> tuple[View, ...]:
        """What is looked up, in an order in which every key is there when it is needed."""
        return (*self.statics, *self.means, *(view for view in self.counted if view.looked_up))

    @property
    def read(self) -> tuple[str, ...]:
        """Columns that become features, or by which scores are sliced."""
        return _read(self.features, self.slices)

    @property
    def read_for_counting(self) -> tuple[str, ...]:
        """Columns that are counted or standardised."""
        keys = [key for view in self.counted for key in view.keys if key != Columns.EVERYTHING]
        measures = [name.partition("_")[2] for view in self.counted for name in view.measures if name != Columns.ROWS]
        lasts = [name for view in self.counted for name in view.lasts]
        numbers = [name for feature in self.standardised for name in feature.each]
        return tuple(dict.fromkeys([*keys, *measures, *lasts, *numbers]))

    @property
    def counted_columns(self) -> tuple[str, ...]:
        """Columns of the valid log that counting reads; the label, if nothing else, tells how many rows there are."""
        read = self.read_for_counting
        if self.counted_sides or any(view.timed for view in self.counted):
            return self.log_columns(read)
        return tuple(dict.fromkeys((Columns.LABEL, *(self.declared.in_log(name) for name in read))))

    @property
    def counted_sides(self) -> tuple[StaticView, ...]:
        """The side tables' columns that are counted, without the vectors and texts that are not."""
        read = self.read_for_counting
        wanted = ((view, tuple(name for name in view.features if name in read)) for view in self.statics)
        return tuple(replace(view, features=names) for view, names in wanted if names)

    def log_columns(self, read: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of the valid log needed to have some columns, and to look up the others."""
        data = self.declared.data
        own = (Columns.LABEL, Columns.TIME, Columns.DAY, Columns.IMPRESSION)
        keys = (data.user, data.item, *(key for view in self.statics for key in view.keys))
        there = (self.declared.in_log(name) for name in read if self.declared.owner(name) is None)
        return tuple(dict.fromkeys(name for name in (*own, *keys, *there) if name))

    def counting(self) -> dict[str, Any]:
        """Return what the statistics of a day hold: the same value, the same statistics."""
        keyed = {
            view.name: {"keys": list(view.keys), "measures": sorted(view.measures), "lasts": sorted(view.lasts)}
            for view in self.counted
        }
        standardised = {
            name: feature.model_dump(mode="json", include={"fill", "clip", "log"})
            for feature in self.standardised
            for name in feature.outputs
        }
        return {"keyed": keyed, "standardised": standardised}

    @property
    def standardised(self) -> tuple[Numeric, ...]:
        """The operations that need means and deviations."""
        return tuple(feature for feature in self.features if isinstance(feature, Numeric) and feature.standardise)


def plan(data: Data, features: Features, gates: Gates | None = None) -> Plan:
    """Return what the declared features need.

    Args:
        data: The log's declaration.
        features: The operations.
        gates: Names the columns by which scores will be sliced.

    Raises:
        PlanError: They cannot be made from the declared columns.
    """
    declared = Declared(data)
    slices = gates.slices if gates is not None else ()
    vocabularies = _vocabularies(features.columns)
    counted = tuple(declared.in_log(feature.each[0]) for feature in vocabularies)
    planned = Plan(
        declared=declared,
        features=features.columns,
        slices=slices,
        outputs=tuple(output for feature in features.columns for output in _outputs(feature, declared)),
        statics=static_views(_read(features.columns, slices), declared),
        means=mean_views(features.columns, declared),
        counted=keyed_views(features.columns, declared, counted),
        vocabularies=vocabularies,
    )
    _check_names(planned)
    return planned


def _read(features: tuple[Feature, ...], slices: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that are read from rows; a list that only histories or means use is not among them."""
    names: list[str] = []
    for feature in features:
        names += [feature.vector] if isinstance(feature, Similarity) else feature.inputs
        names += [feature.of] if isinstance(feature, Target) and feature.of is not None else []
        names += [feature.column] if isinstance(feature, Lag) else []
    return tuple(dict.fromkeys((*names, *slices)))


def _vocabularies(features: tuple[Feature, ...]) -> tuple[Vocabulary, ...]:
    found: dict[str, Vocabulary] = {}
    for feature in features:
        if not isinstance(feature, Vocabulary):
            continue
        for name in feature.each:
            single = feature.model_copy(update={"each": (name,)})
            known = found.setdefault(name, single)
            if (known.min_rows, known.max_size) != (single.min_rows, single.max_size):
                raise PlanError(f"features: vocabularies of '{name}' differ in min_rows or max_size; a column has one")
    return tuple(found.values())


def _outputs(feature: Feature, declared: Declared) -> list[Output]:
    match feature:
        case Vocabulary() | Hash():
            kinds: list[Kind] = ["ids" if declared.is_tags(name) else "id" for name in feature.each]
        case Cross():
            kinds = ["id"]
        case Vector():
            kinds = ["vector"] * len(feature.each)
        case _:
            kinds = ["dense"] * len(feature.outputs)
    return [Output(name, kind) for name, kind in zip(feature.outputs, kinds, strict=True)]


def _check_names(planned: Plan) -> None:
    names = [view.name for view in planned.views]
    statistics = {LAST_IMPRESSION, *(name for view in planned.counted for name in (*view.measures, *view.features))}
    for view in planned.views:
        if names.count(view.name) > 1:
            raise PlanError(f"features: two views would be named '{view.name}'; give the side table another name")
        clash = statistics.intersection(view.keys) | set(view.features).intersection((*view.keys, Columns.VALID_FROM))
        if clash:
            raise PlanError(f"features: '{min(clash)}' is the name of a statistic; give that column another name")
        if len(set(view.features)) < len(view.features):
            raise PlanError(f"features: view '{view.name}' would hold a column twice: {', '.join(view.features)}")
