"""All sources of a release: fitted into one folder with a manifest, loaded from it, asked together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import Columns, DataError
from shortlist.data.side_tables import side_path
from shortlist.evaluation.retrieval import ALL_SOURCES
from shortlist.retrieval.catalogue import Catalogue, Rows, places_of, write_mappable
from shortlist.retrieval.source import ROW, FitData, Queries, Ranked, Source
from shortlist.retrieval.union import Candidates, united
from shortlist.spec.data import Data
from shortlist.spec.retrieval import Retrieval, columns_of, item_tables
from shortlist.storage.artefacts import atomic_folder, read_json, verify_manifest, write_json, write_manifest
from shortlist.storage.tables import DayTable

RETRIEVAL: Final = "retrieval.json"
"""What the folder holds: the section, the days learnt from, the number of items."""
_SOURCES: Final = "sources"
_RECENT: Final = "recent.arrow"
_USER: Final = "user"
_ALL_NAME: Final = "the log and the items' side tables name"


def fit_retrieval(
    section: Retrieval, data: Data, log: DayTable, days: frozenset[date], folder: Path, seed: int
) -> None:
    """Fit every source on some days of a validated log and write them, all or nothing.

    Args:
        section: What is declared.
        data: The spec's section.
        log: The validated log.
        days: Days that may be learnt from.
        folder: Where to write.
        seed: Of whatever is drawn.

    Raises:
        DataError: More candidates are declared than there are items, or a source has nothing to learn from.
    """
    _write_retrieval(section, data, log, days, folder, seed, lambda _, source, given, own: source.fit(given, own))


def refresh_retrieval(before: Path, data: Data, log: DayTable, folder: Path, seed: int) -> None:
    """Bring fitted sources up to a log's newest days and its catalogue, without a training; all or nothing.

    The log's declaration must have what the sources read (`released_section(before).check`).

    Args:
        before: Folder of the fitted sources, with a manifest.
        data: The spec's section.
        log: The validated log.
        folder: Where to write.
        seed: Of whatever is drawn.

    Raises:
        DataError: As for `fit_retrieval`.
        IntegrityError: A file of the fitted sources was changed.
    """
    verify_manifest(before)
    section = released_section(before)
    known = Catalogue.read(before).ids
    days = frozenset(part.day for part in log.days)

    def refresh(name: str, source: Any, given: FitData, own: Path) -> None:
        source.refresh(given, before / _SOURCES / name, known, own)

    _write_retrieval(section, data, log, days, folder, seed, refresh)


def released_section(folder: Path) -> Retrieval:
    """Return the section that sources in a folder were fitted with."""
    return Retrieval.model_validate(read_json(folder / RETRIEVAL)["section"])


def _write_retrieval(
    section: Retrieval, data: Data, log: DayTable, days: frozenset[date], folder: Path, seed: int,
    write: Callable[[str, Any, FitData, Path], None],
) -> None:  # fmt: skip
    catalogue = catalogue_of(data, log, days, section.catalogue)
    if section.candidates > catalogue.size:
        named = "the items' side tables name" if section.catalogue == "listed" else _ALL_NAME
        raise DataError(
            f"retrieval.candidates: {section.candidates}, but {named} {catalogue.size} items; declare at most"
            f" {catalogue.size}"
        )
    with atomic_folder(folder) as staging:
        catalogue.write(staging)
        for name, source in section.sources.items():
            own = staging / _SOURCES / name
            own.mkdir(parents=True)
            given = FitData(log, data, days, catalogue, section.index, section.max_candidates(name), seed)
            try:
                write(name, source, given, own)  # a section of the registry is a `SourceKind`
            except DataError as problem:
                raise DataError(f"retrieval.sources.{name}: {problem}") from None
        given = FitData(log, data, days, catalogue, section.index, section.candidates, seed)
        write_mappable(_recent_items(given, section.recent_items), staging / _RECENT)
        facts = {
            "section": section.model_dump(mode="json"),
            "items": catalogue.size,
            "first_day": min(days).isoformat(),
            "last_day": max(days).isoformat(),
        }
        write_json(staging / RETRIEVAL, facts)
        write_manifest(staging)


def catalogue_of(
    data: Data, log: DayTable, days: frozenset[date], which: Literal["seen", "listed"] = "seen"
) -> Catalogue:
    """Return the items that some days of a log or a side table name, or those of the side tables alone (`listed`)."""
    assert data.item
    seen = [] if which == "listed" else [log.scan(days).select(pl.col(data.item).unique()).collect()[data.item]]
    tables = item_tables(data)
    read = [
        pl.read_parquet(side_path(log.folder, table), columns=[table.key, *columns_of([table])])
        .unique(table.key, keep="first")
        for table in tables
    ]  # fmt: skip
    return Catalogue.of(data.item, seen, read)


@dataclass(frozen=True)
class Retriever:
    """The fitted sources of a release."""

    section: Retrieval
    catalogue: Catalogue
    sources: Mapping[str, Source]
    recent: pl.DataFrame
    """Users and their latest positive items when the sources were fitted, newest first."""
    facts: Mapping[str, Any]
    """Of `retrieval.json`."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return the sources in a folder after checking every file against its manifest.

        Raises:
            IntegrityError: A file is missing or was changed.
        """
        verify_manifest(folder)
        facts, section = read_json(folder / RETRIEVAL), released_section(folder)
        sources = {
            name: source.load(folder / _SOURCES / name)  # type: ignore[attr-defined]
            for name, source in section.sources.items()
        }
        return cls(section, Catalogue.read(folder), sources, pl.read_ipc(folder / _RECENT, memory_map=True), facts)

    def lists(self, queries: Queries) -> list[tuple[str, Ranked]]:
        """Return the list of every source, each at most as long as is declared."""
        return [
            (name, source.retrieve(queries, self.section.max_candidates(name))) for name, source in self.sources.items()
        ]

    def candidates(self, queries: Queries) -> Candidates:
        """Return the candidates of all sources together."""
        return self.begin(queries)()

    def begin(self, queries: Queries) -> Callable[[], Candidates]:
        """Begin to retrieve, as far as other threads do it; return what gives the candidates of all sources."""
        begun = {
            name: source.begin(queries, self.section.max_candidates(name)) for name, source in self.sources.items()
        }
        # Those with helpers last: these work meanwhile.
        order = sorted(begun, key=lambda name: self.sources[name].has_helpers)

        def finish() -> Candidates:
            lists = {name: begun[name]() for name in order}
            return united([(name, lists[name]) for name in begun], self.section.candidates)

        return finish

    def candidates_and_lists(self, queries: Queries) -> dict[str, Rows]:
        """Return the items of every source by its name, and those of all together as `all`."""
        lists = self.lists(queries)
        together = united(lists, self.section.candidates)
        return {**{name: ranked.items for name, ranked in lists}, ALL_SOURCES: together.items}

    def recent_of(self, users: pl.Series) -> Rows:
        """Return users' latest positive items when the sources were fitted, shape (users, recent_items)."""
        return lists_at(*self._recent_lists, places_of(users, self.recent[_USER]), self.section.recent_items)

    @cached_property
    def _recent_lists(self) -> tuple[NDArray[np.int64], Rows]:
        """Where every user's recent items begin and end, and these, one user's after the other's."""
        lists = self.recent[ROW].cast(pl.List(pl.Int32)).to_arrow()
        return lists.offsets.to_numpy(), lists.values.to_numpy()


