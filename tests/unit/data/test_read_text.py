"""CSV and TSV logs: what is read, what is rejected with its line, and what stops the run."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shortlist.contracts import DataError
from shortlist.data.reading import read_text as read_text_module
from shortlist.data.reading.layout import FileLayout
from shortlist.data.reading.read_text import read_text
from shortlist.data.reading.sources import InputFile
from shortlist.data.reading.text import text_blocks
from shortlist.spec.data import Column

HEADER = "time,user_id,price,click\n"
NOON = 1_704_110_400  # 2024-01-01 12:00 UTC
ROW = f"{NOON},7,2.5,1\n"
TITLES = [{"name": "title", "type": "string"}, {"name": "click", "type": "integer"}]
Declare = Callable[..., Any]
Read = Callable[..., Any]


@pytest.fixture(autouse=True, params=[0, 1 << 40], ids=["compiled", "Polars"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log is read in both ways: as one large enough for the compiled reader, and as one that is not."""
    monkeypatch.setattr(read_text_module, "_LARGE_BYTES", request.param)


def written(tmp_path: Path, text: str | bytes, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def test_a_clean_log_gets_its_declared_types(tmp_path: Path, declare: Declare, read: Read) -> None:
    rows, rejected, table = read(declare(), written(tmp_path, HEADER + ROW + f"{NOON + 86_400},8,,0\n"))
    assert rows.columns == [
        "source_file", "source_line", "event_time", "day", "impression_id", "label", "user_id", "price",
    ]  # fmt: skip
    assert rows["source_line"].to_list() == [2, 3]
    assert rows["impression_id"].to_list() == [0, 1]
    assert rows["label"].dtype == pl.Int8
    assert rows["price"].to_list() == [2.5, None]
    assert rows["day"].cast(pl.String).to_list() == ["2024-01-01", "2024-01-02"]
    assert rejected.is_empty()
    assert table.notes == {"raw_rows": 2, "rejected_rows": 0, "by_rule": {}, "side": {}}


@pytest.mark.parametrize(("name", "pack"), [("log.csv", bytes), ("log.csv.gz", gzip.compress), ("log.csv.zst", zstd)])
def test_packed_files_read_as_plain_files(
    tmp_path: Path, declare: Declare, read: Read, name: str, pack: Callable[[bytes], bytes]
) -> None:
    rows, _, _ = read(declare(), written(tmp_path, pack((HEADER + ROW * 3).encode()), name))
    assert rows["user_id"].to_list() == [7, 7, 7]


def test_two_packed_pieces_in_one_file_are_both_read(tmp_path: Path, declare: Declare, read: Read) -> None:
    data = gzip.compress(HEADER.encode()) + gzip.compress(ROW.encode())
    assert read(declare(), written(tmp_path, data, "log.csv.gz"))[0].height == 1


@pytest.mark.parametrize(("name", "pack"), [("log.csv.gz", gzip.compress), ("log.csv.zst", zstd)])
def test_a_truncated_file_stops_the_run(
    tmp_path: Path, declare: Declare, read: Read, name: str, pack: Callable[[bytes], bytes]
) -> None:
    path = written(tmp_path, pack((HEADER + ROW * 1_000).encode())[:-5], name)
    with pytest.raises(DataError, match=rf"{name}: the (gzip|zstd) stream is truncated or broken after \d+ bytes"):
        read(declare(), path)
    assert not (tmp_path / "raw").exists()


def test_a_name_that_promises_another_packing_is_refused(tmp_path: Path, declare: Declare, read: Read) -> None:
    with pytest.raises(DataError, match="the name says gzip, the content begins with b'time'"):
        read(declare(), written(tmp_path, HEADER + ROW, "log.csv.gz"))


def test_tabs_separate_tsv_and_order_names_headerless_columns(tmp_path: Path, declare: Declare, read: Read) -> None:
    source = {"kind": "files", "header": False}
    clock = {"kind": "column", "column": "1", "unit": "s"}
    path = written(tmp_path, f"7\t{NOON}\t2.5\t1\n", "log.tsv")
    rows, _, _ = read(declare(source=source, clock=clock), path)
    assert rows.select("user_id", "price", "label").row(0) == (7, 2.5, 1)
    with pytest.raises(DataError, match=r"clock.column must be a position counted from 0, got 'time'"):
        read(declare(source=source), path)


def test_a_headerless_file_with_other_columns_is_refused(tmp_path: Path, declare: Declare, read: Read) -> None:
    source = {"kind": "files", "header": False}
    with pytest.raises(DataError, match="first row has 2 fields, the spec declares 3 for the log"):
        read(declare(source=source, clock={"kind": "row_order"}), written(tmp_path, "1,2\n"))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("time,user_id,price,click,click\n", "column 'click' occurs 2 times in the header"),
        ("time,userid,price,click\n", r"declared column 'user_id' is missing; did you mean 'userid'\? \(the file has"),
        ("time;user_id;price;click\n", "its first line has no ',', and ';' between 4 names or more; declare"),
        ("time,user_id,price,click,extra\n", "column 'extra' is not declared; declare it, or set data.rules.un"),
        ('time,user_id,"price,click\n', "line 1: not a row of UTF-8 CSV"),
        ("\xff\xfet\0i\0", "UTF-16 text; convert it to UTF-8"),
    ],
)
def test_a_header_that_is_not_the_declared_one_stops_the_run(
    tmp_path: Path, declare: Declare, read: Read, header: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(declare(), written(tmp_path, (header + ROW).encode("latin-1")))


def test_undeclared_columns_may_be_ignored(tmp_path: Path, declare: Declare, read: Read) -> None:
    data = declare(rules={"undeclared_columns": "ignore"})
    rows, _, _ = read(data, written(tmp_path, f"extra,time,user_id,price,click\nx,{ROW}"))
    assert "extra" not in rows.columns


def test_columns_are_found_by_their_name_in_the_file(tmp_path: Path, declare: Declare, read: Read) -> None:
    columns = [{"name": "cost", "source": "Price (EUR)", "type": "number"}, {"name": "click", "type": "integer"}]
    rows, _, _ = read(declare(columns), written(tmp_path, f"click,Price (EUR),time\n1,2.5,{NOON}\n"))
    assert rows["cost"].to_list() == [2.5]


def test_one_column_of_the_file_may_be_declared_twice(tmp_path: Path, declare: Declare, read: Read) -> None:
    columns = [
        {"name": "code", "type": "hex"},
        {"name": "text", "source": "code", "type": "string"},
        {"name": "click", "type": "integer"},
    ]
    rows, _, _ = read(declare(columns), written(tmp_path, f"code,click,time\nff,1,{NOON}\n"))
    assert rows.select("code", "text").rows() == [(255, "ff")]


def test_files_are_one_log_in_name_order(tmp_path: Path, declare: Declare, read: Read) -> None:
    for name, user in (("b.csv", 2), ("a.csv", 1)):
        written(tmp_path, HEADER + f"{NOON},{user},1,0\n", name)
    rows, _, _ = read(declare(source={"path": "*.csv"}), tmp_path)
    assert rows.select("source_file", "user_id", "impression_id").rows() == [("a.csv", 1, 0), ("b.csv", 2, 1)]


def test_files_with_different_columns_are_no_log(tmp_path: Path, declare: Declare, read: Read) -> None:
    written(tmp_path, HEADER + ROW, "a.csv")
    written(tmp_path, HEADER.replace("price", "cost") + ROW, "b.csv")
    message = r"b.csv \(the log\): declared column 'price' is missing .*; column 'cost' is not declared"
    with pytest.raises(DataError, match=message):
        read(declare(source={"path": "*.csv"}), tmp_path)
    written(tmp_path, HEADER.replace(",", "\t") + ROW, "b.tsv")
    with pytest.raises(DataError, match=r"b.tsv is tsv, a.csv is csv; narrow `path`"):
        read(declare(source={"path": "[ab].[ct]sv"}, rules={"undeclared_columns": "ignore"}), drop(tmp_path / "b.csv"))


def drop(path: Path) -> Path:
    path.unlink()
    return path.parent


def test_a_header_alone_is_no_log(tmp_path: Path, declare: Declare, read: Read) -> None:
    with pytest.raises(DataError, match="the log has no rows"):
        read(declare(), written(tmp_path, HEADER))


def test_line_ends_and_the_mark_of_windows_are_no_content(tmp_path: Path, declare: Declare, read: Read) -> None:
    text = "\ufeff" + (HEADER + ROW * 2).replace("\n", "\r\n").rstrip()
    assert read(declare(), written(tmp_path, text))[0]["label"].to_list() == [1, 1]


@pytest.mark.parametrize(
    ("line", "rule", "detail"),
    [
        (b"1704110400,7,2.5\n", "field_count", "got 3 fields, wanted 4"),
        (b"1704110400,7,2.5,1,9\n", "field_count", "got 5 fields, wanted 4"),
        (b"1704110400,7,\xff,1\n", "utf8", "the bytes are not UTF-8 text"),
        (b'1704110400,7,"2.5,1\n', "quotes", 'a quote (") opens in this line'),
        (b"1704110400,seven,2.5,1\n", "type", "user_id: got 'seven', wanted an integer"),
        (b"1704110400,7.5,2.5,1\n", "type", "user_id: got '7.5', wanted an integer"),
        (b"1704110400,7,cheap,1\n", "type", "price: got 'cheap', wanted a number"),
        (b"1704110400,7,2.5,1000\n", "label_is_binary", "click: got '1000', wanted 0 or 1"),
        (b"170411,7,2.5,1\n", "clock", "time: got '170411.0', wanted s since 1970, from 2000-01-01"),
        (b",7,2.5,1\n", "clock", "time: got nothing, wanted s since 1970"),
        (b"noon,7,2.5,1\n", "clock", "time: got 'noon', wanted s since 1970"),
    ],
)
def test_a_bad_row_is_rejected_with_rule_and_line(
    tmp_path: Path, declare: Declare, read: Read, line: bytes, rule: str, detail: str
) -> None:
    before, after = f'{NOON},1,"1",0\n', f"{NOON},2,2,0\n{NOON},3,3,0\n"
    path = written(tmp_path, (HEADER + before).encode() + line + after.encode())
    rows, rejected, table = read(declare(), path)
    assert rows["user_id"].to_list() == [1, 2, 3]
    assert rows["source_line"].to_list() == [2, 4, 5]
    assert rows["impression_id"].to_list() == [0, 2, 3]
    assert rejected.select("source_file", "source_line", "rule").rows() == [("log.csv", 3, rule)]
    assert rejected["detail"][0].startswith(detail)
    assert table.notes["by_rule"] == {rule: 1}
    assert table.notes["raw_rows"] == 4


def test_a_row_with_two_faults_is_counted_once(tmp_path: Path, declare: Declare, read: Read) -> None:
    _, rejected, _ = read(declare(), written(tmp_path, HEADER + ROW + "never,seven,cheap,1\n"))
    assert rejected["rule"].to_list() == ["clock"]


def test_lines_are_counted_through_quoted_line_ends_and_blank_lines(
    tmp_path: Path, declare: Declare, read: Read
) -> None:
    text = f'title,click,time\n"two\nlines",1,{NOON}\n\nx,1,{NOON}\ny,bad,{NOON}\n'
    rows, rejected, table = read(declare(TITLES), written(tmp_path, text))
    assert rows.select("source_line", "title").rows() == [(2, "two\nlines"), (5, "x")]
    assert rejected["source_line"].to_list() == [6]
    assert table.notes["raw_rows"] == 3


def test_blank_lines_of_a_single_column_are_no_rows(tmp_path: Path, declare: Declare, read: Read) -> None:
    data = declare([{"name": "click", "type": "integer"}], clock={"kind": "row_order", "days": 2})
    assert read(data, written(tmp_path, "click\n1\n\n0\n"))[0]["label"].to_list() == [1, 0]


def test_null_values_are_nulls_in_every_type(tmp_path: Path, declare: Declare, read: Read) -> None:
    data = declare(source={"null_values": ["", "NA", "\\N"]})
    rows, _, _ = read(data, written(tmp_path, HEADER + f'{NOON},NA,\\N,1\n{NOON},,"NA",0\n'))
    assert rows.select("user_id", "price").rows() == [(None, None), (None, None)]


def test_integers_may_be_written_as_floats_and_flags_as_texts(tmp_path: Path, declare: Declare, read: Read) -> None:
    rows, rejected, _ = read(declare(), written(tmp_path, HEADER + f"{NOON},7.0,2,True\n{NOON}, 8 ,nan,false\n"))
    assert rows.select("user_id", "price", "label").rows() == [(7, 2.0, 1), (8, None, 0)]
    assert rejected.is_empty()


def test_a_column_that_changed_its_type_stops_the_run(tmp_path: Path, declare: Declare, read: Read) -> None:
    text = HEADER + "".join(f"{NOON},user-{n},1,0\n" for n in range(50))
    message = (
        r"log.csv: column 'user_id' is not of type integer: 50 of 50 values from line 2 on fail, e.g. in line 2"
        r" user_id: got 'user-0', wanted an integer"
    )
    with pytest.raises(DataError, match=message):
        read(declare(), written(tmp_path, text))


def test_rows_that_nearly_all_have_other_fields_stop_the_run(tmp_path: Path, declare: Declare, read: Read) -> None:
    with pytest.raises(DataError, match=r"50 of 50 rows from line 2 on cannot be read, .* got 3 fields, wanted 4"):
        read(declare(), written(tmp_path, HEADER + f"{NOON},7,1\n" * 50))


def test_meaningless_quotes_stop_the_run(tmp_path: Path, declare: Declare, read: Read) -> None:
    text = "title,click,time\n" + f'5" wide,1,{NOON}\n' * 1_001
    with pytest.raises(DataError, match=r"log.csv, from line 1 on: more than 1000 lines have a quote"):
        read(declare(TITLES), written(tmp_path, text))


def test_a_file_without_line_ends_is_no_text(
    tmp_path: Path, declare: Declare, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_blocks, "_LONGEST_ROW_BYTES", 1 << 20)
    with pytest.raises(DataError, match=r"log.csv, line 1: no row ends within 1 MiB"):
        read(declare(), written(tmp_path, b"x" * (3 << 20)))


ANY = st.text(st.sampled_from('ab1 ,"\n\r\té\u20ac'), max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.lists(st.tuples(ANY, ANY), min_size=1, max_size=40), first_bytes=st.integers(1, 64))
def test_any_text_survives_any_cut_into_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: list[tuple[str, str]], first_bytes: int
) -> None:
    monkeypatch.setattr(text_blocks, "_FIRST_BYTES", first_bytes)
    monkeypatch.setattr(text_blocks, "_LEAST_BYTES", first_bytes)
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(table)
    path = written(tmp_path, text.getvalue())
    columns = tuple(Column(name=name, type="string") for name in ("a", "b"))
    layout = FileLayout("the log", columns, None, header=False, null_values=("",), undeclared="refuse")
    blocks = list(read_text(InputFile(path, "log.csv", "csv"), layout, ["a", "b"], 1))
    assert pl.concat(block.columns for block in blocks).rows() == [(a or None, b or None) for a, b in table]
    starts = [1 + sum(f"{a}{b}\n".count("\n") for a, b in table[:place]) for place in range(len(table))]
    assert [line for block in blocks for line in block.lines] == starts
    assert sum(block.rows for block in blocks) == len(table)
