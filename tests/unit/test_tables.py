"""A day table holds every row once, in order, in files of bounded size."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl

from shortlist.contracts import Files
from shortlist.tables import DayTable, DayTableWriter

MONDAY, TUESDAY = date(2026, 1, 5), date(2026, 1, 6)


def rows(day: date, first: int, count: int) -> pl.DataFrame:
    numbers = range(first, first + count)
    columns = {"day": [day] * count, "label": [number % 2 for number in numbers], "number": numbers}
    return pl.DataFrame(columns, schema={"day": pl.Date, "label": pl.Int8, "number": pl.Int64})


def written(folder: Path, *frames: pl.DataFrame, chunk_rows: int = 4) -> DayTable:
    folder.mkdir()
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows)
    for frame in frames:
        writer.append(frame)
    writer.close({"said": "so"})
    return DayTable.open(folder, Files.TABLE)


def test_rows_come_back_once_and_in_order(tmp_path: Path) -> None:
    mixed = pl.concat([rows(TUESDAY, 10, 3), rows(MONDAY, 0, 5)])
    table = written(tmp_path / "t", mixed, rows(MONDAY, 5, 6), rows(TUESDAY, 13, 1))
    assert table.scan({MONDAY}).collect()["number"].to_list() == list(range(11))
    assert table.scan({TUESDAY}).collect()["number"].to_list() == [10, 11, 12, 13]
    assert [part.rows for part in table.days] == [11, 4]
    assert table.positives == 5 + 2
    assert table.notes == {"said": "so"}


def test_no_file_is_longer_than_a_chunk(tmp_path: Path) -> None:
    table = written(tmp_path / "t", rows(MONDAY, 0, 23), chunk_rows=10)
    assert [frame.height for _, frame in table.frames()] == [10, 10, 3]


def test_many_open_days_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    writer = DayTableWriter(tmp_path / "t", Files.TABLE, chunk_rows=10)
    for number in range(30):
        writer.append(rows(date(2026, 1, 1 + number), number, 9))
    held = sum(frame.height for frames in writer._held.values() for frame in frames)
    assert held <= 10
    assert writer.close().rows == 30 * 9
