"""A log that is read over groups of files and judged over groups of days is, byte for byte, that of one pod."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from shortlist.contracts import Columns, DataError, Files, ShortlistError
from shortlist.data.collected import CollectedRows
from shortlist.data.file_groups import FileGroup, needed_to_partition, partition_files
from shortlist.data.ingest import RAW_INDEX, ingest, ingest_files
from shortlist.data.join_raw_log import join_raw_log
from shortlist.data.validate import LogRefusedError, join_valid_log, validate, validate_days
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import file_digests
from shortlist.storage.groups import groups_of
from shortlist.storage.row_digest import RowDigest
from shortlist.storage.tables import DayTable
from tests.unit.data.test_collected import publish

START = datetime(2024, 1, 1, tzinfo=UTC)
NOW = datetime(2024, 1, 9, tzinfo=UTC)
RUNTIME = Runtime(chunk_rows=1_000)
LOOSE = {
    "max_quarantined_share": 0.5, "max_duplicate_share": 0.5, "max_column_auc": 1.0, "max_label_rate_change": 1.0,
    "min_volume_ratio": 0.0, "max_volume_ratio": 1e9, "min_rows": 1,
}  # fmt: skip
USERS = {
    "name": "users", "path": "users.csv", "key": "user_id",
    "columns": [{"name": "user_id", "type": "integer"}, {"name": "age", "type": "integer"}],
}  # fmt: skip
SHORT = {"warmup_days": 0, "validation_days": 1, "test_days": 1}
Declare = Callable[..., Data]


class Made(NamedTuple):
    """What was made of a log: SHA-256 of every file, by name."""

    raw: dict[str, str]
    valid: dict[str, str]
    quarantine: dict[str, str]


def in_one_pod(data: Data, location: Path, out: Path, collected: str = "", until: datetime | None = None) -> Made:
    raw, valid, quarantine = (out / name for name in ("raw", "valid", "quarantine"))
    ingest(data, location, raw, RUNTIME, collected=CollectedRows.parse(collected))
    validate(data, raw, valid, quarantine, RUNTIME, NOW, until)
    return Made(*map(file_digests, (raw, valid, quarantine)))


def read_groups(data: Data, location: Path, out: Path, max_groups: int) -> list[Path]:
    groups = [FileGroup.read(group.model_dump_json()) for group in partition_files(data, location, RUNTIME, max_groups)]
    folders = [out / f"files-{group.number}" for group in groups]
    for folder, group in zip(folders, groups, strict=True):
        ingest_files(data, location, group, folder, RUNTIME)
    return folders


def in_groups(
    data: Data, location: Path, out: Path, max_groups: int, collected: str = "", until: datetime | None = None
) -> Made:
    """Read and judge in groups, which end in another order than they began in."""
    raw, valid, quarantine = (out / name for name in ("raw", "valid", "quarantine"))
    parts = read_groups(data, location, out, max_groups)[::-1]
    table = join_raw_log(data, parts, raw, RUNTIME, CollectedRows.parse(collected))
    judged = []
    for number, days in enumerate(groups_of(table.days, max_groups)):
        judged.append(out / f"days-{number}")
        validate_days(data, raw, days, judged[-1], RUNTIME, until)
    join_valid_log(data, raw, judged[::-1], valid, quarantine, RUNTIME, NOW, until)
    return Made(*map(file_digests, (raw, valid, quarantine)))


def clicks(file: int, rows: int = 1_300, days: int = 4) -> list[dict[str, Any]]:
    """Rows of a file: of its own day and of others, some as in other files, some wrong."""
    chance = random.Random(file)
    found = []
    for number in range(rows):
        second = (file % days if number % 3 else chance.randrange(days)) * 86_400 + chance.randrange(86_400)
        row: dict[str, Any] = {
            "time": int(START.timestamp()) + second, "user_id": chance.randrange(90), "price": second % 97 / 4,
            "click": int(number % 7 == 0),
        }  # fmt: skip
        row |= {5: {"click": 7}, 50: {"price": "dear"}, 500: {"time": "never"}}.get(number, {})
        found.append(row)
    same = {"time": int(START.timestamp()) + 86_400 + 9, "user_id": 3, "price": 1.0, "click": 1}
    return [*found, same]  # a copy in every file


def write_csv(folder: Path, files: int = 5) -> None:
    number = 0
    for file in range(files):
        rows = []
        for row in clicks(file):
            rows.append({"number": number if number % 1_000 else 17, **row})
            number += 1
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        (folder / f"log-{file}.csv").write_text("\n".join(lines) + "\n")
    users = [f"{user},{'old' if user == 4 else 30}" for user in range(80)]
    (folder / "users.csv").write_text("\n".join(["user_id,age", *users]) + "\n")


@pytest.fixture
def csv(tmp_path: Path, declare: Declare) -> Callable[..., Data]:
    """Write five files of text and a side table; return what declares them."""
    (tmp_path / "in").mkdir()
    write_csv(tmp_path / "in")

    def declared(**sections: Any) -> Data:
        named = [name for name in ("number", "user_id", "click") if name != "number" or sections.get("impression")]
        columns = [
            *({"name": name, "type": "integer"} for name in named),
            {"name": "price", "type": "number", "max": 24.0},
        ]
        rules = {**LOOSE, "undeclared_columns": "ignore", **sections.pop("rules", {})}
        users = {**USERS, "min_coverage": 0.5}
        return declare(columns, source={"path": "log-*.csv"}, rules=rules, side_tables=[users], **sections)

    return declared


@pytest.mark.parametrize("max_groups", [2, 9])
@pytest.mark.parametrize("impression", [None, "number"])
def test_any_number_of_groups_gives_the_bytes_of_one_pod(
    csv: Callable[..., Data], tmp_path: Path, impression: str | None, max_groups: int
) -> None:
    data, until = csv(impression=impression), START + timedelta(days=3, hours=20)
    one_pod = in_one_pod(data, tmp_path / "in", tmp_path / "one", until=until)
    assert in_groups(data, tmp_path / "in", tmp_path / "many", max_groups, until=until) == one_pod
    notes = DayTable.open(tmp_path / "many/valid", Files.LOG).notes
    assert notes["by_rule"]["clock"] == notes["by_rule"]["type"] == 5
    assert notes["by_rule"]["duplicate_row" if impression is None else "future"] >= 4
    assert impression is None or notes["by_rule"]["duplicate_impression"] >= 1
    assert notes["side"]["users"]["quarantined_rows"] == 1
    assert len(DayTable.open(tmp_path / "many/raw", RAW_INDEX).paths()) > 4


def test_a_row_that_another_group_has_too_is_quarantined(csv: Callable[..., Data], tmp_path: Path) -> None:
    in_groups(csv(), tmp_path / "in", tmp_path / "many", 5)
    bad = pl.read_parquet(tmp_path / "many/quarantine" / Files.QUARANTINE)
    copies = bad.filter((pl.col(Columns.RULE) == "duplicate_row") & (pl.col(Columns.SOURCE_LINE) == 1_302))
    assert copies[Columns.SOURCE_FILE].to_list() == [f"log-{file}.csv" for file in (1, 2, 3, 4)]


def test_files_of_one_group_s_rows_are_linked(tmp_path: Path, declare: Declare) -> None:
    """Days in files of their own, as logs usually are."""
    for day in range(4):
        seconds = (int(START.timestamp()) + day * 86_400 + second for second in range(1_500))
        rows = [f"{time},{time % 9},1.5,{time % 2},{time}" for time in seconds]
        (tmp_path / f"{day}.csv").write_text("\n".join(["time,user_id,price,click,number", *rows]) + "\n")
    columns = [{"name": name, "type": "integer"} for name in ("user_id", "price", "click", "number")]
    columns[1]["type"] = "number"
    data = declare(columns, impression="number", source={"path": "*.csv"})
    parts = read_groups(data, tmp_path, tmp_path / "many", 4)
    joined = join_raw_log(data, parts, tmp_path / "raw", RUNTIME)
    read = {path.stat().st_ino for part in parts for path in DayTable.open(part, RAW_INDEX).paths()}
    assert {path.stat().st_ino for path in joined.paths()} <= read


def test_rows_whose_order_is_the_clock_are_counted_first(tmp_path: Path, declare: Declare) -> None:
    for file in range(4):
        rows = [f'{row % 9},"{row}",{row % 2}' if row % 5 else f"{row % 9},{row},{row % 2}" for row in range(700)]
        blank = ["", "\r", ""] if file % 2 else []
        quoted = rows if file > 1 else [row.replace('"', "") for row in rows]
        text = "\n".join([rows[0], *blank, "bad,row" if file == 2 else rows[1], *quoted, *blank])
        (tmp_path / f"log-{file}.csv").write_text(text + ("\n" if file else ""))
    data = declare(
        source={"path": "log-*.csv", "header": False}, clock={"kind": "row_order", "days": 5},
        rules={**LOOSE, "max_duplicate_share": 1.0},
    )  # fmt: skip
    groups = partition_files(data, tmp_path, RUNTIME, 4)
    assert [(group.first_row, group.rows, group.total_rows) for group in groups] == [
        (702 * number, 702, 2_808) for number in range(4)
    ]
    assert in_groups(data, tmp_path, tmp_path / "many", 4) == in_one_pod(data, tmp_path, tmp_path / "one")


def test_vectors_of_later_files_are_judged_by_the_first_one(tmp_path: Path, declare: Declare) -> None:
    columns = [{"name": "click", "type": "integer"}, {"name": "query", "type": "vector"}]
    for file, width in enumerate((2, 3, 2, 2)):
        rows = [
            {"time": int(START.timestamp()) + file * 86_400 + row, "click": row % 2, "query": [1.0] * width}
            for row in range(40)
        ]
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = declare(columns, source={"path": "*.jsonl"}, rules=LOOSE | {"max_duplicate_share": 1.0}, split=SHORT)
    assert [group.widths for group in partition_files(data, tmp_path, RUNTIME, 4)] == [{"query": 2}] * 4
    assert in_groups(data, tmp_path, tmp_path / "many", 4) == in_one_pod(data, tmp_path, tmp_path / "one")
    assert DayTable.open(tmp_path / "many/valid", Files.LOG).notes["by_rule"] == {"type": 40}


def test_lists_that_become_rows_are_numbered_through_all_groups(tmp_path: Path, declare: Declare) -> None:
    columns = [{"name": "click", "type": "integer"}, {"name": "thing", "type": "integer"}]
    for file in range(3):
        rows = [f"{int(START.timestamp()) + file * 86_400 + row},{row} {row + 1} 777,1 0 0" for row in range(50 + file)]
        (tmp_path / f"{file}.csv").write_text("\n".join(["time,thing,click", *rows]) + "\n")
    explode = {"columns": ["thing", "click"], "separator": " "}
    data = declare(columns, source={"path": "*.csv"}, explode=explode, rules=LOOSE, split=SHORT)
    assert in_groups(data, tmp_path, tmp_path / "many", 3) == in_one_pod(data, tmp_path, tmp_path / "one")
    rows = DayTable.open(tmp_path / "many/valid", Files.LOG).scan().collect()
    assert rows[Columns.IMPRESSION].to_list() == list(range(3 * (50 + 51 + 52)))


@pytest.mark.parametrize("rule", ["sorted", "generated", "one file", "no vector in the first file"])
def test_what_takes_the_rows_before_is_read_by_one_pod(rule: str, tmp_path: Path, declare: Declare) -> None:
    sections: dict[str, Any] = {"source": {"path": "*.jsonl"}}
    columns = [{"name": "click", "type": "integer"}, {"name": "query", "type": "vector"}]
    for file in range(2):
        row = {"time": int(START.timestamp()), "click": 1, "query": [1.0] if file or rule == "sorted" else None}
        (tmp_path / f"{file}.jsonl").write_text(json.dumps(row) + "\n")
    if rule == "sorted":
        sections["rules"] = {"sorted": True}
    if rule == "generated":
        sections["source"] = {"kind": "generated", "days": 8}
        columns = [{"name": "is_click", "type": "integer"}]
        sections |= {"label": "is_click", "clock": {"kind": "column", "column": "event_time", "unit": "us"}}
    if rule == "one file":
        (tmp_path / "1.jsonl").unlink()
    data = declare(columns, **sections)
    assert partition_files(data, tmp_path, RUNTIME, 3) == [FileGroup(number=0, groups=1)]


def test_rows_collected_from_live_traffic_follow_those_of_all_groups(csv: Callable[..., Data], tmp_path: Path) -> None:
    live = {"outcome_delay": "1h", "live": {"collect": True}, "impression": "number"}
    late = START + timedelta(days=5)
    collected = publish(f"{tmp_path}/stores#1", *(late + timedelta(days=day) for day in range(2)), lost=1)
    data = csv(**live)
    one_pod = in_one_pod(data, tmp_path / "in", tmp_path / "one", collected)
    assert in_groups(data, tmp_path / "in", tmp_path / "many", 3, collected) == one_pod
    early = publish(f"{tmp_path}/stores#1", START + timedelta(days=3, hours=5))
    messages = []
    for make in (in_one_pod, lambda *given: in_groups(*given[:3], 3, given[3])):
        with pytest.raises(DataError, match="the log and the rows collected from live traffic overlap") as raised:
            make(data, tmp_path / "in", tmp_path / "again", early)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def error_of(make: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as raised:
        make()
    return str(raised.value)


def break_header(text: str) -> str:
    return text.replace("price", "prize", 1)


def break_type(text: str) -> str:
    head, *rows = text.splitlines()
    return "\n".join([head, *(row.replace(",", ",x", 2) for row in rows)])


@pytest.mark.parametrize("broken", [break_header, break_type])
def test_a_wrong_file_is_told_as_by_one_pod(
    broken: Callable[[str], str], csv: Callable[..., Data], tmp_path: Path
) -> None:
    file = tmp_path / "in/log-4.csv"
    file.write_text(broken(file.read_text()))
    data = csv()
    one_pod = error_of(lambda: ingest(data, tmp_path / "in", tmp_path / "raw", RUNTIME))
    assert one_pod.startswith("log-4.csv")
    assert error_of(lambda: read_groups(data, tmp_path / "in", tmp_path, 3)) == one_pod


def test_a_refused_log_is_told_as_by_one_pod(csv: Callable[..., Data], tmp_path: Path) -> None:
    data = csv(rules={"min_rows": 10_000, "max_quarantined_share": 0.0001, "max_volume_ratio": 1.01})
    messages = []
    for name, make in (("one", in_one_pod), ("many", lambda *given: in_groups(*given, 3))):
        with pytest.raises(LogRefusedError) as raised:
            make(data, tmp_path / "in", tmp_path / name)
        messages.append(str(raised.value).replace(f"/{name}/", "/here/"))
    assert messages[0] == messages[1]
    assert "rules.min_rows" in messages[0] and "are in" in messages[0]
    one_pod, many = (file_digests(tmp_path / name / "quarantine") for name in ("one", "many"))
    assert one_pod == many != {}
    assert not (tmp_path / "many/valid").exists()


def test_a_log_without_rows_is_told_as_by_one_pod(tmp_path: Path, declare: Declare) -> None:
    for file in range(3):
        (tmp_path / f"log-{file}.csv").write_text("time,user_id,price,click\n")
    data = declare(source={"path": "log-*.csv"})
    one_pod = error_of(lambda: ingest(data, tmp_path, tmp_path / "raw", RUNTIME))
    parts = read_groups(data, tmp_path, tmp_path / "many", 3)
    assert error_of(lambda: join_raw_log(data, parts, tmp_path / "raw", RUNTIME)) == one_pod
    assert one_pod.endswith("log-*.csv: the log has no rows")


def test_a_group_that_is_missing_or_twice_there_is_refused(csv: Callable[..., Data], tmp_path: Path) -> None:
    data = csv()
    parts = read_groups(data, tmp_path / "in", tmp_path / "many", 3)
    for given, message in ((parts[:2], r"\[0, 1\]"), ([*parts[:2], parts[0]], r"\[0, 0, 1\]")):
        with pytest.raises(DataError, match=rf"got {message}, wanted each of \[0, 1, 2\] once; read the files again"):
            join_raw_log(data, given, tmp_path / "raw", RUNTIME)
    join_raw_log(data, parts, tmp_path / "raw", RUNTIME)
    first = DayTable.open(tmp_path / "raw", RAW_INDEX).days[0].day
    validate_days(data, tmp_path / "raw", [first], tmp_path / "first", RUNTIME)
    with pytest.raises(DataError, match=r"2024-01-02 is in no group of days"):
        join_valid_log(data, tmp_path / "raw", [tmp_path / "first"], tmp_path / "v", tmp_path / "q", RUNTIME, NOW)


def test_a_file_that_changed_since_its_rows_were_counted_is_refused(tmp_path: Path, declare: Declare) -> None:
    for file in range(2):
        (tmp_path / f"log-{file}.csv").write_text("user_id,price,click\n" + "1,1.5,0\n" * 30)
    data = declare(source={"path": "log-*.csv"}, clock={"kind": "row_order", "days": 5})
    groups = partition_files(data, tmp_path, RUNTIME, 2)
    (tmp_path / "log-0.csv").write_text("user_id,price,click\n" + "1,1.5,0\n" * 31)
    parts = [tmp_path / "part-0", tmp_path / "part-1"]
    for part, group in zip(parts, groups, strict=True):
        ingest_files(data, tmp_path, group, part, RUNTIME)
    with pytest.raises(DataError, match=r"log-0\.csv and the files after it: 31 rows were read, 30 counted before"):
        join_raw_log(data, parts, tmp_path / "raw", RUNTIME)
    (tmp_path / "log-1.csv").unlink()
    with pytest.raises(DataError, match=r"log-1\.csv: the file was there when this run began and is gone"):
        ingest_files(data, tmp_path, groups[1], tmp_path / "part", RUNTIME)


def test_a_group_opens_its_own_files_and_the_first_one_the_side_tables_too(
    csv: Callable[..., Data], tmp_path: Path
) -> None:
    data, folder = csv(), tmp_path / "in"
    groups = partition_files(data, folder, RUNTIME, 5)
    needed = [sorted(path.name for path in group.needed(data, folder)) for group in groups]
    assert needed == [["log-0.csv", "users.csv"], *([f"log-{file}.csv"] for file in range(1, 5))]
    assert needed_to_partition(data, folder) == {folder / "log-0.csv"}
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    for path in set(elsewhere.iterdir()) - groups[3].needed(data, elsewhere):
        size = path.stat().st_size
        path.write_bytes(b"\0" * size)
    ingest_files(data, elsewhere, groups[3], tmp_path / "part", RUNTIME)
    assert DayTable.open(tmp_path / "part", RAW_INDEX).notes["read_rows"] == 1_301


def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(ShortlistError, match=r"group of files: .* in '\{\"number\": \"x\"\}'"):
        FileGroup.read('{"number": "x"}')


def test_digests_of_another_polars_are_refused() -> None:
    digest = RowDigest()
    assert str(RowDigest.parse(str(digest))) == str(digest)
    with pytest.raises(ShortlistError, match=r"made with Polars 0\.1, this step has .*; run again without the cache"):
        RowDigest.parse("0.1:00ff")
