"""What is asked of the benchmarks' results, and what a reader is told of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as everything
from benchmarks.bench import Line, record, show
from benchmarks.targets import TARGETS, Target, exit_code, missed_names, summary

FAST = Target("loading", "loader", "load", "ours, batch *", "value", ">=", 9.0)
SMALL = Target("memory", "memory", "memory", "*", "ratio", "<=", 1.2)

PROGRAM = """
import json, os, pathlib
path = pathlib.Path({path!r})
entry = {entry} | dict(run=os.environ["SHORTLIST_BENCHMARK_RUN"])
path.write_text(json.dumps([*json.loads(path.read_text()), entry]))
"""


def entry(work: str, name: str, value: float, ratio: float | None = None) -> dict[str, Any]:
    return Line(work, name, value, "M rows/s", "Parquet", ratio)._asdict()


def test_a_row_is_told_by_its_worst_entry() -> None:
    entries = [entry("load", f"ours, batch {size}", rate, 2.5) for size, rate in ((1, 12.0), (2, 8.75), (3, 10.0))]
    (row,) = summary(entries, [FAST])
    assert row == ("loading", "8.75 M rows/s", "Parquet", "2.50", ">= 9 M rows/s", "no")
    (row,) = summary([entries[0], entries[2]], [FAST])
    assert (row.own_figure, row.reached) == ("10 M rows/s", "yes")


def test_a_figure_that_is_not_there_is_no_success() -> None:
    measured = entry("memory", "ingest", 300.0)
    assert [row.reached for row in summary([measured], [FAST, SMALL])] == ["not measured", "no"]
    assert missed_names([Line("memory", "ingest", 300.0, "MiB")], [SMALL]) == ["ingest"]


@pytest.mark.parametrize(("ratio", "missed"), [(1.19, []), (1.2, []), (1.21, ["ingest"])])
def test_a_line_above_its_limit_is_named(ratio: float, missed: list[str]) -> None:
    assert missed_names([Line("memory", "ingest", 300.0, "MiB", "one time", ratio)], [SMALL]) == missed


def test_a_program_says_what_was_asked_of_each_line_that_is_not_as_good(capsys: pytest.CaptureFixture[str]) -> None:
    good, slow = Line("load", "ours, batch 1", 9.5, "M rows/s"), Line("load", "ours, batch 2", 8.751, "M rows/s")
    large = Line("memory", "ingest", 300.0, "MiB", "one time", 1.31)
    assert exit_code([good, slow, large], [FAST, SMALL]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "Below what is asked: 'ours, batch 2': 8.751 M rows/s; >= 9 M rows/s",
        "Below what is asked: 'ingest': ratio 1.31; ratio <= 1.2",
    ]
    assert exit_code([good], [FAST, SMALL]) == 0
    assert capsys.readouterr().out == ""


def test_every_asked_figure_belongs_to_a_program() -> None:
    folder = Path(everything.__file__).parent
    assert {one.program for one in TARGETS if not (folder / f"{one.program}.py").exists()} == set()
    assert len({one.row for one in TARGETS}) == len(TARGETS)


def test_a_program_that_fails_hides_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first program stops with an error, the second measures too little, the third reaches what is asked."""
    results, package = tmp_path / "latest.json", tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "broken.py").write_text("raise SystemExit('no disk')\n")
    for name, value in (("slow", 5.0), ("quick", 11.0)):
        (package / f"{name}.py").write_text(PROGRAM.format(path=str(results), entry=entry("load", name, value)))
    record([Line("load", "broken", 99.0, "M rows/s")], results)  # of another day
    targets = [Target(name, name, "load", name, "value", ">=", 9.0) for name in ("broken", "slow", "quick")]
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    monkeypatch.setattr(everything, "RESULTS", results)
    monkeypatch.setattr(everything, "PROGRAMS", ("broken", "slow", "quick"))
    monkeypatch.setattr(everything, "TARGETS", targets)
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert everything.main() == 1
    said = capfd.readouterr()
    assert "no disk" in said.err
    words = [line.split() for line in said.out.splitlines()]
    assert {"yes", "no", "measured"} <= {line[-1] for line in words if line}
    assert "Below what is asked: slow." in said.out
    assert "Measured nothing: broken;" in said.out
    assert {one["name"] for one in json.loads(results.read_text())} == {"broken", "slow", "quick"}


def test_the_table_fits_a_hundred_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show("Loader", [Line("load", "ours, " * 20, 252_092.886, "rows/s", "plain Parquet and numpy " * 4, 1.5, 0.25)])
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 100
    assert any("252,093" in line and "1.50" in line for line in printed)


def test_results_of_another_processor_are_kept_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scoring in bf16 was called reached on a processor that has none."""
    results = tmp_path / "latest.json"
    monkeypatch.setattr("benchmarks.bench.processor_features", lambda: ["avx2", "avx512_bf16"])
    record([Line("score", "bf16", 3.0, "ms"), Line("score", "fp32", 5.0, "ms")], results)
    bf16 = Target("scoring, bf16", "serve", "score", "bf16", "value", "<=", 3.5, frozenset({"avx512_bf16"}))
    fp32 = Target("scoring, fp32", "serve", "score", "fp32", "value", "<=", 6.0)
    monkeypatch.setattr("benchmarks.bench.processor_features", lambda: ["avx2"])
    monkeypatch.setattr(everything, "processor_features", lambda: ["avx2"])
    monkeypatch.setattr(everything, "RESULTS", results)
    assert everything.measurements_of_processor() == []
    record([Line("score", "fp32", 9.0, "ms")], results)
    assert len(json.loads(results.read_text())) == 3
    rows = summary(everything.measurements_of_processor(), [bf16, fp32], ["avx2"])
    assert [(row.own_figure, row.reached) for row in rows] == [("", "cannot run"), ("9 ms", "no")]
    everything.show(rows)
    assert "This processor cannot run: scoring, bf16." in capsys.readouterr().out


def test_a_work_that_is_recorded_as_a_whole_keeps_no_older_name(tmp_path: Path) -> None:
    results = tmp_path / "latest.json"
    record([Line("lists", "given up", 0.4, ""), Line("load", "ours", 9.0, "s")], results, "another machine")
    record([Line("lists", "ours", 0.6, "")], results, whole="lists")
    assert [(one["work"], one["name"]) for one in json.loads(results.read_text())] == [
        ("lists", "ours"),
        ("load", "ours"),
    ]
