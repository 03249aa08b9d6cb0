"""JSON-lines logs: what is read, what is rejected with its line, and what stops the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shortlist.contracts import DataError
from shortlist.data.reading.text import text_blocks

NOON = 1_704_110_400  # 2024-01-01 12:00 UTC
TAGGED = [
    {"name": "click", "type": "integer"},
    {"name": "words", "type": "tags"},
    {"name": "ids", "type": "tags", "tag_type": "integer"},
    {"name": "place", "type": "vector"},
]
GOOD = {"time": NOON, "click": 1, "words": ["a", "b,c"], "ids": [3, 4], "place": [0.5, 1]}
Declare = Callable[..., Any]
Read = Callable[..., Any]


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_lists_and_missing_keys_are_read_as_they_are(tmp_path: Path, declare: Declare, read: Read) -> None:
    rows, rejected, _ = read(declare(TAGGED), written(tmp_path, GOOD, {"time": NOON, "click": 0, "words": []}))
    assert rows.select("label", "words", "ids", "place").rows() == [
        (1, ["a", "b,c"], [3, 4], [0.5, 1.0]),
        (0, [], None, None),
    ]
    assert rejected.is_empty()


@pytest.mark.parametrize(
    ("line", "rule", "detail"),
    [
        ('{"time": 1704110400, "click":', "json", 'not a JSON object: {"time": 1704110400, "click":'),
        ("[1, 2]", "json", "not a JSON object: [1, 2]"),
        ({**GOOD, "click": "often"}, "type", "click: got 'often', wanted an integer"),
        ({**GOOD, "click": 0.5}, "type", "click: got '0.5', wanted an integer"),
        ({**GOOD, "ids": [1, "x"]}, "type", "ids: got '[1, x]', wanted a list of integer values"),
        ({**GOOD, "ids": [[1]]}, "type", "ids: got '[[[1]]]', wanted a list of integer values"),
        ({**GOOD, "place": [1, None, 2]}, "type", "place: got"),
        ({**GOOD, "place": [1, 2, 3]}, "type", "place: got '[1.0, 2.0, 3.0]', wanted 2 numbers"),
        ({**GOOD, "time": None}, "clock", "time: got nothing"),
    ],
)
def test_a_bad_line_is_rejected_with_rule_and_line(
    tmp_path: Path, declare: Declare, read: Read, line: object, rule: str, detail: str
) -> None:
    rows, rejected, table = read(declare(TAGGED), written(tmp_path, GOOD, line, "", GOOD))
    assert rows["source_line"].to_list() == [1, 4]
    assert rows["impression_id"].to_list() == [0, 2]
    assert rows.select("label", "words", "ids", "place").rows() == [(1, ["a", "b,c"], [3, 4], [0.5, 1.0])] * 2
    assert rejected.select("source_line", "rule").rows() == [(2, rule)]
    assert rejected["detail"][0].startswith(detail)
    assert table.notes["raw_rows"] == 3


def test_text_flags_and_floats_are_accepted_for_what_they_mean(tmp_path: Path, declare: Declare, read: Read) -> None:
    odd = {"time": str(NOON), "click": True, "words": "a, b", "ids": "3,4", "place": [1, 2]}
    rows, rejected, _ = read(declare(TAGGED), written(tmp_path, GOOD, odd, {**GOOD, "ids": [5.0], "click": "1"}))
    assert rows["label"].to_list() == [1, 1, 1]
    assert rows["words"].to_list()[1] == ["a", "b"]
    assert rows["ids"].to_list() == [[3, 4], [3, 4], [5]]
    assert rejected.is_empty()


def test_a_column_that_is_always_spelled_otherwise_is_read_so_in_every_block(
    tmp_path: Path, declare: Declare, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_blocks, "_FIRST_BYTES", 64)
    monkeypatch.setattr(text_blocks, "_LEAST_BYTES", 64)
    rows, _, _ = read(declare(TAGGED), written(tmp_path, *[{**GOOD, "click": bool(n % 2)} for n in range(50)]))
    assert rows["label"].sum() == 25
    assert rows["source_line"].to_list() == list(range(1, 51))


def test_keys_are_compared_with_the_declared_columns(tmp_path: Path, declare: Declare, read: Read) -> None:
    with pytest.raises(DataError, match=r"declared column 'place' is missing; did you mean 'plase'\?"):
        read(declare(TAGGED), written(tmp_path, {("plase" if key == "place" else key): GOOD[key] for key in GOOD}))
    with pytest.raises(DataError, match="column 'extra' is not declared"):
        read(declare(TAGGED), written(tmp_path, GOOD, {**GOOD, "extra": 1}))


def test_a_file_without_json_stops_the_run(tmp_path: Path, declare: Declare, read: Read) -> None:
    with pytest.raises(DataError, match="none of the first 2 lines is a JSON object; is the format jsonl"):
        read(declare(TAGGED), written(tmp_path, "a,b", "1,2"))


def test_lines_that_are_mostly_no_json_stop_the_run(tmp_path: Path, declare: Declare, read: Read) -> None:
    with pytest.raises(DataError, match=r"60 of 61 rows from line 2 on cannot be read, e.g. line 2 breaks 'json'"):
        read(declare(TAGGED), written(tmp_path, GOOD, *["oops"] * 60))


def test_broken_utf8_is_rejected(tmp_path: Path, declare: Declare, read: Read) -> None:
    path = written(tmp_path, GOOD, GOOD)
    path.write_bytes(path.read_bytes() + b'{"words": ["\xff"]}\n')
    rows, rejected, _ = read(declare(TAGGED), path)
    assert rows.height == 2
    assert rejected.select("source_line", "rule").rows() == [(3, "utf8")]


def test_an_empty_text_is_no_value_whatever_else_is_none(tmp_path: Path, declare: Declare, read: Read) -> None:
    columns = [TAGGED[0], {"name": "page", "type": "string"}, TAGGED[1]]
    rows = [
        {"time": NOON, "click": number % 2, "page": page, "words": words}
        for number, (page, words) in enumerate([("", ["a", ""]), ("NA", [""]), (" ", ["NA"]), ("home", [])])
    ]
    found, rejected, _ = read(declare(columns, source={"null_values": ["NA"]}), written(tmp_path, *rows))
    assert found["page"].to_list() == [None, None, " ", "home"]
    assert found["words"].to_list() == [["a"], [], ["NA"], []]  # within a list only an empty one is none
    assert rejected.is_empty()
