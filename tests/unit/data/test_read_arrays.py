"""Parquet logs and NumPy side tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.data.reading.layout import FileLayout
from shortlist.data.reading.read_arrays import npz_fields, read_npz
from shortlist.data.reading.sources import InputFile
from shortlist.spec.data import Column

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
Declare = Callable[..., Any]
Read = Callable[..., Any]


def clicks(rows: int) -> pl.DataFrame:
    count = pl.int_range(rows, eager=True)
    return pl.DataFrame(
        {"time": pl.repeat(NOON, rows, eager=True), "user_id": count, "price": count / 2, "click": count % 2}
    )


def test_a_parquet_log_is_read_in_bounded_parts(tmp_path: Path, declare: Declare, read: Read) -> None:
    clicks(2_500).write_parquet(tmp_path / "log.parquet")
    rows, _, table = read(declare(), tmp_path / "log.parquet")
    assert [pl.read_parquet(path).height for path in table.paths()] == [1_000, 1_000, 500]
    assert rows["user_id"].to_list() == list(range(2_500))
    assert rows["source_line"].to_list() == list(range(1, 2_501))
    assert rows["event_time"].unique().to_list() == [NOON]


def test_text_in_parquet_is_converted_or_rejected(tmp_path: Path, declare: Declare, read: Read) -> None:
    frame = clicks(30).with_columns(user_id=pl.when(pl.col("user_id") == 4).then(pl.lit("x")).otherwise(pl.lit("7")))
    frame.write_parquet(tmp_path / "log.parquet")
    rows, rejected, _ = read(declare(), tmp_path / "log.parquet")
    assert rows["user_id"].to_list() == [7] * 29
    assert rejected.select("source_line", "detail").rows() == [(5, "user_id: got 'x', wanted an integer")]


def test_a_column_of_another_type_stops_the_run(tmp_path: Path, declare: Declare, read: Read) -> None:
    clicks(30).with_columns(price=pl.lit("cheap")).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(DataError, match="column 'price' is not of type number: 30 of 30 values"):
        read(declare(), tmp_path / "log.parquet")


def test_a_truncated_parquet_file_stops_the_run(tmp_path: Path, declare: Declare, read: Read) -> None:
    clicks(30).write_parquet(tmp_path / "log.parquet")
    data = (tmp_path / "log.parquet").read_bytes()
    (tmp_path / "log.parquet").write_bytes(data[:-20])
    with pytest.raises(DataError, match=r"log.parquet: truncated or not a Parquet file"):
        read(declare(), tmp_path / "log.parquet")


def test_row_order_needs_no_pass_over_parquet(tmp_path: Path, declare: Declare, read: Read) -> None:
    clicks(20).drop("time").write_parquet(tmp_path / "log.parquet")
    rows, _, _ = read(declare(clock={"kind": "row_order", "days": 4}), tmp_path / "log.parquet")
    assert rows["day"].value_counts()["count"].to_list() == [5, 5, 5, 5]


VECTORS = (Column(name="item", type="integer"), Column(name="place", type="vector"))


def archive(tmp_path: Path, **arrays: Any) -> InputFile:
    np.savez(tmp_path / "items.npz", **arrays)
    return InputFile(tmp_path / "items.npz", "items.npz", "npz")


def test_arrays_of_an_archive_are_columns(tmp_path: Path) -> None:
    file = archive(tmp_path, item=np.arange(5), place=np.arange(10.0).reshape(5, 2))
    layout = FileLayout("side table 'items'", VECTORS, None, header=True, null_values=(), undeclared="refuse")
    blocks = list(read_npz(file, layout, 2))
    assert [block.columns.height for block in blocks] == [2, 2, 1]
    assert blocks[1].columns.rows() == [(2, [4.0, 5.0]), (3, [6.0, 7.0])]
    assert blocks[1].columns["place"].dtype == pl.Array(pl.Float32, 2)
    assert blocks[2].lines.to_list() == [5]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"item": np.arange(5), "place": np.zeros((4, 2))}, "with the same first one, got"),
        ({"item": np.float64(5)}, "arrays of one or two dimensions"),
        ({"item": np.array([{}, {}], dtype=object)}, "not a NumPy archive of plain arrays"),
    ],
)
def test_other_archives_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        npz_fields(archive(tmp_path, **arrays))


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    file = archive(tmp_path, item=np.arange(500))
    file.path.write_bytes(file.path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"items.npz: not a NumPy archive"):
        npz_fields(file)
