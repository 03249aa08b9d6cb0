import itertools
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from shortlist.features.values.ranges import key_ranges, scan_all, write_frames


@pytest.mark.parametrize(
    "values", [list(range(1_000)), [7] * 600 + list(range(400)), [f"k{n % 250:03}" for n in range(1_000)]]
)
def test_ranges_cover_every_row_once_in_bounded_pieces(tmp_path: Path, values: list[int | str]) -> None:
    frame = pl.DataFrame({"key": values})
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    for number, file in enumerate(files):
        write_frames(file, [frame[number::3].sort("key")])
    pieces = [scan_all(files).filter(inside).collect() for inside in key_ranges(files, "key", 100)]
    assert len(pieces) >= 4
    assert sorted(pl.concat(pieces)["key"].to_list()) == sorted(values)
    largest_value = max(values.count(value) for value in set(values))  # one value's rows stay together
    assert max(piece.height for piece in pieces) <= 150 + largest_value
    assert all(
        set(first_part["key"]).isdisjoint(second_part["key"]) for first_part, second_part in itertools.pairwise(pieces)
    )


def test_few_rows_are_one_range(tmp_path: Path) -> None:
    write_frames(tmp_path / "few.parquet", [pl.DataFrame({"key": [1, 2]})])
    assert len(key_ranges([tmp_path / "few.parquet"], "key", 2)) == 1


def test_frames_are_written_in_order(tmp_path: Path) -> None:
    frames = [pl.DataFrame({"text": ["b"], "list": [[1]]}), pl.DataFrame({"text": ["a"], "list": [None]})]
    frames[1] = frames[1].cast(frames[0].schema)
    assert write_frames(tmp_path / "new" / "file.parquet", frames) == 2
    assert pl.read_parquet(tmp_path / "new" / "file.parquet").equals(pl.concat(frames))


def test_every_reader_returns_the_written_integers_and_texts(tmp_path: Path) -> None:
    largest = 2**63 - 1
    integers = {"key": [-largest - 1, -1, 0, largest], "some": [None, largest, None, -largest - 1]}
    other_columns = {"id": [0, 2**32 - 1, 7, 7], "text": ["b", None, "b", "a"], "tags": [["x"], [], None, ["x", "y"]]}
    frame = pl.DataFrame({**integers, **other_columns}, schema_overrides={"id": pl.UInt32})
    path = tmp_path / "file.parquet"
    write_frames(path, [frame])
    assert pl.read_parquet(path).equals(frame)
    assert pl.DataFrame(pl.from_arrow(pq.read_table(path))).equals(frame)
    assert duckdb.read_parquet(str(path)).pl().equals(frame)


def test_sorted_keys_take_less_than_their_own_size(tmp_path: Path) -> None:
    """Dictionary encoding takes more than eight bytes per key."""
    keys = pl.DataFrame({"key": np.unique(np.random.default_rng(1).integers(0, 2**32, 100_000))})
    write_frames(tmp_path / "keys.parquet", [keys])
    assert (tmp_path / "keys.parquet").stat().st_size < 4 * keys.height
