"""The row sample of a streamed log."""

from __future__ import annotations

import polars as pl

from shortlist.contracts import Columns
from shortlist.data.rules.profile import RowSample


def impressions(first: int, rows: int) -> pl.DataFrame:
    number = pl.int_range(first, first + rows, eager=True)
    return pl.DataFrame({Columns.IMPRESSION: number, "x": number})


def test_a_sample_holds_every_row_until_it_is_full() -> None:
    sample = RowSample(["x"], size=10)
    for first in (0, 4):
        sample.add(impressions(first, 4))
    assert sorted(sample.rows()["x"]) == list(range(8))


def test_a_sample_does_not_depend_on_the_batches() -> None:
    whole, cut = RowSample(["x"], size=50), RowSample(["x"], size=50)
    whole.add(impressions(0, 1_000))
    for first in range(0, 1_000, 100):
        cut.add(impressions(first, 100))
    assert cut.rows().height == 50
    assert cut.rows().equals(whole.rows())


def test_a_sample_is_uniform_over_the_stream() -> None:
    sample = RowSample(["x"], size=1_000)
    for first in range(0, 10_000, 500):
        sample.add(impressions(first, 500))
    # Of 1 000 rows out of 10 000, 500 come from either half; the standard deviation is below 16.
    assert abs(sample.rows().filter(pl.col("x") < 5_000).height - 500) < 5 * 16
