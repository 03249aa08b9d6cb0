"""What outlives a run, and how runs are told apart."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipelines.state import State


def test_two_runs_in_one_second_have_their_own_folders(tmp_path: Path) -> None:
    state = State.open(tmp_path)
    assert len({state.new_run("demo") for _ in range(3)}) == 3


def test_latest_moves_to_the_newest_run(tmp_path: Path) -> None:
    state = State.open(tmp_path)
    first, second = state.new_run("demo"), state.new_run("demo")
    state.point_latest_at(first)
    state.point_latest_at(second)
    assert (tmp_path / "latest").resolve() == second


def test_results_cached_for_deleted_stores_are_not_reused(tmp_path: Path) -> None:
    before = State.open(tmp_path).reference
    assert State.open(tmp_path).reference == before
    shutil.rmtree(tmp_path / "stores")
    assert State.open(tmp_path).reference != before
