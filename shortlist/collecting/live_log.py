"""Parts of the prediction log that no batch holds yet, and whose outcomes are due."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.data.collected import Batch, LogSpan
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
_NUMBER: Final = re.compile(r"part-(\d+)\.parquet")
_SHIPPED_WITHIN: Final = timedelta(days=30)
"""A part that is shipped to the object store later than this is not looked for."""


@dataclass
class MatureParts:
    """Some parts, each whole."""

    frames: list[pl.DataFrame] = field(default_factory=list)
    """Their rows, with `PART`, the part's path in the log, and `LINE`, the row's number in it from 1."""
    spans: list[LogSpan] = field(default_factory=list)
    waiting: int = 0
    """Parts whose outcomes are not all due."""
    problems: list[str] = field(default_factory=list)
    """Parts that cannot be read; they and later ones of their writer wait."""
    full: bool = False
    """Whether there are more."""


def live_folders(stores: str, spec: str, batches: Sequence[Batch]) -> ServingPaths:
    """Return where a spec's logs can be read, after fetching what is new of those in an object store.

    Raises:
        ShortlistError: The object store is unavailable or refuses.
    """
    storage = StorageConfig.parse(stores)
    paths = ServingPaths.of(storage.runs, spec)
    if not storage.has_remote_log:
        return paths
    objects, mirrored = open_object_store(storage), paths.mirror
    newest = max((batch.answered_to for batch in batches if batch.answered_to), default=None)
    since = None if newest is None else (newest - _SHIPPED_WITHIN).date()
    mirror(objects, log_key(spec, "predictions"), mirrored.predictions, since)
    mirror(objects, log_key(spec, "outcomes"), mirrored.outcomes, since)
    return mirrored


def mature_parts(
    folder: Path, data: Data, covered: Mapping[str, int], due: datetime, most_rows: int
) -> MatureParts:  # fmt: skip
    """Return parts of a prediction log that no batch covers, and all of whose answers are old enough.

    Parts of one writer are taken in the order in which they were written, without a gap at the end.

    Args:
        folder: The prediction log.
        data: The log's declaration.
        covered: Number of the last part of each writer that a batch holds.
        due: Answers before it have had their time.
        most_rows: No further part is begun after so many rows.
    """
    found, schema, rows = MatureParts(), prediction_schema(data), 0
    for writer, paths in groupby(parts(folder), key=lambda path: path.parent.relative_to(folder).as_posix()):
        new = [(number, path) for path in paths if (number := _number(path)) > covered.get(writer, -1)]
        taken: list[int] = []
        for number, path in new:
            if rows >= most_rows:
                found.full = True
                break
            try:
                answers = read_parts([path], schema)
            except LogPartError as problem:
                found.problems.append(str(problem))
                break
            newest = answers["time"].max()
            if isinstance(newest, datetime) and newest > due:
                break
            name = pl.lit(path.relative_to(folder).as_posix()).alias(PART)
            found.frames.append(answers.with_row_index(LINE, 1).with_columns(name, pl.col(LINE).cast(pl.Int64)))
            rows += int(answers["scores"].list.len().sum())
            taken.append(number)
        if taken:
            found.spans.append(LogSpan(writer=writer, first=taken[0], last=taken[-1]))
        found.waiting += len(new) - len(taken)
    return found


def covered_parts(batches: Iterable[Batch]) -> dict[str, int]:
    """Return the number of the last part of each writer that some batches hold."""
    last: dict[str, int] = {}
    for batch in batches:
        for span in batch.spans:
            last[span.writer] = max(span.last, last.get(span.writer, -1))
    return last


def _number(path: Path) -> int:
    match = _NUMBER.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])
