"""Test rows are drawn from a scores file that is read piece by piece."""

from __future__ import annotations

import tracemalloc
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Columns, Files
from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.serving.validation.served_rows import draw_reference_rows

DAYS = np.datetime64(date(2026, 1, 6)), np.datetime64(date(2026, 1, 7))


def write_scores(folder: Path, rows: int, row_group_size: int = 50_000) -> None:
    """A score is the impression's number, over two million; half of the rows are of the test day."""
    numbers = np.arange(rows)
    pl.DataFrame({
        Columns.IMPRESSION: numbers,
        Columns.DAY: np.where(numbers < rows // 2, *DAYS),
        Columns.LABEL: (numbers % 3 == 0).astype(np.int8),
        "split": np.where(numbers < rows // 2, "validation", "test"),
        "score": (numbers / 2e6).astype(np.float32),
    }).write_parquet(folder / Files.SCORES, row_group_size=row_group_size)  # fmt: skip


def test_drawn_rows_are_different_test_rows_with_their_own_label_and_score(tmp_path: Path) -> None:
    write_scores(tmp_path, 400_000)
    reference = draw_reference_rows(tmp_path, 1_000, seed=3)
    impressions = reference.rows[Columns.IMPRESSION].to_numpy()
    assert reference.test_rows == 200_000 and len(impressions) == 1_000
    assert (np.diff(impressions) > 0).all() and impressions[0] >= 200_000
    assert (reference.rows["score"].to_numpy() == (impressions / 2e6).astype(np.float32)).all()
    assert (reference.rows["label_scored"].to_numpy() == (impressions % 3 == 0)).all()
    # Every quarter of the test rows gives about a quarter: five standard deviations are 68 rows.
    assert np.bincount((impressions - 200_000) // 50_000) == pytest.approx([250] * 4, abs=68)


def test_the_seed_alone_decides_the_sampled_rows(tmp_path: Path) -> None:
    draws = []
    for row_group_size, seed in ((50_000, 3), (7_000, 3), (7_000, 4)):
        write_scores(tmp_path, 60_000, row_group_size)
        draws.append(draw_reference_rows(tmp_path, 500, seed).rows)
    assert draws[0].equals(draws[1]) and not draws[1].equals(draws[2])


def test_all_rows_are_sampled_where_there_are_few_rows(tmp_path: Path) -> None:
    write_scores(tmp_path, 80)
    assert draw_reference_rows(tmp_path, 40, seed=1).rows[Columns.IMPRESSION].to_list() == list(range(40, 80))


def test_memory_of_a_draw_does_not_grow_with_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks, concat = [], pl.concat
    kept_rows: list[int] = []

    def record_kept_rows(frames: list[pl.DataFrame]) -> pl.DataFrame:
        kept_rows.extend(frame.height for frame in frames)
        return concat(frames)

    monkeypatch.setattr(pl, "concat", record_kept_rows)
    for rows in (600_000, 1_800_000):
        write_scores(tmp_path, rows)
        tracemalloc.start()
        draw_reference_rows(tmp_path, 1_000, seed=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] and max(kept_rows) == 1_000


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([0.1, float("nan")], r"1 of 2 scores are missing"),
        ([0.1, 1.5], r"between 0.1 and 1.5"),
        ([], r"scores\.parquet holds no test rows"),
    ],
)
def test_rows_that_cannot_be_measured_are_not_sampled(tmp_path: Path, scores: list[float], message: str) -> None:
    frame = pl.DataFrame({Columns.IMPRESSION: range(len(scores)), Columns.LABEL: [0] * len(scores)})
    columns = pl.Series("score", scores, pl.Float32), pl.lit("test").alias("split"), pl.lit(1).alias(Columns.DAY)
    frame.with_columns(*columns).write_parquet(tmp_path / Files.SCORES)
    with pytest.raises(UnmeasurableError, match=message):
        draw_reference_rows(tmp_path, 10, seed=1)
