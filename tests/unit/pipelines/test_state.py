"""What outlives a run, and how runs are told apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.state import State
from shortlist.config.runtime import Runtime
from shortlist.contracts import ShortlistError
from shortlist.features.place import place_in
from shortlist.stores import Stores


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


def test_a_laptop_is_referred_to_as_ever(tmp_path: Path) -> None:
    state = State.open(tmp_path)
    assert state.reference_for(Runtime()) == state.reference == f"{tmp_path}/stores#{state.stores_for(Runtime()).epoch}"


def test_a_missing_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHORTLIST_REDIS", raising=False)
    runtime = Runtime.model_validate({"online_store": {"kind": "redis"}})
    with pytest.raises(ShortlistError, match="the environment variable SHORTLIST_REDIS is not set"):
        State.open(tmp_path).stores_for(runtime)


def test_a_store_on_a_server_leaves_the_others_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    state = State.open(tmp_path)
    found = state.stores_for(Runtime.model_validate({"tracking": {"kind": "server"}}))
    assert (found.folder, found.tracking_variable) == (state.stores, "MLFLOW_TRACKING_URI")
    assert Stores.parse(str(found)) == found
    assert place_in(found, "demo").folder == state.stores / "feast/demo"
