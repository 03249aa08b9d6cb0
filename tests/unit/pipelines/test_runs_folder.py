"""The runs folder: its stores and the names of its runs."""

from __future__ import annotations

import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from shortlist.cli.options import find_spec
from shortlist.contracts import ShortlistError
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.runs.runs_folder import RunsFolder, open_runs_folder, recalled_spec
from shortlist.spec.runtime import Runtime
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.project import project_root


def test_two_runs_in_one_second_have_their_own_folders(tmp_path: Path) -> None:
    state = RunsFolder.open(tmp_path)
    assert len({state.new_run("demo") for _ in range(3)}) == 3


def test_runs_and_stores_are_read_by_their_owner_alone(tmp_path: Path) -> None:
    state = RunsFolder.open(tmp_path / "runs")
    for folder in (state.root, state.stores, state.new_run("demo")):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_first_runs_at_the_same_moment_have_one_identity(tmp_path: Path) -> None:
    def begin(folder: Path, start: Barrier) -> tuple[str, Path]:
        start.wait()
        state = RunsFolder.open(folder)
        run = state.new_run("demo")
        state.point_latest_at(run)
        return state.reference, run

    for number in range(20):
        start = Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            run_id = list(pool.map(begin, [tmp_path / str(number)] * 4, [start] * 4))
        assert len({reference for reference, _ in run_id}) == 1
        assert len({run for _, run in run_id}) == 4
        assert (tmp_path / str(number) / "latest").resolve() in {run for _, run in run_id}


def test_latest_moves_to_the_newest_run(tmp_path: Path) -> None:
    state = RunsFolder.open(tmp_path)
    first, second = state.new_run("demo"), state.new_run("demo")
    state.point_latest_at(first)
    state.point_latest_at(second)
    assert (tmp_path / "latest").resolve() == second


def test_results_cached_for_deleted_stores_are_not_reused(tmp_path: Path) -> None:
    reference_before = RunsFolder.open(tmp_path).reference
    assert RunsFolder.open(tmp_path).reference == reference_before
    shutil.rmtree(tmp_path / "stores")
    assert RunsFolder.open(tmp_path).reference != reference_before


def test_local_stores_keep_their_short_form(tmp_path: Path) -> None:
    state = RunsFolder.open(tmp_path)
    assert (
        state.storage_parameter(Runtime())
        == state.reference
        == f"{tmp_path}/stores#{state.storage_config_for(Runtime()).epoch}"
    )


def test_a_missing_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHORTLIST_REDIS", raising=False)
    runtime = Runtime.model_validate({"online_store": {"kind": "redis"}})
    with pytest.raises(ShortlistError, match="the environment variable SHORTLIST_REDIS is not set"):
        RunsFolder.open(tmp_path).storage_config_for(runtime)


def test_a_store_on_a_server_leaves_the_others_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    state = RunsFolder.open(tmp_path)
    config = state.storage_config_for(Runtime.model_validate({"tracking": {"kind": "server"}}))
    assert (config.folder, config.tracking_variable) == (state.stores, "MLFLOW_TRACKING_URI")
    assert StorageConfig.parse(str(config)) == config
    assert spec_feast_store_location(config, "demo").folder == state.stores / "feast/demo"


REMOTE = {"profile": "cluster", "objects": {"kind": "bucket", "url": "s3://models/shortlist"}}


def test_a_fresh_machine_needs_no_runs_where_every_store_is_on_a_server(tmp_path: Path) -> None:
    assert open_runs_folder(tmp_path / "fresh", Runtime.model_validate(REMOTE)).root == tmp_path / "fresh"


@pytest.mark.parametrize("local_store", [{"database": {"kind": "files"}}, {"tracking": {"kind": "sqlite"}}])
def test_a_fresh_machine_is_refused_where_a_store_is_in_the_folder(
    local_store: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ShortlistError, match="no runs yet; make run first"):
        open_runs_folder(tmp_path / "fresh", Runtime.model_validate(REMOTE | local_store))


def test_a_spec_that_was_run_is_found_by_its_name(tmp_path: Path) -> None:
    spec = tmp_path / "own" / "shop-2.yaml"
    assert recalled_spec(tmp_path, "shop") is None
    RunsFolder.open(tmp_path).remember_spec("shop", spec)
    assert find_spec("shop", tmp_path) == spec
    assert find_spec("demo", tmp_path) == project_root() / "pipelines" / "specs" / "demo.yaml"
    assert find_spec("nobody", tmp_path) == project_root() / "pipelines" / "specs" / "nobody.yaml"
