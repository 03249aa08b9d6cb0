"""The `retrieval` section: which sources find a user's candidates among all items, and how many they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Names, OneOf, Section
from shortlist.spec.data import Column, Data, GeneratedSource, RowClock, SideTable

SourceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
"""What a user calls a source: in answers, reports and metrics."""

RESERVED = ("all", "best_possible", "recently_popular", "filtering", "scoring", "ordering")
"""Names that reports give to other lists than those of sources."""

K, RECENT_ITEMS = "k", "recent_items"
"""Inputs of a request for recommendations beside the log's columns: items wanted, and those that the user took last."""

SLATE_OUTPUTS = ("score", "value", "source", "position", "propensity")
"""Outputs of its answer beside the item, which has its column's name."""


class SourceSection(Section):
    """What every kind of source declares; see `shortlist.retrieval.sources.registry` for the kinds."""

    if TYPE_CHECKING:  # a field of every kind, at its place among the kind's own
        kind: str

    max_items: int | None = Field(default=None, ge=1, le=100_000)
    """Most candidates of this source; null: `retrieval.candidates`."""

    def check(self, data: Data) -> None:
        """Check what only the log's declaration tells.

        Args:
            data: The spec's section.

        Raises:
            ValueError: The source needs a column, or a time, that the log does not have.
        """


class ItemIndex(Section):
    """How the nearest of many vectors are found."""

    exact_up_to: int = Field(default=100_000, ge=0)
    """Up to so many items, every vector is compared with the query."""
    scan_up_to: int = Field(default=2_000_000, ge=0)
    """Up to so many, every vector is compared as numbers of 4 bits, or of 8 where these hide too much, and the nearest
    by the vectors themselves; above it, vectors are divided into clusters, of which a query searches the nearest."""
    precision: Literal["float32", "int8"] = "float32"
    """How clusters keep vectors. `int8`: a quarter of the memory; a scalar quantiser per dimension."""
    lists: int | None = Field(default=None, ge=1, le=1_000_000)
    """Clusters that the vectors are divided into; null: four times the root of their number."""
    probes: int | None = Field(default=None, ge=1, le=1_000_000)
    """Clusters that a query searches; null: the fewest with which a sample of queries finds `min_recall`."""
    min_recall: float = Field(default=0.99, gt=0.0, le=1.0)
    """Share of the exact answers that an approximate index is tuned to find."""

    @model_validator(mode="after")
    def _probes_are_lists(self) -> Self:
        if self.lists is not None and self.probes is not None and self.probes > self.lists:
            raise ValueError(f"probes {self.probes} is above lists {self.lists}; a query can search each list once")
        return self


class Retrieval(Section):
    """Where candidates come from, before a model scores them."""

    candidates: int = Field(default=500, ge=1, le=100_000)
    """Candidates of a request, of all sources together; each item once."""
    catalogue: Literal["seen", "listed"] = "seen"
    """Items that can be candidates. `seen`: all that the log or a side table of the items names; `listed`: those of the
    items' side tables alone, so that an item which is taken out of the file is gone with the next refresh."""
    recent_items: int = Field(default=20, ge=1, le=1_000)
    """A user's latest positive items that sources may start from."""
    sources: Annotated[
        dict[SourceName, Annotated[SourceSection, OneOf("shortlist.retrieval.sources.registry:SOURCE_KINDS")]],
        Field(min_length=1, max_length=20),
    ]
    """The sources, by name; several of one kind are fine."""
    index: ItemIndex = ItemIndex()
    """How sources with vectors find the nearest items."""
    context: Names = ()
    """Columns of the log that a request tells once for all its items, such as a surface. Slates are evaluated with
    those of a user's first row; what else a row has, such as its place, is null for a candidate."""
    simulated_requests: int = Field(default=100, ge=1, le=10_000_000)
    """Random requests of known, new and anonymous users that every run makes slates for; the gate `slates` holds if one
    breaks a filter, a rule of the order, or was not as likely as its propensities say."""

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        for name in RESERVED:
            if name in self.sources:
                raise ValueError(f"sources: '{name}' is what reports call another list; choose another name")
        return self

    def check(self, data: Data) -> None:
        """Check what only the log's declaration tells.

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
        known = {column.name: column for column in data.columns if column.known == "before"}
        roles = {data.user, data.item, data.label, data.impression, data.request}
        own = {name: column for name, column in known.items() if name not in roles}
        try:
            check_columns(
                self.context, own, ("integer", "number", "string", "hex", "date"), "the log that is known before"
            )
        except ValueError as problem:
            raise ValueError(f"retrieval.context: {problem}") from None

    def capped(self, name: str) -> int:
        """Return how many candidates a source gives at most."""
        cap = self.sources[name].max_items
        return self.candidates if cap is None else min(cap, self.candidates)


def item_tables(data: Data) -> list[SideTable]:
    """Return the side tables with one row per item."""
    return [table for table in data.side_tables if table.key == data.item]


def user_tables(data: Data) -> list[SideTable]:
    """Return the side tables with one row per user."""
    return [table for table in data.side_tables if table.key == data.user]


def columns_of(tables: list[SideTable]) -> dict[str, Column]:
    """Return the columns of some side tables by name, their keys left out."""
    return {column.name: column for table in tables for column in table.columns if column.name != table.key}


def check_columns(names: tuple[str, ...], known: dict[str, Column], types: tuple[str, ...], what: str) -> None:
    """Refuse columns that a source cannot read.

    Args:
        names: Declared in the source's section.
        known: Columns that it may read.
        types: That they may have.
        what: What `known` is, in a message.

    Raises:
        ValueError: A name is unknown, or its column has another type.
    """
    for name in names:
        if name not in known:
            there = ", ".join(known) or "none"
            raise ValueError(f"'{name}' is no column of {what}{did_you_mean(name, known)} (there are: {there})")
        if known[name].type not in types:
            raise ValueError(f"'{name}' is of type {known[name].type}; wanted {' or '.join(types)}")


def check_days(data: Data, key: str) -> None:
    """Refuse a window of days where the log has no time of its own.

    Raises:
        ValueError: The clock is the order of the rows.
    """
    if isinstance(data.clock, RowClock):
        raise ValueError(f"{key} counts days, and data.clock is of kind row_order; declare {key}: null, or a clock")
