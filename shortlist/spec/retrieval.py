"""The `retrieval` section: the sources that retrieve a user's candidates, and their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Names, RegisteredSection, Section
from shortlist.spec.data import Column, Data, GeneratedSource, RowClock, SideTable

SourceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
"""Name of a source in answers, reports and metrics."""

RESERVED = ("all", "slates", "chance", "best_possible", "recently_popular", "filtering", "scoring", "ordering")
"""Names of lists in reports that are no sources."""

K, RECENT_ITEMS = "k", "recent_items"
"""Inputs of a recommendation request beside the log's columns: number of items, and the user's latest items."""

SLATE_OUTPUTS = ("score", "value", "source", "position", "propensity")
"""Outputs of a recommendation answer beside the item, which is named like its column."""


class SourceSection(Section):
    """Keys that all kinds of sources share; the kinds are in `shortlist.slates.retrieval.sources.registry`."""

    if TYPE_CHECKING:  # a field of every kind, at its place among the kind's own
        kind: str

    max_items: int | None = Field(default=None, ge=1, le=100_000)
    """Most candidates of this source; null: `retrieval.candidates`."""
    min_items: int = Field(default=0, ge=0, le=100_000)
    """Number of its first items that stay candidates however low other sources rank them."""

    def check(self, data: Data) -> None:
        """Check the source against the log's declaration.

        Args:
            data: The spec's section.

        Raises:
            ValueError: The source needs a column, or a clock, that the log does not have.
        """


class ItemIndex(Section):
    """Index for nearest-neighbour search over item vectors."""

    exact_up_to: int = Field(default=100_000, ge=0)
    """Most items for an exact search, in which every vector is compared with the query."""
    scan_up_to: int = Field(default=2_000_000, ge=0)
    """Most items for a scan, in which all vectors are compared as 4-bit numbers (8-bit where 4 lose too much) and the
    nearest again in full precision; above it, vectors are clustered and a query searches the nearest clusters."""
    precision: Literal["float32", "int8"] = "float32"
    """Number type of vectors in clusters. `int8`: a quarter of the memory, with a scalar quantiser per dimension."""
    lists: int | None = Field(default=None, ge=1, le=1_000_000)
    """Clusters that the vectors are divided into; null: four times the root of their number."""
    probes: int | None = Field(default=None, ge=1, le=1_000_000)
    """Clusters that a query searches; null: the fewest with which a sample of queries reaches `min_recall`."""
    min_recall: float = Field(default=0.99, gt=0.0, le=1.0)
    """Recall against exact search that an approximate index is tuned to."""

    @model_validator(mode="after")
    def _probes_are_lists(self) -> Self:
        if self.lists is not None and self.probes is not None and self.probes > self.lists:
            raise ValueError(f"probes {self.probes} is above lists {self.lists}; a query can search each list once")
        return self


class Retrieval(Section):
    """Sources of candidates, which a model then scores."""

    candidates: int = Field(default=500, ge=1, le=100_000)
    """Candidates of a request, of all sources together; each item once."""
    catalogue: Literal["seen", "listed"] = "seen"
    """Items that can be candidates. `seen`: all items of the log or of the items' side tables; `listed`: those of the
    items' side tables alone, so that an item that is removed from the file is removed with the next refresh."""
    recent_items: int = Field(default=20, ge=1, le=1_000)
    """Number of a user's latest positive items that sources may use as seeds."""
    sources: Annotated[
        dict[
            SourceName,
            Annotated[SourceSection, RegisteredSection("sources")],
        ],
        Field(min_length=1, max_length=20),
    ]
    """The sources, by name; several may be of one kind."""
    index: ItemIndex = ItemIndex()
    """Nearest-neighbour index of sources with vectors."""
    context: Names = ()
    """Columns of the log that have one value for all items of a request, such as a surface. Slates are evaluated with
    the values of a user's first row; other columns of a row, such as its position, are null for a candidate."""
    item_columns: Names = ()
    """Columns of the log that the item determines, such as its price, where no table of items holds them. A candidate
    has the newest value of its item in the log; requests do not send these columns."""
    simulated_requests: int = Field(default=100, ge=1, le=10_000_000)
    """Random requests of known, new and anonymous users for which every run makes slates; the gate `slates` holds if
    one breaks a filter or an ordering rule, or if slates are not as frequent as their propensities."""

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        for name in RESERVED:
            if name in self.sources:
                raise ValueError(f"sources: '{name}' is what reports call another list; choose another name")
        return self

    @model_validator(mode="after")
    def _sources_share_the_candidates(self) -> Self:
        reserved = self.reserved_candidates
        if len(self.sources) > 1 and sum(reserved.values()) >= self.candidates:
            raise ValueError(
                f"candidates {self.candidates}: min_items of {', '.join(reserved)} keep {sum(reserved.values())} of"
                " them, and leave none to other sources; declare fewer min_items, or more candidates"
            )
        return self

    def check(self, data: Data) -> None:
        """Check the section against the log's declaration.

        Raises:
            ValueError: There is no user or no item, or a source lacks what it reads.
        """
        for role in ("user", "item"):
            if getattr(data, role) is None:
                raise ValueError(f"retrieval: data.{role} names no column; declare the column that names the {role}")
        for column in data.columns:
            if column.name in (K, RECENT_ITEMS):
                raise ValueError(
                    f"retrieval: requests for recommendations have an input '{column.name}', and so does the log; call"
                    " the log's column by another name (`name`, with the file's name as `source`)"
                )
        if data.item in SLATE_OUTPUTS:
            raise ValueError(f"retrieval: answers have an output '{data.item}' of their own; rename data.item")
        if isinstance(data.source, GeneratedSource) and data.source.lifetime is not None:
            raise ValueError(
                "retrieval: data.source.lifetime ends the items' lives within hours, and candidates are judged by lists"
                " that hold for the test days; leave one out"
            )
        if self.catalogue == "listed" and not item_tables(data):
            raise ValueError(
                f"retrieval.catalogue: listed, but no side table has the key '{data.item}'; declare the items' table in"
                " data.side_tables, or leave it out"
            )
        self._check_context(data)
        for name, source in self.sources.items():
            try:
                source.check(data)
            except ValueError as problem:
                raise ValueError(f"retrieval.sources.{name}: {problem}") from None

    def _check_context(self, data: Data) -> None:
        columns_before = {column.name: column for column in data.columns if column.known == "before"}
        roles = {data.user, data.item, data.label, data.impression, data.request}
        context_columns = {name: column for name, column in columns_before.items() if name not in roles}
        for key, names, types in (
            ("context", self.context, ("integer", "number", "string", "hex", "date")),
            ("item_columns", self.item_columns, ("integer", "number", "string")),
        ):
            try:
                check_columns(names, context_columns, types, "the log that is known before")
            except ValueError as problem:
                raise ValueError(f"retrieval.{key}: {problem}") from None
        if both := sorted(set(self.context) & set(self.item_columns)):
            raise ValueError(
                f"retrieval.item_columns: '{both[0]}' is in retrieval.context too; it is a column of the item or of the"
                " request, not of both"
            )

    @property
    def reserved_candidates(self) -> dict[str, int]:
        """Number of first items of each source that stay candidates, by its name; sources without any are left out."""
        return {
            name: min(source.min_items, self.max_candidates(name))
            for name, source in self.sources.items()
            if source.min_items
        }

    def max_candidates(self, name: str) -> int:
        """Return the largest number of candidates of a source."""
        cap = self.sources[name].max_items
        return self.candidates if cap is None else min(cap, self.candidates)


