"""Files are read in pieces, with the same validation as of whole files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from shortlist.contracts import Files
from shortlist.data.ingest import RAW_INDEX, ingest
from shortlist.data.validate import validate
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, iter_row_groups

START = datetime(2024, 1, 1, tzinfo=UTC)
DAYS, ROWS, PIECE = 5, 600, 100
BAD_ROWS_BY_DAY = {0: [3], 2: [250, 350], 3: [50, 51, 599]}
"""Day -> rows with a wrong label: in the first piece, only in later ones, in the first and in the last."""
REPEATED = (4, 120)
"""Day and number of a row that is repeated at its day's end."""
RULES = {"max_quarantined_share": 0.1, "max_duplicate_share": 0.1}
RUNTIME = Runtime(chunk_rows=1_000)


def clicks() -> pl.DataFrame:
    number = pl.int_range(DAYS * ROWS, eager=True)
    wrong = number.is_in([day * ROWS + place for day, places in BAD_ROWS_BY_DAY.items() for place in places])
    log = pl.select(
        time=int(START.timestamp()) + number // ROWS * 86_400 + number % ROWS,
        user_id=number % 47,
        price=number * 37 % 1_501 / 4,
        click=pl.when(wrong).then(7).otherwise((number % 10 < 3).cast(pl.Int64)),
    )
    day, place = REPEATED
    return pl.concat([log, log.slice(day * ROWS + place, 1)])


@pytest.fixture
def data_with_raw_tables(tmp_path: Path, declare: Callable[..., Data]) -> Data:
    """Return a declaration, with raw tables `whole`, of one row group per file, and `cut`, of several."""
    clicks().write_parquet(tmp_path / "log.parquet")
    data = declare(source={"path": "log.parquet"}, rules=RULES)
    ingest(data, tmp_path, tmp_path / "whole", RUNTIME)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for path in DayTable.open(tmp_path / "cut", RAW_INDEX).paths():
        pl.read_parquet(path, hive_partitioning=False).write_parquet(path, row_group_size=PIECE)
    return data


def validate_raw(data: Data, raw: Path) -> tuple[list[pl.DataFrame], pl.DataFrame, dict[str, Any]]:
    """Return the valid files' rows, the quarantined rows and the notes."""
    valid, quarantine = raw.with_suffix(".valid"), raw.with_suffix(".quarantine")
    table = validate(data, raw, valid, quarantine, RUNTIME, START)
    files = [pl.read_parquet(path, hive_partitioning=False) for path in table.paths()]
    return files, pl.read_parquet(quarantine / Files.QUARANTINE), table.notes


def test_a_table_is_read_piece_by_piece(data_with_raw_tables: Data, tmp_path: Path) -> None:
    table = DayTable.open(tmp_path / "cut", RAW_INDEX)
    pieces = list(table.pieces())
    assert max(rows.height for _, _, rows in pieces) == PIECE
    for path in table.paths():
        whole = pl.read_parquet(path, hive_partitioning=False)
        assert_frame_equal(pl.concat(rows for _, file, rows in pieces if file == path), whole)
        assert_frame_equal(pl.concat(iter_row_groups(path)), whole)


def test_validation_in_pieces_equals_validation_of_whole_files(data_with_raw_tables: Data, tmp_path: Path) -> None:
    files, refused, notes = validate_raw(data_with_raw_tables, tmp_path / "cut")
    whole_files, whole_refused, whole_notes = validate_raw(data_with_raw_tables, tmp_path / "whole")
    assert notes["by_rule"] == {"duplicate_row": 1, "label_is_binary": sum(map(len, BAD_ROWS_BY_DAY.values()))}
    assert notes == whole_notes
    assert_frame_equal(refused, whole_refused)
    assert len(files) == len(whole_files) == DAYS
    for rows, whole in zip(files, whole_files, strict=True):
        assert_frame_equal(rows, whole)


def test_only_a_file_without_a_bad_row_is_linked(data_with_raw_tables: Data, tmp_path: Path) -> None:
    validate_raw(data_with_raw_tables, tmp_path / "cut")
    raw, valid = DayTable.open(tmp_path / "cut", RAW_INDEX), DayTable.open(tmp_path / "cut.valid", Files.LOG)
    linked = [valid_file.samefile(raw_file) for valid_file, raw_file in zip(valid.paths(), raw.paths(), strict=True)]
    assert linked == [False, True, False, False, False]
