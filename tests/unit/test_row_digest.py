"""The digest of a day depends on its rows alone."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fits.counting import day_digest
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.row_digest import DIGESTS, RowDigest, row_columns, row_hashes
from shortlist.storage.tables import DayTable

COLUMNS = [{"name": "click", "type": "integer"}, {"name": "price", "type": "number", "max": 9}]
MONDAY = date(2024, 1, 1)


def build_data(*more_columns: dict[str, Any], **sections: Any) -> Data:
    clock = {"kind": "column", "column": "time", "unit": "s"}
    source = {"kind": "files", "path": "log.csv"}
    rules = {"max_duplicate_share": 0.5, "max_quarantined_share": 0.5, "max_column_auc": 1.0}
    data = {"source": source, "columns": [*COLUMNS, *more_columns], "label": "click", "clock": clock, "rules": rules}
    return Data.model_validate({**data, **sections})


def validate_lines(folder: Path, lines: list[str], chunk_rows: int = 1_000) -> DayTable:
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join(["time,click,price", *lines]) + "\n")
    data, runtime = build_data(), Runtime(chunk_rows=chunk_rows)
    ingest(data, folder, folder / "raw", runtime)
    now = datetime(2024, 1, 9, tzinfo=UTC)
    return validate(data, folder / "raw", folder / "valid", folder / "quarantine", runtime, now)


def line(number: int, price: float = 1.0) -> str:
    """Return a line of a log with four days of 1 200 rows."""
    day, place = divmod(number, 1_200)
    return f"{int(datetime(2024, 1, 1 + day, tzinfo=UTC).timestamp()) + place},{number % 3 == 0:d},{price}"


GOOD = [line(number) for number in range(4_800)]


def digests(table: DayTable) -> dict[str, str]:
    noted: dict[str, str] = table.notes[DIGESTS]
    return noted


def test_noted_digests_equal_those_of_the_files(tmp_path: Path) -> None:
    table = validate_lines(tmp_path / "log", GOOD)
    table_without_notes = table.model_copy(update={"notes": {}})
    file_digests = {str(part.day): day_digest(build_data(), table_without_notes, part) for part in table.days}
    assert digests(table) == file_digests
    assert len(set(file_digests.values())) == 4


def test_only_valid_rows_are_digested(tmp_path: Path) -> None:
    # A price over 9, a repeated row, a line that does not parse: each is quarantined, and the day is what it was.
    bad_lines = [line(7, price=10), line(8), "1704067300,1,much"]
    table = validate_lines(tmp_path / "bad", [*GOOD[:1_000], *bad_lines, *GOOD[1_000:]])
    assert table.notes["by_rule"] == {"duplicate_row": 1, "in_range": 1, "type": 1}
    assert digests(table) == digests(validate_lines(tmp_path / "good", GOOD))


def test_digests_depend_on_values_and_not_on_order_or_files(tmp_path: Path) -> None:
    log_digests = digests(validate_lines(tmp_path / "log", GOOD))
    assert digests(validate_lines(tmp_path / "turned", GOOD[::-1])) == log_digests
    changed = digests(validate_lines(tmp_path / "changed", [line(0, price=2.0), *GOOD[1:]]))
    assert [day for day, digest in log_digests.items() if changed[day] != digest] == [str(MONDAY)]


def test_noted_digests_are_not_recomputed(tmp_path: Path) -> None:
    table = validate_lines(tmp_path / "log", GOOD)
    noted = table.model_copy(update={"notes": {DIGESTS: {str(MONDAY): "as noted"}}})
    tuesday = table.days[1]
    assert day_digest(build_data(), noted, noted.days[0]) == "as noted"
    assert day_digest(build_data(), noted, tuesday) == digests(table)[str(tuesday.day)]


def test_row_columns_exclude_vectors_and_generated_numbers() -> None:
    vector = {"name": "vector", "type": "vector"}
    assert row_columns(build_data(vector)) == ["event_time", "label", "price"]
    numbered = build_data({"name": "number", "type": "integer"}, impression="number")
    assert row_columns(numbered) == ["event_time", "impression_id", "label", "price"]


@pytest.mark.parametrize("cut", [0, 1, 5])
def test_a_digest_is_additive_over_pieces(cut: int) -> None:
    rows = pl.DataFrame({"x": [1, None, 3, 3, 5], "y": ["a", "b", None, "b", "c"]})
    whole, pieces = RowDigest(), RowDigest()
    whole.add(row_hashes(rows))
    for piece in (rows[cut:], rows[:cut]):
        pieces.add(row_hashes(piece))
    assert str(pieces) == str(whole)
    assert str(whole).startswith(f"{pl.__version__}:")


def test_a_reopened_valid_log_has_its_digests(tmp_path: Path) -> None:
    table = validate_lines(tmp_path / "log", GOOD)
    assert digests(DayTable.open(tmp_path / "log" / "valid", Files.LOG)) == digests(table)
