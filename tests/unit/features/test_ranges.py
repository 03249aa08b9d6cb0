import itertools
from pathlib import Path

import polars as pl
import pytest

from shortlist.features.ranges import key_ranges, scan_all, write_frames


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
    assert all(set(one["key"]).isdisjoint(other["key"]) for one, other in itertools.pairwise(pieces))


def test_few_rows_are_one_range(tmp_path: Path) -> None:
    write_frames(tmp_path / "few.parquet", [pl.DataFrame({"key": [1, 2]})])
    assert len(key_ranges([tmp_path / "few.parquet"], "key", 2)) == 1


def test_frames_are_written_one_after_the_other(tmp_path: Path) -> None:
    frames = [pl.DataFrame({"text": ["b"], "list": [[1]]}), pl.DataFrame({"text": ["a"], "list": [None]})]
    frames[1] = frames[1].cast(frames[0].schema)
    assert write_frames(tmp_path / "new" / "file.parquet", frames) == 2
    assert pl.read_parquet(tmp_path / "new" / "file.parquet").equals(pl.concat(frames))
