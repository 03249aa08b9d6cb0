"""A day table holds every row once, in order, in files of bounded size."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.storage.tables import DayPart, DayTable, DayTableWriter, files_of_worker

MONDAY, TUESDAY = date(2026, 1, 5), date(2026, 1, 6)


def rows(day: date, first: int, count: int) -> pl.DataFrame:
    numbers = range(first, first + count)
    columns = {"day": [day] * count, "label": [number % 2 for number in numbers], "number": numbers}
    return pl.DataFrame(columns, schema={"day": pl.Date, "label": pl.Int8, "number": pl.Int64})


def write_table(folder: Path, *frames: pl.DataFrame, chunk_rows: int = 4) -> DayTable:
    folder.mkdir()
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows)
    for frame in frames:
        writer.append(frame)
    writer.close({"said": "so"})
    return DayTable.open(folder, Files.TABLE)


def test_rows_are_read_once_and_in_order(tmp_path: Path) -> None:
    mixed = pl.concat([rows(TUESDAY, 10, 3), rows(MONDAY, 0, 5)])
    table = write_table(tmp_path / "t", mixed, rows(MONDAY, 5, 6), rows(TUESDAY, 13, 1))
    assert table.scan({MONDAY}).collect()["number"].to_list() == list(range(11))
    assert table.scan({TUESDAY}).collect()["number"].to_list() == [10, 11, 12, 13]
    assert [part.rows for part in table.days] == [11, 4]
    assert table.positives == 5 + 2
    assert table.notes == {"said": "so"}


def test_no_file_is_longer_than_a_chunk(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", rows(MONDAY, 0, 23), chunk_rows=10)
    assert [frame.height for _, frame in table.frames()] == [10, 10, 3]


def test_memory_is_bounded_with_many_open_days(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    writer = DayTableWriter(tmp_path / "t", Files.TABLE, chunk_rows=10)
    for number in range(30):
        writer.append(rows(date(2026, 1, 1 + number), number, 9))
    rows_in_memory = sum(frame.height for frames in writer._buffered_frames.values() for frame in frames)
    assert rows_in_memory <= 10
    assert writer.close().rows == 30 * 9


def test_a_linked_file_is_in_order_between_appended_rows(tmp_path: Path) -> None:
    source = write_table(tmp_path / "source", rows(MONDAY, 3, 4))
    (tmp_path / "t").mkdir()
    writer = DayTableWriter(tmp_path / "t", Files.TABLE, chunk_rows=4)
    writer.append(rows(MONDAY, 0, 3))
    writer.link(MONDAY, source.paths()[0], rows=4, positives=2)
    writer.append(rows(MONDAY, 7, 2))
    table = writer.close()
    assert table.scan().collect()["number"].to_list() == list(range(9))
    assert (table.rows, table.positives) == (9, 4)
    assert [frame.height for _, frame in table.frames()] == [3, 4, 2]
    assert table.paths()[1].samefile(source.paths()[0])


def build_table(folder: Path, *heights: int) -> DayTable:
    """Return a table of one day whose files have these numbers of rows."""
    (folder / f"day={MONDAY}").mkdir(parents=True)
    files = []
    for number, height in enumerate(heights):
        files.append(f"day={MONDAY}/part-{number:05d}.parquet")
        rows(MONDAY, 0, height).write_parquet(folder / files[-1])
    part = DayPart(day=MONDAY, rows=sum(heights), positives=0, files=tuple(files))
    return DayTable(folder=folder, days=(part,))


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_each_file_goes_to_one_worker_and_shares_are_balanced(tmp_path: Path, world: int) -> None:
    heights = (10, 9, 8, 3, 10, 7, 1)
    table = build_table(tmp_path, *heights)
    shares = [files_of_worker(table, rank, world) for rank in range(world)]
    assert sorted(path for share in shares for path in share) == table.paths()
    assert all(share == sorted(share) for share in shares)  # in time order
    sizes = [sum(pl.read_parquet(path).height for path in share) for share in shares]
    assert max(sizes) - min(sizes) <= max(heights)


def test_the_largest_file_goes_to_the_worker_with_the_fewest_rows(tmp_path: Path) -> None:
    table = build_table(tmp_path, 2, 5, 4, 3)
    names = [[path.stem for path in files_of_worker(table, rank, 2)] for rank in (0, 1)]
    assert names == [["part-00000", "part-00001"], ["part-00002", "part-00003"]]  # 5 + 2 rows, 4 + 3 rows


def test_only_files_of_the_given_days_are_shared(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", rows(MONDAY, 0, 8), rows(TUESDAY, 0, 8))
    assert sorted(path for rank in (0, 1) for path in files_of_worker(table, rank, 2, {TUESDAY})) == table.paths(
        {TUESDAY}
    )


def test_more_workers_than_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match=r"2 file\(s\) cannot be shared among 3 workers, each needs one at least"):
        files_of_worker(build_table(tmp_path, 4, 4), 0, 3)


@pytest.mark.parametrize(
    ("values", "compression"),
    [
        (pl.Series([1, 2, 2]), "UNCOMPRESSED"),
        (pl.Series([0.5, 1.5, None]), "UNCOMPRESSED"),
        (pl.Series(["a", "b", None]), "LZ4"),
        (pl.Series([["a"], [], ["b", "c"]]), "LZ4"),
    ],
)
def test_texts_are_compressed_and_numbers_are_not(tmp_path: Path, values: pl.Series, compression: str) -> None:
    writer = DayTableWriter(tmp_path, Files.LOG, chunk_rows=10)
    constant_columns = {Columns.DAY: date(2024, 1, 1), Columns.LABEL: 1, Columns.SOURCE_FILE: "log.csv"}
    writer.append(
        pl.DataFrame({"x": values}).with_columns(
            pl.lit(constant).alias(name) for name, constant in constant_columns.items()
        )
    )
    (path,) = writer.close().paths()
    groups = pq.read_metadata(path).row_group(0)
    assert {groups.column(number).compression for number in range(groups.num_columns)} == {compression}


def test_the_files_of_a_flushed_day_do_not_depend_on_other_days(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    writer = DayTableWriter(tmp_path / "t", Files.TABLE, chunk_rows=10)
    for day, heights in ((MONDAY, (6,)), (TUESDAY, (7, 2))):  # 6 and 7 rows together are too many to hold
        for height in heights:
            writer.append(rows(day, 0, height))
        writer.flush()
    assert [(part.rows, len(part.files)) for part in writer.close().days] == [(6, 1), (9, 1)]
