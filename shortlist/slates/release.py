"""A release: the folder with everything that a server needs beside the model (sources, filters, ordering, lists)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.slates.candidate_columns import candidate_types
from shortlist.slates.filters.base import FilterRequest
from shortlist.slates.ordering.order import columns_read
from shortlist.slates.past_items import PastItems, write_past_items
from shortlist.slates.recommender import Recommender, ReleaseUsers
from shortlist.slates.retrieval.catalogue import Catalogue, write_mappable
from shortlist.slates.retrieval.retriever import RETRIEVAL, Retriever
from shortlist.slates.retrieval.source import read_user_tables
from shortlist.spec.data import Data
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval, columns_of, item_tables, user_tables
from shortlist.storage.artefacts import atomic_folder, read_json, verify_manifest, write_json, write_manifest

SLATES: Final = "slates.json"
"""File with the released sections `filters` and `ordering`, and the digest of the release that it refreshes, if any."""
_REFRESHES: Final = "refreshes"
SOURCES: Final = "sources"
"""Folder of the fitted sources, inside a release."""
_LISTS: Final = "lists"
_USERS: Final = "users.arrow"
_ITEM: Final = Columns.ITEM
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def write_release(
    sources: Path, data: Data, filters: Filters, ordering: Ordering, log: Path, files: Path | None, folder: Path,
    *, refreshes: str = "",
) -> int:  # fmt: skip
    """Write the release of a run, all or nothing; return the number of items that can be recommended.

    Args:
        sources: Folder of the fitted sources, with a manifest; its files are linked where the disk allows it.
        data: The spec's section.
        filters: The spec's section.
        ordering: The spec's section.
        log: Folder of the validated log.
        files: Folder of the user's files, for lists of items; None where there are none.
        folder: Folder to write.
        refreshes: Digest of the release that this one refreshes; empty for the release of a training.

    Raises:
        DataError: A pinned item can never be shown.
        ShortlistError: A list of items is missing or empty, or holds a line that is no item.
        IntegrityError: A file of the sources was changed.
    """
    verify_manifest(sources)
    item_type = candidate_types(data)[_ITEM]
    lists = {rule.name: rule.read_list(files, item_type) for rule in filters.rules if rule.file and files is not None}
    # A refresh does not check columns of items: an item that is out of stock today may be back tomorrow.
    columns = {_ITEM} if refreshes else {_ITEM, *columns_of(item_tables(data))}
    _check_pins(filters, ordering, lists, Catalogue.read(sources), columns)
    with atomic_folder(folder) as staging:
        shutil.copytree(sources, staging / SOURCES, copy_function=_link)
        retriever = Retriever.open(staging / SOURCES)
        (staging / _LISTS).mkdir()
        for name, items in lists.items():
            items.to_frame(_ITEM).write_parquet(staging / _LISTS / f"{name}.parquet")
        write_mappable(_user_columns(data, retriever.section, filters, ordering, log), staging / _USERS)
        if (window := filters.remembers) is not None:
            write_past_items(data, log, retriever.catalogue, window, staging)
        sections = {"filters": filters.model_dump(mode="json"), "ordering": ordering.model_dump(mode="json")}
        write_json(staging / SLATES, sections | ({_REFRESHES: refreshes} if refreshes else {}))
        write_manifest(staging)
    return retriever.catalogue.size


def released_retrieval(folder: Path) -> Retrieval:
    """Return the section with which the sources of a release were fitted.

    Raises:
        IntegrityError: The file of the section is missing.
    """
    return Retrieval.model_validate(read_json(folder / SOURCES / RETRIEVAL)["section"])


def open_release(folder: Path, data: Data) -> Recommender:
    """Return the stages of a release but for the model; large files are mapped into memory.

    Args:
        folder: Folder that `write_release` wrote.
        data: The spec's section that the model was trained with.

    Raises:
        IntegrityError: A file is missing or was changed.
    """
    digests = verify_manifest(folder)
    filters, ordering = read_sections(folder)
    lists = {path.stem: pl.read_parquet(path)[_ITEM] for path in sorted((folder / _LISTS).glob("*.parquet"))}
    users = pl.read_ipc(folder / _USERS, memory_map=True)
    return Recommender(
        Retriever.open(folder / SOURCES),
        filters,
        ordering,
        lists,
        candidate_types(data),
        ReleaseUsers(users, PastItems.open(folder)),
        digests,
        data.labels,
    )


def read_sections(folder: Path) -> tuple[Filters, Ordering]:
    """Return the sections `filters` and `ordering` of a release."""
    sections: Mapping[str, Any] = read_json(folder / SLATES)
    return Filters.model_validate(sections["filters"]), Ordering.model_validate(sections["ordering"])


def released_columns(folder: Path) -> frozenset[str]:
    """Return the columns that a release reads: its stages, `retrieval.context` and `retrieval.item_columns`."""
    section = released_retrieval(folder)
    return frozenset((*_stage_columns(section, *read_sections(folder)), *section.context, *section.item_columns))


def refreshed_digest(folder: Path) -> str:
    """Return the digest of the release that a release refreshes; empty for the release of a training."""
    return str(read_json(folder / SLATES).get(_REFRESHES, ""))


def _check_pins(
    filters: Filters, ordering: Ordering, lists: Mapping[str, pl.Series], catalogue: Catalogue, columns: set[str]
) -> None:
    """Raise for a pinned item that a filter removes from every request: by its list, or by some columns of items."""
    items = catalogue.items.with_columns(catalogue.ids.alias(_ITEM))
    for item in (item for rule in ordering.rules for item in rule.fixed.values()):
        item_frame = pl.DataFrame({_ITEM: pl.Series([item], dtype=catalogue.ids.dtype)})
        (row,) = catalogue.find_rows(item_frame[_ITEM])
        item_columns = item_frame if row < 0 else items[int(row)]
        for rule in filters.rules:
            if rule.asks_request or not {*rule.reads} <= {*item_columns.columns} & columns:
                continue
            if not rule.keeps(item_columns, FilterRequest(_EPOCH, None, lists))[0]:
                file_text = f" ({rule.file})" if rule.file else ""
                raise DataError(
                    f"ordering: item {item!r} is pinned, and filter '{rule.name}'{file_text} always removes it; leave"
                    " one of the two out"
                )


def _user_columns(data: Data, section: Retrieval, filters: Filters, ordering: Ordering, log: Path) -> pl.DataFrame:
    """Return the columns of the users' side tables that a stage reads, one row per user, sorted by the user."""
    assert data.user
    read = _stage_columns(section, filters, ordering)
    names = [name for name in columns_of(user_tables(data)) if name in read]
    if not names:
        return pl.DataFrame(schema={data.user: data.by_name[data.user].polars_type})
    return read_user_tables(log, data).select(data.user, *names).drop_nulls(data.user).sort(data.user).rechunk()


def _stage_columns(section: Retrieval, filters: Filters, ordering: Ordering) -> set[str]:
    """Return the columns that sources, filters and ordering read."""
    read = {name for rule in filters.rules for name in rule.reads} | {*columns_read(ordering)}
    # A section of the registry is a `SourceKind`.
    return read | {name for source in section.sources.values() for name in getattr(source, "reads_context", ())}


def _link(source: str, to: str) -> None:
    """Hard-link a file; copy it where the file system differs."""
    try:
        os.link(source, to)
    except OSError:
        shutil.copyfile(source, to)
