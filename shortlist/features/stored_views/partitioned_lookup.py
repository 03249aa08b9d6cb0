"""Look-up of large views by partitions of their keys: the as-of join of a log's rows with the changes of a view.

The rows of the log send their keys, and a view its rows, to the partition of the key; the partition answers, and the
answers go back to where the keys came from. A view that fits into every worker's memory is read there instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.tiles import start_of
from shortlist.features.declared.plan import PlannedView
from shortlist.features.stored_views.view_index import StoredView
from shortlist.system.partitions import Block, Blocks, PartitionEngine, transpose

PIECE: Final = ":piece"
"""Number of the part of a group from which a key comes."""
_ASKED: Final = ":asked"
"""Number of a key in its part."""
_MOMENT: Final = ":as_of"
_GROUP: Final = ":group"
_BUCKET: Final = ":bucket"
_VIEW_ROWS_PER_TASK: Final = 2_000_000


class PreparedAnswers:
    """The answers of a view for one part of the log, which a partition gave before."""

    def __init__(self, answers: pl.DataFrame, features: Sequence[str]) -> None:
        self._answers = answers
        self._features = features

    def answer(self, keys: pl.DataFrame, day: date) -> pl.DataFrame:
        """Return the features for each row of keys, in order; null where unknown. See `ViewFile.answer`."""
        numbers = pl.select(pl.int_range(keys.height, dtype=pl.UInt32).alias(_ASKED))
        return numbers.join(self._answers, on=_ASKED, how="left", maintain_order="left").select(self._features)


def split_keys(
    keys: Sequence[pl.DataFrame], view: StoredView, moments: Sequence[date], timezone: str, partitions: int
) -> list[pl.DataFrame]:
    """Return the keys of the parts of a group by partition; null keys nowhere.

    Args:
        keys: Per part its keys, as `lookup_keys` returns them; with their `event_time` they are answered as of that.
        view: The view to look up.
        moments: Per part the day, at whose start keys without a time are answered.
        timezone: Timezone of the days.
        partitions: Number of partitions.
    """
    frames = []
    for number, (part, day) in enumerate(zip(keys, moments, strict=True)):
        start = pl.lit(start_of(day, timezone), dtype=pl.Datetime("us", "UTC"))
        moment = pl.col(Columns.TIME) if Columns.TIME in part.columns else start
        key_columns = (pl.col(key.name).cast(key.polars) for key in view.keys)
        frames.append(
            part.with_row_index(_ASKED).select(
                *key_columns, moment.alias(_MOMENT), pl.lit(number, dtype=pl.UInt32).alias(PIECE), _ASKED
            )
        )
    return _split(pl.concat(frames).drop_nulls(view.key_names), view.key_names, partitions)


def scatter_view(path: Path, view: StoredView, first: int, rows: int, partitions: int) -> list[pl.DataFrame]:
    """Return some rows of a view's file by partition of their keys."""
    columns = (*view.key_names, Columns.VALID_FROM, *view.feature_names)
    view_rows = pl.scan_parquet(path).select(columns).slice(first, rows).collect()
    return _split(view_rows, view.key_names, partitions)


def scatter_views(partitions: PartitionEngine, path: Path, view: StoredView) -> list[list[Block]]:
    """Return the rows of a view as blocks, per partition in time order."""
    tasks = [
        (path, view, first, _VIEW_ROWS_PER_TASK, partitions.partitions)
        for first in range(0, max(1, view.rows), _VIEW_ROWS_PER_TASK)
    ]
    return transpose(partitions.run(scatter_view, tasks, outputs=partitions.partitions))


def answer_keys(view: StoredView, view_blocks: int, groups: int, blocks: Blocks) -> list[pl.DataFrame]:
    """Return the answers of a partition, per group of the log: part, number of the key, features.

    Args:
        view: The view.
        view_blocks: Number of blocks with rows of the view, which come first and are in time order.
        groups: Number of groups, each with one block of keys.
        blocks: The blocks.
    """
    values: pl.DataFrame = pl.concat(list(islice(blocks, view_blocks)))
    frames = (keys.with_columns(pl.lit(number, dtype=pl.UInt32).alias(_GROUP)) for number, keys in enumerate(blocks))
    keys: pl.DataFrame = pl.concat(frames).sort(_MOMENT)
    answered = keys.join_asof(
        values, left_on=_MOMENT, right_on=Columns.VALID_FROM, by=list(view.key_names), check_sortedness=False
    ).select(_GROUP, PIECE, _ASKED, *view.feature_names)
    by_group = answered.partition_by(_GROUP, as_dict=True, include_key=False)
    empty = answered.drop(_GROUP).clear()
    return [by_group.get((number,), empty) for number in range(groups)]


def answers_by_part(blocks: Sequence[pl.DataFrame], parts: int, view: PlannedView) -> list[PreparedAnswers]:
    """Return the answers of all partitions for a group, part by part."""
    answers = pl.concat(blocks)
    by_part = answers.partition_by(PIECE, as_dict=True, include_key=False)
    empty = answers.drop(PIECE).clear()
    return [PreparedAnswers(by_part.get((number,), empty), view.features) for number in range(parts)]


def _split(rows: pl.DataFrame, keys: Sequence[str], partitions: int) -> list[pl.DataFrame]:
    """Return rows by the partition of their keys, in order. The same key is in the same partition everywhere."""
    bucket = pl.struct(keys).hash(1, 2, 3, 4) % partitions
    by_bucket = rows.with_columns(bucket.alias(_BUCKET)).partition_by(_BUCKET, as_dict=True, include_key=False)
    return [by_bucket.get((number,), rows.clear()) for number in range(partitions)]