def lists_at(bounds: NDArray[np.int64], values: Rows, places: Rows, width: int) -> Rows:
    """Return some of many lists as a matrix of a width; -1 where a list is shorter.

    Args:
        bounds: Where each list begins, and where the last one ends, shape (lists + 1,).
        values: One list after the other.
        places: Numbers of the wanted lists; -1: none.
        width: Of the matrix.

    >>> lists_at(np.array([0, 3, 3]), np.array([5, 2, 9], np.int32), np.array([0, 1, -1]), 2).tolist()
    [[5, 2], [-1, -1], [-1, -1]]
    """
    # -1 is the last bound: no list at all.
    first, last = bounds[places], bounds[np.where(places < 0, -1, places + 1)]
    at = first[:, None] + np.arange(width)
    there = at < last[:, None]
    found = np.full(at.shape, -1, np.int32)
    found[there] = values[at[there]]
    return found


def _recent_items(given: FitData, most: int) -> pl.DataFrame:
    """Return every user's latest positive items, newest first."""
    user = given.data.user
    assert user
    latest: pl.DataFrame | None = None
    for rows in given.positives(given.days):
        new = rows.sort(Columns.TIME, maintain_order=True).select(user, ROW)
        both = new if latest is None else pl.concat([latest, new])
        latest = both.group_by(user, maintain_order=True).tail(most)
    if latest is None:
        raise DataError("retrieval: there is no positive row to learn from")
    return latest.group_by(user).agg(pl.col(ROW).reverse()).rename({user: _USER}).sort(_USER)
