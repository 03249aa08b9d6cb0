"""Parts of the prediction log that are in no batch yet, and whose outcomes are due."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.data.collected import CollectedBatch, LogSpan
from shortlist.serving.log.log_keys import log_key
from shortlist.serving.log.log_mirror import mirror
from shortlist.serving.log.log_reader import LogPartError, parts, read_parts
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig

PART: Final = ":part"
LINE: Final = ":line"
_PART_NAME: Final = re.compile(r"part-(\d+)\.parquet")
_SHIPPED_WITHIN: Final = timedelta(days=30)
"""Longest time until a part is shipped to the object store; later parts are not fetched."""


@dataclass
class MatureParts:
    """Whole parts of the prediction log whose outcomes are due."""

    frames: list[pl.DataFrame] = field(default_factory=list)
    """Rows of the parts, with `PART`, the part's path in the log, and `LINE`, the row's number in it from 1."""
    spans: list[LogSpan] = field(default_factory=list)
    """Ranges of part numbers, by writer."""
    waiting: int = 0
    """Number of parts whose outcomes are not all due."""
    problems: list[str] = field(default_factory=list)
    """Messages about unreadable parts; these and later parts of their writer wait."""
    full: bool = False
    """Whether further parts are due, beyond the number of rows of a batch."""


def live_folders(stores: str, spec: str, batches: Sequence[CollectedBatch]) -> ServingPaths:
    """Return the local folders of a spec's logs, after fetching new parts from the object store.

    Raises:
        ShortlistError: The object store is unavailable or refuses.
    """
    storage = StorageConfig.parse(stores)
    paths = ServingPaths.for_spec(storage.runs, spec)
    if not storage.has_remote_log:
        return paths
    objects, mirror_paths = open_object_store(storage), paths.mirror
    newest = max((batch.answered_to for batch in batches if batch.answered_to), default=None)
    since = None if newest is None else (newest - _SHIPPED_WITHIN).date()
    mirror(objects, log_key(spec, "predictions"), mirror_paths.predictions, since)
    mirror(objects, log_key(spec, "outcomes"), mirror_paths.outcomes, since)
    return mirror_paths


def mature_parts(
    folder: Path, data: Data, covered: Mapping[str, int], due: datetime, most_rows: int
) -> MatureParts:  # fmt: skip
    """Return the parts of a prediction log that are in no batch, and whose answers are all old enough.

    Parts of one writer are taken in the order in which they were written, without a gap.

    Args:
        folder: Folder of the prediction log.
        data: The log's declaration.
        covered: Number of the last collected part, by writer.
        due: Outcomes of answers before this moment are due.
        most_rows: Number of rows after which no further part is added.
    """
    mature, schema, rows = MatureParts(), prediction_schema(data), 0
    for writer, paths in groupby(parts(folder), key=lambda path: path.parent.relative_to(folder).as_posix()):
        new_parts = [(number, path) for path in paths if (number := _part_number(path)) > covered.get(writer, -1)]
        taken_numbers: list[int] = []
        for number, path in new_parts:
            if rows >= most_rows:
                mature.full = True
                break
            try:
                answers = read_parts([path], schema)
            except LogPartError as problem:
                mature.problems.append(str(problem))
                break
            newest = answers["time"].max()
            if isinstance(newest, datetime) and newest > due:
                break
            part_name = pl.lit(path.relative_to(folder).as_posix()).alias(PART)
            mature.frames.append(answers.with_row_index(LINE, 1).with_columns(part_name, pl.col(LINE).cast(pl.Int64)))
            rows += int(answers["scores"].list.len().sum())
            taken_numbers.append(number)
        if taken_numbers:
            mature.spans.append(LogSpan(writer=writer, first=taken_numbers[0], last=taken_numbers[-1]))
        mature.waiting += len(new_parts) - len(taken_numbers)
    return mature


def covered_parts(batches: Iterable[CollectedBatch]) -> dict[str, int]:
    """Return the number of the last part in some batches, by writer."""
    last: dict[str, int] = {}
    for batch in batches:
        for span in batch.spans:
            last[span.writer] = max(span.last, last.get(span.writer, -1))
    return last


def _part_number(path: Path) -> int:
    match = _PART_NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])
