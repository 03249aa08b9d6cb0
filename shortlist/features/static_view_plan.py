"""Views whose values hold always: columns of side tables, and mean vectors."""

from __future__ import annotations

from dataclasses import dataclass

from shortlist.features.columns import DeclaredColumns, PlanError


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


def static_views(read: tuple[str, ...], declared: DeclaredColumns) -> tuple[StaticView, ...]:
    """Return the side tables of which columns are read."""
    views = []
    for table in declared.data.side_tables:
        own = tuple(name for name in read if declared.owner(name) is table)
        if own:
            views.append(StaticView(table.name, (declared.in_log(table.key),), own))
    return tuple(views)


def check_holds_items(history: str, declared: DeclaredColumns) -> None:
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
