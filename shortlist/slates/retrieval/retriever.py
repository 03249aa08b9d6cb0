"""All sources of a release: fitted into one folder with a manifest, loaded from it, and queried together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, Self

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.evaluation.gates.retrieval import ALL_SOURCES
from shortlist.slates.retrieval.catalogue import Catalogue, Rows
from shortlist.slates.retrieval.source import ROW, FitInputs, Queries, RankedItems, Source
from shortlist.slates.retrieval.union import Candidates, fuse_candidates
from shortlist.slates.retrieval.user_item_lists import USER, UserItemLists, write_user_item_lists
from shortlist.spec.data import Data
from shortlist.spec.retrieval import Retrieval, columns_of, item_tables
from shortlist.storage.artefacts import atomic_folder, read_json, verify_manifest, write_json, write_manifest
from shortlist.storage.side_tables import side_path
from shortlist.storage.tables import DayTable

RETRIEVAL: Final = "retrieval.json"
"""File with the section, the days that were learnt from, and the number of items."""
_SOURCES: Final = "sources"
_RECENT: Final = "recent.arrow"
_ALL_NAME: Final = "the log and the items' side tables name"


def fit_retrieval(
    section: Retrieval, data: Data, log: DayTable, days: frozenset[date], folder: Path, seed: int
) -> None:
    """Fit every source on some days of a validated log and write them, all or nothing.

    Args:
        section: The declared retrieval.
        data: The spec's section.
        log: The validated log.
        days: Days that may be learnt from.
        folder: Folder to write.
        seed: Seed of all random choices.

    Raises:
        DataError: More candidates are declared than there are items, or a source has nothing to learn from.
    """
    _write_retrieval(
        section,
        data,
        log,
        days,
        folder,
        seed,
        lambda _, source, inputs, source_folder: source.fit(inputs, source_folder),
    )


def refresh_retrieval(fitted_folder: Path, data: Data, log: DayTable, folder: Path, seed: int) -> None:
    """Update fitted sources to a log's newest days and its catalogue, without training; all or nothing.

    The log's declaration must have what the sources read (`read_released_section(fitted_folder).check`).

    Args:
        fitted_folder: Folder of the fitted sources, with a manifest.
        data: The spec's section.
        log: The validated log.
        folder: Folder to write.
        seed: Seed of all random choices.

    Raises:
        DataError: As for `fit_retrieval`.
        IntegrityError: A file of the fitted sources was changed.
    """
    verify_manifest(fitted_folder)
    section = read_released_section(fitted_folder)
    fitted_ids = Catalogue.read(fitted_folder).ids
    days = frozenset(part.day for part in log.days)

    def refresh(name: str, source: Any, inputs: FitInputs, source_folder: Path) -> None:
        source.refresh(inputs, fitted_folder / _SOURCES / name, fitted_ids, source_folder)

    _write_retrieval(section, data, log, days, folder, seed, refresh)


def read_released_section(folder: Path) -> Retrieval:
    """Return the section with which the sources in a folder were fitted."""
    return Retrieval.model_validate(read_json(folder / RETRIEVAL)["section"])


def _write_retrieval(
    section: Retrieval, data: Data, log: DayTable, days: frozenset[date], folder: Path, seed: int,
    write: Callable[[str, Any, FitInputs, Path], None],
) -> None:  # fmt: skip
    catalogue = build_catalogue(data, log, days, section.catalogue, section.item_columns)
    if section.candidates > catalogue.size:
        catalogue_text = "the items' side tables name" if section.catalogue == "listed" else _ALL_NAME
        raise DataError(
            f"retrieval.candidates: {section.candidates}, but {catalogue_text} {catalogue.size} items; declare at most"
            f" {catalogue.size}"
        )
    with atomic_folder(folder) as staging:
        catalogue.write(staging)
        for name, source in section.sources.items():
            source_folder = staging / _SOURCES / name
            source_folder.mkdir(parents=True)
            inputs = FitInputs(log, data, days, catalogue, section.index, section.max_candidates(name), seed)
            try:
                write(name, source, inputs, source_folder)  # a section of the registry is a `SourceKind`
            except DataError as problem:
                raise DataError(f"retrieval.sources.{name}: {problem}") from None
        inputs = FitInputs(log, data, days, catalogue, section.index, section.candidates, seed)
        write_user_item_lists(_recent_items(inputs, section.recent_items), staging / _RECENT)
        facts = {
            "section": section.model_dump(mode="json"),
            "items": catalogue.size,
            "first_day": min(days).isoformat(),
            "last_day": max(days).isoformat(),
        }
        write_json(staging / RETRIEVAL, facts)
        write_manifest(staging)


def build_catalogue(
    data: Data,
    log: DayTable,
    days: frozenset[date],
    mode: Literal["seen", "listed"] = "seen",
    item_columns: Sequence[str] = (),
) -> Catalogue:
    """Return the items in some days of a log or in side tables, or those in the side tables alone (`listed`).

    Args:
        data: The spec's section.
        log: The validated log.
        days: Days of the log to read.
        mode: Where items are taken from.
        item_columns: Columns of the log of which items have their newest value in these days.
    """
    assert data.item
    log_ids = [] if mode == "listed" else [log.scan(days).select(pl.col(data.item).unique()).collect()[data.item]]
    tables = item_tables(data)
    table_frames = [
        pl.read_parquet(side_path(log.folder, table), columns=[table.key, *columns_of([table])])
        .unique(table.key, keep="first")
        for table in tables
    ]  # fmt: skip
    catalogue = Catalogue.from_ids(data.item, log_ids, table_frames)
    if not item_columns:
        return catalogue
    newest_values = _newest_values(data.item, log, days, item_columns)
    items = catalogue.items.join(newest_values, on=data.item, how="left", maintain_order="left")
    return Catalogue(items, catalogue.key)


def _newest_values(item: str, log: DayTable, days: frozenset[date], names: Sequence[str]) -> pl.DataFrame:
    """Return the newest value that is not null of some columns of a log, one row per item."""
    values = [pl.col(name).drop_nulls().last() for name in names]
    by_day = [
        log.scan(frozenset((day,))).select(item, Columns.TIME, *names).drop_nulls(item).collect()
        .sort(Columns.TIME, maintain_order=True).group_by(item).agg(values)
        for day in sorted(days)
    ]  # fmt: skip
    return pl.concat(by_day).group_by(item, maintain_order=True).agg(values)


@dataclass(frozen=True)
class Retriever:
    """The fitted sources of a release."""

    section: Retrieval
    catalogue: Catalogue
    sources: Mapping[str, Source]
    recent: UserItemLists
    """Users' latest positive items as of the fit, newest first."""
    facts: Mapping[str, Any]
    """Content of `retrieval.json`."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return the sources in a folder after checking every file against its manifest.

        Raises:
            IntegrityError: A file is missing or was changed.
        """
        verify_manifest(folder)
        facts, section = read_json(folder / RETRIEVAL), read_released_section(folder)
        sources = {
            name: source.load(folder / _SOURCES / name)  # type: ignore[attr-defined]
            for name, source in section.sources.items()
        }
        return cls(section, Catalogue.read(folder), sources, UserItemLists.open(folder / _RECENT), facts)

    def lists(self, queries: Queries) -> list[tuple[str, RankedItems]]:
        """Return the list of every source, each with at most the declared number of items."""
        return [
            (name, source.retrieve(queries, self.section.max_candidates(name))) for name, source in self.sources.items()
        ]

    def candidates(self, queries: Queries) -> Candidates:
        """Return the candidates of all sources together."""
        return self.begin(queries)()

    def begin(self, queries: Queries) -> Callable[[], Candidates]:
        """Start the part of a retrieval that other threads do; return a function that returns the candidates."""
        finish_by_source = {
            name: source.begin(queries, self.section.max_candidates(name)) for name, source in self.sources.items()
        }
        # Sources with helper threads are finished last, so that their threads work meanwhile.
        order = sorted(finish_by_source, key=lambda name: self.sources[name].has_helpers)

        def finish() -> Candidates:
            lists = {name: finish_by_source[name]() for name in order}
            ordered_lists = [(name, lists[name]) for name in finish_by_source]
            return fuse_candidates(ordered_lists, self.section.candidates, self.section.reserved_candidates)

        return finish

    def candidates_and_lists(self, queries: Queries) -> dict[str, Rows]:
        """Return the items of every source by its name, and those of all together as `all`."""
        lists = self.lists(queries)
        fused = fuse_candidates(lists, self.section.candidates, self.section.reserved_candidates)
        return {**{name: ranked.items for name, ranked in lists}, ALL_SOURCES: fused.items}

    def find_recent_items(self, users: pl.Series) -> Rows:
        """Return users' latest positive items as of the fit, shape (users, recent_items)."""
        return self.recent.find(users, self.section.recent_items)


def _recent_items(inputs: FitInputs, max_items: int) -> pl.DataFrame:
    """Return every user's latest positive items, newest first."""
    user = inputs.data.user
    assert user
    latest: pl.DataFrame | None = None
    for rows in inputs.positives(inputs.days):
        new_rows = rows.sort(Columns.TIME, maintain_order=True).select(user, ROW)
        all_rows = new_rows if latest is None else pl.concat([latest, new_rows])
        latest = all_rows.group_by(user, maintain_order=True).tail(max_items)
    if latest is None:
        raise DataError("retrieval: there is no positive row to learn from")
    return latest.group_by(user).agg(pl.col(ROW).reverse()).rename({user: USER})
