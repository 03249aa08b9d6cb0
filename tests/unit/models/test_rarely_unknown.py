"""The features whose unknown values training hardly saw are found in a stream, and are those of all rows together."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from models.unknown_values import find_rarely_unknown_features
from shortlist.contracts import Columns, Files
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.storage.tables import DayTable, DayTableWriter
from tests.unit.models.conftest import COLUMNS, MakeTable

ROWS_PER_DAY = 1_500
UNKNOWN_ROWS = {"never": 0, "below": 29, "at": 30, "above": 31}
"""Of 3 000 training rows, of which 30 are 1 %."""


def with_unknown_values(table: DayTable, folder: Path) -> DayTable:
    """Return the table with a number and an id per name, unknown in so many rows of the last training day alone."""
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=400)
    row = pl.col(Columns.IMPRESSION) % ROWS_PER_DAY
    for day, frame in table.frames():
        in_day = pl.lit(str(day) == table.notes["split"]["train"][-1])
        is_unknown = {name: in_day & (row % 40 == 7) & (row // 40 < count) for name, count in UNKNOWN_ROWS.items()}
        numbers = [pl.when(~unknown).then(1.5).cast(pl.Float32).alias(name) for name, unknown in is_unknown.items()]
        ids = [pl.when(~unknown).then(3).otherwise(0).cast(pl.UInt32).alias(f"{name}_id")
               for name, unknown in is_unknown.items()]  # fmt: skip
        writer.append(frame.with_columns(*numbers, *ids))
    declared = [{"name": name, "kind": "dense", "size": None, "width": None} for name in UNKNOWN_ROWS]
    declared += [{"name": f"{name}_id", "kind": "id", "size": 5, "width": None} for name in UNKNOWN_ROWS]
    return writer.close({**table.notes, "columns": [*COLUMNS, *declared]})


def test_shares_in_a_stream_are_those_of_all_training_rows_together(make_table: MakeTable, tmp_path: Path) -> None:
    table = with_unknown_values(make_table(rows_per_day=ROWS_PER_DAY, train_days=2), tmp_path / "unknown")
    learning = LearningTable(table, features_matching(table, ("*",)))
    rows = pl.concat([frame for day, frame in table.frames() if str(day) in table.notes["split"]["train"]])
    unknown = {
        feature.name: (rows[feature.name].is_null() if feature.kind == "dense" else rows[feature.name] == 0).mean()
        for feature in learning.features
        if feature.kind in ("dense", "id")
    }
    rarely_unknown = [feature.name for feature in find_rarely_unknown_features(learning)]
    assert rarely_unknown == [name for name, share in unknown.items() if share < 0.01]
    assert rarely_unknown == ["never", "below", "never_id", "below_id"]
    assert len(list(learning.paths("train"))) > 1
