"""Vocabularies and point-in-time views by ranges of keys: the same files as from one process, byte for byte.

Statistics are sorted by key, so that a task reads a range of keys of all days without the rest. Views are sorted by
time: the rows of all ranges are shuffled by moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.changes import FIRST
from shortlist.features.counts.keyed import KeyedView
from shortlist.features.counts.vocabulary import VocabularyLimits, frequent_values, number_values
from shortlist.features.stored_views.views import ViewSize, ViewWriter
from shortlist.features.values.ranges import key_ranges, write_frames
from shortlist.system.partitions import Block, Blocks, PartitionEngine, map_partitions, transpose
from shortlist.system.query_engine import Engine

_MOST_BATCHES: Final = 512
"""Most batches of moments of a view; each of them is a block of every range of keys."""


def build_vocabularies(
    partitions: PartitionEngine,
    keys: Sequence[tuple[VocabularyLimits, str, Sequence[Path]]],
    rows: int,
    engine: Engine,
    *,
    compiled: bool,
) -> list[pl.DataFrame]:
    """Return the vocabularies of some columns, as `build_vocabulary` does.

    Args:
        partitions: The engine.
        keys: Per column its limits, its key in the statistics, and their files of the training days, in time order.
        rows: Approximate number of rows that a task holds at once.
        engine: Executor of the queries.
        compiled: Whether to load compiled loops for integers.
    """
    ranges = list(map_partitions(partitions, key_ranges, [(days, key, rows) for _, key, days in keys]))
    tasks = [
        (days, key, key_range, limits, engine, compiled)
        for (limits, key, days), ranges_of_key in zip(keys, ranges, strict=True)
        for key_range in ranges_of_key
    ]
    frequent = map_partitions(partitions, frequent_values_of, tasks)
    return [
        number_values([next(frequent) for _ in ranges_of_key], limits)
        for (limits, *_), ranges_of_key in zip(keys, ranges, strict=True)
    ]


def frequent_values_of(
    days: Sequence[Path], key: str, key_range: pl.Expr, limits: VocabularyLimits, engine: Engine, compiled: bool
) -> pl.DataFrame:
    """Return the values of a range of keys that may get an id; see `frequent_values`."""
    return frequent_values(days, key, key_range, limits, engine, compiled=compiled)


def write_views(
    partitions: PartitionEngine, writer: ViewWriter, views: Sequence[tuple[KeyedView, Path]]
) -> dict[str, ViewSize]:
    """Write views, as `ViewWriter.write` does; return their sizes by name.

    Args:
        partitions: The engine.
        writer: The writer, whose folder all workers can read.
        views: Views, each with the file to write.
    """
    ranges = list(map_partitions(partitions, view_ranges, [(writer, view) for view, _ in views]))
    tasks = [
        (writer, view, key_range)
        for (view, _), ranges_of_view in zip(views, ranges, strict=True)
        for key_range in ranges_of_view
    ]
    values = iter(partitions.run(view_values, tasks, outputs=3))
    sizes = {}
    for (view, path), ranges_of_view in zip(views, ranges, strict=True):
        rows, moments, keys = transpose([next(values) for _ in ranges_of_view])
        size = sum(partitions.fetch(keys))
        ordered = _in_time_order(partitions, rows, list(partitions.fetch(moments))) if len(rows) > 1 else rows
        (written,) = partitions.fetch(partitions.run(write_view, [(path,)], [ordered])[0])
        sizes[view.name] = ViewSize(written, size)
    return sizes


def view_ranges(writer: ViewWriter, view: KeyedView) -> list[pl.Expr]:
    """Return the ranges of keys of a view."""
    return writer.ranges(view)


def view_values(writer: ViewWriter, view: KeyedView, key_range: pl.Expr) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return the rows of a view for a range of keys, in time order; their rows per moment; and the number of keys."""
    values = writer.values(view, key_range)
    moments = values.group_by(Columns.VALID_FROM).agg(pl.len().alias(Columns.ROWS))
    return values.drop(FIRST), moments, int(values[FIRST].sum())


def split_moments(starts: Sequence[datetime], blocks: Blocks) -> list[pl.DataFrame]:
    """Return rows in time order cut at some moments."""
    (rows,) = blocks
    cuts = rows[Columns.VALID_FROM].search_sorted(pl.Series(starts, dtype=rows.schema[Columns.VALID_FROM]), side="left")
    bounds = [0, *cuts, rows.height]
    return [rows.slice(first, last - first) for first, last in pairwise(bounds)]


def merge_moments(blocks: Blocks) -> pl.DataFrame:
    """Return the rows of all ranges of keys in common time order; ranges in order where the moment is the same."""
    rows: pl.DataFrame = pl.concat(blocks)
    return rows if rows[Columns.VALID_FROM].n_unique() <= 1 else rows.sort(Columns.VALID_FROM, maintain_order=True)


def write_view(path: Path, blocks: Blocks) -> int:
    """Write the rows of a view, given in order; return their number."""
    return write_frames(path, blocks)


def _in_time_order(
    partitions: PartitionEngine, rows: Sequence[Block], moments: Sequence[pl.DataFrame]
) -> list[Block]:  # fmt: skip
    """Return blocks that together are the rows of all ranges in time order."""
    counts = pl.concat(moments).group_by(Columns.VALID_FROM).agg(pl.col(Columns.ROWS).sum()).sort(Columns.VALID_FROM)
    share = max(1, int(counts[Columns.ROWS].sum()) // _MOST_BATCHES)
    batch = (pl.col(Columns.ROWS).cum_sum() - pl.col(Columns.ROWS)) // share
    starts = counts.filter((batch != batch.shift(1)).fill_null(value=False))[Columns.VALID_FROM].to_list()
    split = partitions.run(split_moments, [(starts,)] * len(rows), [[block] for block in rows], len(starts) + 1)
    batches = transpose(split)
    return [block for (block,) in partitions.run(merge_moments, [()] * len(batches), batches)]
