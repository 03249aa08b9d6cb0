"""Views whose values hold always: which side-table columns and which mean vectors are needed."""

from __future__ import annotations

from dataclasses import dataclass

from shortlist.config.features import Feature, Similarity
from shortlist.features.columns import Declared
from shortlist.features.keyed import check_history


@dataclass(frozen=True)
class StaticView:
    """The columns of a side table that something reads."""

    name: str
    keys: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class MeanView:
    """Per user, the mean vector of the items in a list."""

    keys: tuple[str, ...]
    history: str
    vector: str

    @property
    def name(self) -> str:
        """Name of the view."""
        return f"mean_{self.vector}_of_{self.history}"

    @property
    def features(self) -> tuple[str, ...]:
        """Its one column."""
        return (f"mean_{self.vector}",)


def static_views(read: tuple[str, ...], declared: Declared) -> tuple[StaticView, ...]:
    """Return the side tables of which columns are read."""
    views = []
    for table in declared.data.side_tables:
        own = tuple(name for name in read if declared.owner(name) is table)
        if own:
            views.append(StaticView(table.name, (declared.in_log(table.key),), own))
    return tuple(views)


def mean_views(features: tuple[Feature, ...], declared: Declared) -> tuple[MeanView, ...]:
    """Return the mean vectors that similarities need.

    Raises:
        PlanError: A list cannot hold item keys.
    """
    wanted: list[MeanView] = []
    for feature in features:
        if isinstance(feature, Similarity):
            check_history(feature.list, declared)
            wanted.append(MeanView(declared.key((str(declared.data.user),)), feature.list, feature.vector))
    return tuple(dict.fromkeys(wanted))