def columns_without_candidates(retrieval: Retrieval, data: Data, read: Iterable[str]) -> list[str]:
    """Return the columns of the log that features read and that a candidate of a request does not have of its own.

    Args:
        retrieval: The section.
        data: The log's declaration.
        read: Columns that features read of the impression.
    """
    placed = {data.user, data.item, *retrieval.context, *retrieval.item_columns}
    return [column.name for column in data.columns if column.name in {*read} - placed and column.known == "before"]


def item_tables(data: Data) -> list[SideTable]:
    """Return the side tables with one row per item."""
    return [table for table in data.side_tables if table.key == data.item]


def user_tables(data: Data) -> list[SideTable]:
    """Return the side tables with one row per user."""
    return [table for table in data.side_tables if table.key == data.user]


def columns_of(tables: list[SideTable]) -> dict[str, Column]:
    """Return the columns of some side tables by name, their keys left out."""
    return {column.name: column for table in tables for column in table.columns if column.name != table.key}


def check_columns(
    names: tuple[str, ...], allowed_columns: dict[str, Column], types: tuple[str, ...], description: str
) -> None:
    """Check that a source can read the columns that it declares.

    Args:
        names: Columns declared in the source's section.
        allowed_columns: Columns that it may read.
        types: Types that they may have.
        description: What `allowed_columns` is, in a message.

    Raises:
        ValueError: A name is unknown, or its column has another type.
    """
    for name in names:
        if name not in allowed_columns:
            column_list = ", ".join(allowed_columns) or "none"
            raise ValueError(
                f"'{name}' is no column of {description}{did_you_mean(name, allowed_columns)}"
                f" (there are: {column_list})"
            )
        if allowed_columns[name].type not in types:
            raise ValueError(f"'{name}' is of type {allowed_columns[name].type}; wanted {' or '.join(types)}")


def check_days(data: Data, key: str) -> None:
    """Refuse a window of days where the log has no time column.

    Raises:
        ValueError: The clock is the order of the rows.
    """
    if isinstance(data.clock, RowClock):
        raise ValueError(f"{key} counts days, and data.clock is of kind row_order; declare {key}: null, or a clock")
