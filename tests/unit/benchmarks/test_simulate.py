"""What is recorded of simulated rollouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import simulate
from benchmarks.targets import missed_names


def test_a_run_records_its_histories_its_rate_and_that_every_rule_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "RESULTS", tmp_path / "latest.json")
    monkeypatch.setattr("sys.argv", ["simulate", "--seconds", "0.05", "--seed", "7"])
    assert simulate.main() == 0
    found = {one["name"]: one["value"] for one in json.loads((tmp_path / "latest.json").read_text())}
    assert found["histories"] >= 1 and found["histories that break a rule"] == 0
    assert found["rate of one processor"] > 0


def test_the_rate_is_of_the_processor_s_time() -> None:
    values = {line.name: line.value for line in simulate.lines_of(600, 30.0, is_broken=True)}
    assert values["rate of one processor"] == 60 * 600 / 30
    assert values["histories that break a rule"] == 1


@pytest.mark.parametrize(("played", "missed"), [(5_000, []), (4_999, ["rate of one processor"])])
def test_one_processor_plays_10_000_rollouts_a_minute(played: int, missed: list[str]) -> None:
    assert missed_names(simulate.lines_of(played, 30.0, is_broken=False)) == missed


def test_a_broken_rule_misses_its_target() -> None:
    assert missed_names(simulate.lines_of(5_000, 30.0, is_broken=True)) == ["histories that break a rule"]
