"""A run says what came into the log since the run before, and what else changed when nothing did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from pipelines.compile import COMPILED
from shortlist.runs.growth import NEVER_REUSED, describe_growth


def write_run(
    runs: Path,
    name: str,
    valid: int | None,
    newest_day: str | None,
    spec: str = "shop",
    code: str = "",
    gate_code: str = "",
    **sections: Any,
) -> Path:
    (runs / name).mkdir()
    (runs / name / "spec.json").write_text(json.dumps(sections))
    (runs / name / "arguments.json").write_text(json.dumps({"code": code, "gate_code": gate_code}))
    rows = {"valid": valid, "newest_day": newest_day}
    steps = {"ingest": {"cached": True}, "find_champion": {"cached": False}, "train_trees": {"cached": False}}
    (runs / name / "summary.json").write_text(json.dumps({"spec": spec, "rows": rows, "steps": steps}))
    return runs / name


def test_a_growing_log_is_measured_and_one_that_stands_still_is_named(tmp_path: Path) -> None:
    first = write_run(tmp_path, "20260301-020000-shop", 70_000, "2026-02-28")
    assert describe_growth(first) == ""
    write_run(tmp_path, "20260301-030000-other", 5, "2026-02-28", spec="other")
    write_run(tmp_path, "20260301-040000-shop", None, None)  # stopped before the log was read
    (tmp_path / "20260301-050000-shop").mkdir()
    second = write_run(tmp_path, "20260302-020000-shop", 75_120, "2026-03-01")
    assert describe_growth(second) == (
        "New since run 20260301-020000-shop: 5,120 valid rows; the newest day is 2026-03-01, it was 2026-02-28."
    )
    third = write_run(tmp_path, "20260303-020000-shop", 75_120, "2026-03-01")
    (tmp_path / "latest").symlink_to(third)
    assert describe_growth(third) == (
        "The log is as in run 20260302-020000-shop: 75,120 valid rows, the newest day is still 2026-03-01. If it should"
        " have grown, look at what writes it, and whether data.source.path reads its new files."
    )
    fewer = write_run(tmp_path, "20260304-020000-shop", 75_000, "2026-03-01")
    assert describe_growth(fewer).startswith(
        "Nothing came into the log since run 20260303-020000-shop: 75,000 valid rows, 120 fewer, the newest day is"
    )


def test_days_that_went_and_days_that_came_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path, "20260301-020000-shop", 70_000, "2026-02-28")
    lost = write_run(tmp_path, "20260302-020000-shop", 60_000, "2026-02-26")
    assert describe_growth(lost).startswith(
        "Nothing came into the log since run 20260301-020000-shop: 60,000 valid rows, 10,000 fewer, the newest day is"
        " 2026-02-26, it was 2026-02-28. "
    )
    rolled = write_run(tmp_path, "20260303-020000-shop", 59_000, "2026-03-02")  # the oldest day was removed
    assert describe_growth(rolled) == (
        "New since run 20260302-020000-shop: rows of later days, 59,000 valid rows in all, 1,000 fewer; the newest day"
        " is 2026-03-02, it was 2026-02-26."
    )
    late = write_run(tmp_path, "20260304-020000-shop", 59_500, "2026-03-02")
    assert describe_growth(late).endswith(": 500 valid rows; the newest day is still 2026-03-02.")


def test_after_an_edit_of_the_spec_the_log_is_not_blamed(tmp_path: Path) -> None:
    rows = 70_000, "2026-02-28"
    write_run(tmp_path, "20260301-020000-shop", *rows, models={"trees": {"rounds": 10}})
    edited = write_run(tmp_path, "20260301-030000-shop", *rows, models={"trees": {"rounds": 20}})
    assert describe_growth(edited) == (
        "The log is as in run 20260301-020000-shop: 70,000 valid rows, the newest day is still 2026-02-28. Changed"
        " since: models; steps that ran again: Train trees."
    )
    newer = write_run(tmp_path, "20260301-033000-shop", *rows, code="2", models={"trees": {"rounds": 20}})
    assert describe_growth(newer).endswith("Changed since: code; steps that ran again: Train trees.")
    gate = write_run(tmp_path, "20260301-034500-shop", *rows, code="2", gate_code="3", models={"trees": {"rounds": 20}})
    assert "Changed since: gates of the project and of packages; steps" in describe_growth(gate)
    grown = write_run(tmp_path, "20260301-040000-shop", 70_500, "2026-02-28", models={})
    assert describe_growth(grown).startswith("New since run 20260301-034500-shop: 500 valid rows")
    stricter = write_run(tmp_path, "20260301-050000-shop", 71_000, "2026-02-28", models={}, data={"rules": []})
    assert describe_growth(stricter) == (
        "The spec's data section was edited since run 20260301-040000-shop: 71,000 valid rows, 500 more; the newest day"
        " is still 2026-02-28."
    )


def test_a_generated_log_without_collected_rows_is_not_expected_to_grow(tmp_path: Path) -> None:
    generated = {"source": {"kind": "generated"}}
    write_run(tmp_path, "20260301-020000-demo", 70_000, "2026-02-28", data=generated)
    assert describe_growth(write_run(tmp_path, "20260301-030000-demo", 70_000, "2026-02-28", data=generated)) == ""


def test_steps_that_always_run_are_those_without_a_cache() -> None:
    graph = next(yaml.load_all((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader))
    groups = [graph["root"], *graph["components"].values()]
    tasks = {name: task for group in groups for name, task in group.get("dag", {}).get("tasks", {}).items()}
    uncached = {
        name.replace("-", "_") for name, task in tasks.items()
        if "dag" not in graph["components"][task["componentRef"]["name"]] and not task.get("cachingOptions")
    }  # fmt: skip
    assert uncached == NEVER_REUSED | {"record_gate_failures", "finalize_run"}  # the page shows neither
