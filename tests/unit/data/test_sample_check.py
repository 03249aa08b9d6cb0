"""The check of a log before a run names all problems at once."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from shortlist.cli import main
from shortlist.data.sample_check import check_sample
from shortlist.spec.data import Data

ROOT = Path(__file__).parents[3]
DAY = 86_400
START = 1_760_000_000 // DAY * DAY
Change = Callable[[pl.DataFrame], pl.DataFrame]


def build_data(**changes: Any) -> Data:
    spec = yaml.safe_load((ROOT / "tests/specs/valid/minimal.yaml").read_text())
    side = {
        "name": "items", "path": "items.csv", "key": "item_id",
        "columns": [{"name": "item_id", "type": "integer"}, {"name": "maker", "type": "string"}],
    }  # fmt: skip
    return Data.model_validate({**spec["data"], "side_tables": [side], **changes})


def log(rows: int = 3_000, days: int = 5) -> pl.DataFrame:
    draw = random.Random(3)
    return pl.DataFrame(
        {
            "user_id": [draw.randrange(50) for _ in range(rows)],
            "item_id": [draw.randrange(20) for _ in range(rows)],
            "price": [draw.random() for _ in range(rows)],
            "clicked": [draw.randrange(2) for _ in range(rows)],
            "time": [START + number * DAY * days // rows for number in range(rows)],
        }
    )


def items(count: int = 20) -> pl.DataFrame:
    return pl.DataFrame({"item_id": list(range(count)), "maker": ["m"] * count})


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: pl.DataFrame, side: pl.DataFrame) -> Path:
        rows.write_csv(tmp_path / "log.csv")
        side.write_csv(tmp_path / "items.csv")
        return tmp_path

    return write


def test_a_log_that_matches_its_spec_has_no_problems(write: Callable[..., Path]) -> None:
    report = check_sample(build_data(), write(log(), items()))
    assert report[:3] == ((), 3_000, True)
    (notice,) = report.notices
    assert notice.startswith("The log: its newest row is of 2025-10-13, ")
    assert "days ago; declare data.rules.max_age_hours to refuse a log that is too old, or `off: [freshness]`" in notice
    undated_data = build_data(rules={"off": ["freshness"]})
    assert check_sample(undated_data, write(log(), items())).notices == ()


def test_a_condition_that_no_row_fulfils_is_named_with_the_values_that_are_there(write: Callable[..., Path]) -> None:
    rows = log().with_columns(item_id=pl.when(pl.col("item_id") > 2).then(2).otherwise(0))
    conditions = ["item_id = 2", "item_id = 7", "price > 2", "maker = 'x'", "cold_user"]
    data = build_data(rules={"off": ["freshness"]})
    usual, number = check_sample(data, write(rows, items()), conditions=conditions).notices
    assert usual == 'No row of the 3,000 that were read fulfils "item_id = 7": item_id has 2, 0.'
    assert number.startswith('No row of the 3,000 that were read fulfils "price > 2": price has 0.')


def test_all_undeclared_columns_of_all_tables_are_named(write: Callable[..., Path]) -> None:
    log_with_extra_columns = log().with_columns(pl.lit(1).alias(f"extra{number}") for number in range(12))
    problems, rows, *_ = check_sample(
        build_data(), write(log_with_extra_columns, items().with_columns(color=pl.lit("red")))
    )
    assert len(problems) == 2
    assert all(f"'extra{number}'" in problems[0] for number in range(12)) and "is not declared" in problems[0]
    assert "side table 'items'" in problems[1] and "'color' is not declared" in problems[1]
    assert rows == 3_000  # what is only undeclared keeps nobody from judging the rest


def test_missing_columns_wrong_types_and_the_clock_are_named_together(write: Callable[..., Path]) -> None:
    wrong_log = log().drop("user_id").with_columns(time=pl.col("time") * 1_000)
    problems, rows, *_ = check_sample(build_data(), write(wrong_log, items().with_columns(item_id=pl.lit("x"))))
    assert "declared column 'user_id' is missing" in problems[0]
    assert rows == 0
    assert any("items.csv" in problem and "not of type integer: item_id: got 'x'" in problem for problem in problems)
    (clock,) = check_sample(build_data(), write(log().with_columns(time=pl.col("time") * 1_000), items())).problems
    assert "the unit of clock column 'time' is probably wrong" in clock and "declare unit: ms" in clock


def test_a_side_table_without_most_keys_is_named_before_a_run(write: Callable[..., Path]) -> None:
    (problem,) = check_sample(build_data(), write(log(), items(4))).problems
    assert problem.startswith("side table 'items': ") and "find their item_id; its min_coverage is 50.0%" in problem


@pytest.mark.parametrize("most_rows", [1_000, 100_000])
def test_a_split_that_needs_more_days_than_the_log_has_is_named(most_rows: int, write: Callable[..., Path]) -> None:
    folder = write(log(), items())
    log().write_parquet(folder / "log.parquet")
    data = build_data(split={"test_days": 5}, source={"kind": "files", "path": "log.parquet"})
    report = check_sample(data, folder, most_rows)
    (problem,) = report.problems
    assert "the log has 5 day(s), the split needs 8" in problem
    assert report.is_complete == (most_rows == 100_000)


def test_the_first_rows_of_a_longer_log_are_validated(write: Callable[..., Path]) -> None:
    folder = write(log(), items())
    log().write_parquet(folder / "log.parquet")
    assert check_sample(build_data(source={"kind": "files", "path": "log.parquet"}), folder, 1_000)[:3] == (
        (),
        1_000,
        False,
    )


def test_a_request_id_as_impression_is_refused_with_advice(write: Callable[..., Path]) -> None:
    data = build_data(impression="price", columns=[
        {"name": "user_id", "type": "integer"}, {"name": "item_id", "type": "integer"},
        {"name": "price", "type": "integer"}, {"name": "clicked", "type": "integer"},
    ])  # fmt: skip
    requests = log().with_columns(price=pl.int_range(pl.len()) // 10)
    problems = check_sample(data, write(requests, items())).problems
    (quarantined,) = [problem for problem in problems if "are quarantined (duplicate_impression" in problem]
    assert "`impression` names one row: a key that several rows share is data.request" in quarantined


def test_all_missing_files_are_named(tmp_path: Path) -> None:
    problems = check_sample(build_data(), tmp_path).problems
    assert ["log.csv" in problems[0], "items.csv" in problems[1]] == [True, True]


def test_the_check_command_counts_the_rows_that_a_run_leaves_out(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = pl.when(pl.int_range(pl.len()) == 70).then(pl.lit("-")).otherwise(pl.col("clicked").cast(pl.String))
    folder = write(log().with_columns(broken.alias("clicked")), items())
    spec = str(ROOT / "tests/specs/valid/minimal.yaml")
    monkeypatch.setattr(sys, "argv", ["shortlist", "check", spec, "--data", str(folder)])
    with pytest.raises(SystemExit):
        main()
    assert "all 3,000 rows match the spec, but for 1 to be quarantined" in capsys.readouterr().out


def test_the_check_command_lists_all_problems_and_exits_with_2(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(log().with_columns(a=1, b=2), items())
    command = ["shortlist", "check", str(ROOT / "tests/specs/valid/minimal.yaml"), "--data", str(folder)]
    for extra, code in ((["--set", "data.rules.undeclared_columns=ignore"], 0), ([], 2)):
        monkeypatch.setattr(sys, "argv", [*command, *extra])
        with pytest.raises(SystemExit) as exit_error:
            main()
        assert int(exit_error.value.code or 0) == code
    output = capsys.readouterr()
    assert "all 3,000 rows match the spec" in output.out
    assert "1 problem(s)\n  1. log.csv (the log): column 'a', 'b' is not declared" in output.err


COMMA_ADVICE = "; they have a decimal comma: declare decimal_comma: true"


@pytest.mark.parametrize(("price", "advice"), [("{:.2f}", COMMA_ADVICE), ("about {:.2f}", "")])
def test_a_decimal_comma_is_recognised_where_it_is_not_declared(tmp_path: Path, price: str, advice: str) -> None:
    texts = [price.format(value).replace(".", ",") for value in log()["price"]]
    log().with_columns(price=pl.Series(texts)).write_csv(tmp_path / "log.csv", separator=";")
    data = build_data(source={"kind": "files", "path": "log.csv", "delimiter": ";"}, side_tables=[])
    (problem,) = check_sample(data, tmp_path).problems
    assert "price" in problem and problem.endswith(f"wanted a number{advice}")
