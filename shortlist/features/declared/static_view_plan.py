"""Views whose values do not change with time: columns of side tables, and mean vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shortlist.features.values.columns import DeclaredColumns, PlanError
from shortlist.features.values.derived_columns import DerivedColumn


@dataclass(frozen=True)
class StaticView:
    """The columns of a side table that are read."""

    name: str
    keys: tuple[str, ...]
    features: tuple[str, ...]
    derived: tuple[DerivedColumn, ...] = ()
    """The features that are derived from columns of the side table."""


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
        """Name of its column."""
        return (f"mean_{self.vector}",)


def static_views(
    read: tuple[str, ...], derived: Iterable[DerivedColumn], declared: DeclaredColumns
) -> tuple[StaticView, ...]:
    """Return the views of the side tables whose columns are read, or derived from."""
    views, derived_columns = [], tuple(derived)
    for table in declared.data.side_tables:
        table_columns = tuple(name for name in read if declared.side_table_of(name) is table)
        own_derived = tuple(column for column in derived_columns if declared.side_table_of(column.source) is table)
        features = (*table_columns, *(column.name for column in own_derived))
        if features:
            views.append(StaticView(table.name, (declared.log_column(table.key),), features, own_derived))
    return tuple(views)


def check_holds_items(history: str, declared: DeclaredColumns) -> None:
    """Check that a list of the user's side table can hold item keys.

    Raises:
        PlanError: Its values are of another type than the item column.
    """
    item = declared.data.item or ""
    if declared.is_text(history) != declared.is_text(item):
        raise PlanError(
            f"features: '{history}' holds items, but its tag_type is {declared.column(history).tag_type}"
            f" and '{item}' is of type {declared.column(item).type}; declare them alike."
        )
