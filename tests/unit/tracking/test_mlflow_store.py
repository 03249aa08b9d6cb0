import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shortlist.storage.artefacts import IntegrityError, write_json, write_manifest
from shortlist.tracking.lineage import Lineage
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.registry import RELEASE, UnknownVersionError
from shortlist.tracking.store_access import TrackingError, tracking_uri

LINEAGE = Lineage(
    spec_digest="5" * 16,
    data_digest="d" * 16,
    days={"train": "2026-01-06..2026-01-16", "test": "2026-01-18..2026-01-18"},
    code_version="c" * 16,
    git_commit="a" * 40,
)
HISTORY = [{"epoch": 1, "loss": 0.7, "auc": None}, {"epoch": 2, "loss": 0.6, "auc": 0.72}]
PARAMS = {"embedding_dim": 16, "top_mlp": [128, 64], "nested": {"dropout": 0.1}}
REPORT = {
    "passed": False,
    "gates": [
        {"name": "absolute", "passed": True, "reason": "0.74 >= 0.55", "numbers": {"auc": {"low": 0.73}}},
        {"name": "slices", "passed": False, "reason": "tab=1 fell", "numbers": {"tab=1": 0.6, "missing": None}},
    ],
}


@pytest.fixture(autouse=True)
def _no_server_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One store for all tests, each with its own spec: making the tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('runs')}/mlflow.db"


@pytest.fixture
def tracker(uri: str, request: pytest.FixtureRequest) -> Tracker:
    return Tracker(uri, request.node.name.replace("_", "-"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "trained", "one")


def make_model(folder: Path, weights: str) -> Path:
    folder.mkdir()
    write_json(folder / "model.json", {"kind": "dlrm"})
    (folder / "weights.safetensors").write_text(weights)
    write_manifest(folder)
    return folder


def make_reference(folder: Path, spec: str) -> Path:
    folder.mkdir()
    write_json(folder / "reference.json", {"spec": spec})
    write_manifest(folder)
    return folder


def log(tracker: Tracker, model: Path, lineage: Lineage = LINEAGE, **options: Any) -> str:
    return tracker.log_training(model, "dlrm", PARAMS, HISTORY, lineage, **options)


def run(tracker: Tracker, run_id: str) -> Any:
    return tracker._client.get_run(run_id)


def statuses(tracker: Tracker) -> list[str]:
    return sorted(run.info.status for run in tracker._client.search_runs([tracker._experiment]))


def test_a_run_holds_parameters_metrics_lineage_and_files(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "roc.svg").write_text("<svg/>")
    run_id = log(tracker, model, plots=tmp_path / "plots")
    logged = run(tracker, run_id)
    assert logged.info.status == "FINISHED"
    assert logged.data.params == {"embedding_dim": "16", "top_mlp": "[128, 64]", "nested.dropout": "0.1"}
    assert [(metric.step, metric.value) for metric in tracker._client.get_metric_history(run_id, "loss")] == [
        (1, 0.7),
        (2, 0.6),
    ]
    assert [(metric.step, metric.value) for metric in tracker._client.get_metric_history(run_id, "auc")] == [(2, 0.72)]
    assert logged.data.tags.items() >= {**LINEAGE.tags(), "kind": "dlrm"}.items()
    assert logged.data.tags["mlflow.source.git.commit"] == "a" * 40
    files = {file.path for place in ("model", "plots") for file in tracker._client.list_artifacts(run_id, place)}
    assert files == {"model/model.json", "model/weights.safetensors", "model/manifest.json", "plots/roc.svg"}


def test_files_lie_beside_the_database(tracker: Tracker, model: Path, uri: str) -> None:
    beside = Path(uri.removeprefix("sqlite:///")).parent / "mlflow"
    assert run(tracker, log(tracker, model)).info.artifact_uri.startswith(beside.as_uri())


def test_the_same_training_is_logged_once(tracker: Tracker, model: Path) -> None:
    first = log(tracker, model)
    assert log(tracker, model) == first
    assert statuses(tracker) == ["FINISHED"]


@pytest.mark.parametrize("changed", ["spec_digest", "data_digest", "code_version"])
def test_another_lineage_is_another_run(tracker: Tracker, model: Path, changed: str) -> None:
    assert log(tracker, model) != log(tracker, model, LINEAGE.model_copy(update={changed: "0" * 16}))


def test_another_model_of_the_same_lineage_is_another_run(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    assert log(tracker, model) != log(tracker, make_model(tmp_path / "other", "two"))


def test_a_run_left_by_a_killed_process_is_marked_and_logged_anew(tracker: Tracker, model: Path) -> None:
    finished = log(tracker, model)
    tracker._client.update_run(finished, status="RUNNING")  # as if the process had died before the end
    second_run_id = log(tracker, model)
    assert second_run_id != finished
    assert statuses(tracker) == ["FINISHED", "KILLED"]


def test_a_run_that_fails_does_not_look_finished(
    tracker: Tracker, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(tracker._client, "log_artifacts", full)
        with pytest.raises(OSError, match="No space left"):
            log(tracker, model)
    log(tracker, model)
    assert statuses(tracker) == ["FAILED", "FINISHED"]


def test_a_model_changed_after_training_is_not_logged(tracker: Tracker, model: Path) -> None:
    (model / "weights.safetensors").write_text("tampered")
    with pytest.raises(IntegrityError, match=r"weights\.safetensors: changed after it was written"):
        log(tracker, model)
    assert statuses(tracker) == []


def test_gates_leave_tags_numbers_and_their_report(tracker: Tracker, model: Path) -> None:
    run_id = log(tracker, model)
    tracker.log_gates(run_id, REPORT)
    tracker.log_gates(run_id, REPORT)  # a second time adds nothing
    logged = run(tracker, run_id)
    gates = {name: value for name, value in logged.data.tags.items() if name.startswith("gate")}
    assert gates == {"gates": "held", "gate.absolute": "passed", "gate.slices": "tab=1 fell"}
    assert logged.data.metrics.items() >= {"gate.absolute.auc.low": 0.73, "gate.slices.tab_1": 0.6}.items()
    assert len(tracker._client.get_metric_history(run_id, "gate.absolute.auc.low")) == 1
    assert logged.info.status == "FINISHED"
    report = Path(tracker._client.download_artifacts(run_id, "gates.json"))
    assert json.loads(report.read_text()) == REPORT


def test_a_logged_model_that_is_judged_again_has_its_newest_numbers(tracker: Tracker, model: Path) -> None:
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    run_id, client = log(tracker, model), tracker._client
    logged = client.create_logged_model(tracker._experiment, "trees", run_id)
    client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, 0)])
    for auc in (0.73, 0.73, 0.71, 0.73):  # against one champion, twice, and then against two others
        tracker.log_metrics(run_id, {"gate": {"auc": auc, "rows": 900}})
    assert run(tracker, run_id).data.metrics == {
        **run(tracker, run_id).data.metrics,
        "gate.auc": 0.73,
        "gate.rows": 900,
    }
    assert [metric.value for metric in client.get_metric_history(run_id, "gate.auc")] == [0.73, 0.71, 0.73]
    assert len(client.get_metric_history(run_id, "gate.rows")) == 1


def test_metrics_and_files_can_be_added_to_a_finished_run(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "report.html").write_text("<p>")
    run_id = log(tracker, model)
    tracker.log_metrics(run_id, {"test": {"auc": 0.74, "note": "text"}})
    tracker.log_files(run_id, tmp_path / "page", "page")
    assert run(tracker, run_id).data.metrics["test.auc"] == 0.74
    assert [file.path for file in tracker._client.list_artifacts(run_id, "page")] == ["page/report.html"]


def test_many_parameters_and_metrics_fit(tracker: Tracker, model: Path) -> None:
    history = [{"round": number, "loss": 1 / number} for number in range(1, 1_002)]
    params = {f"p{number}": number for number in range(101)} | {"long": "x" * 7_000}
    run_id = tracker.log_training(model, "xgboost", params, history, LINEAGE)
    assert len(run(tracker, run_id).data.params) == 101 + 1
    assert len(tracker._client.get_metric_history(run_id, "loss")) == 1_001


def test_runs_are_children_of_the_run_that_kubeflow_opened(
    tracker: Tracker, model: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tracker._client.create_run(tracker._experiment).info
    monkeypatch.setenv("MLFLOW_RUN_ID", parent.run_id)
    child_tracker = Tracker(uri, "some-other-spec")
    logged = run(child_tracker, log(child_tracker, model))
    assert logged.info.experiment_id == parent.experiment_id
    assert logged.data.tags["mlflow.parentRunId"] == parent.run_id


def test_a_deleted_experiment_is_restored(tracker: Tracker, model: Path, uri: str) -> None:
    log(tracker, model)
    name = tracker._client.get_experiment(tracker._experiment).name
    tracker._client.delete_experiment(tracker._experiment)
    assert Tracker(uri, name)._experiment == tracker._experiment
    assert tracker._client.get_experiment(tracker._experiment).lifecycle_stage == "active"


def test_there_is_no_champion_before_the_first(tracker: Tracker, model: Path) -> None:
    assert tracker.registry.champion() is None
    tracker.registry.register(log(tracker, model))
    assert tracker.registry.champion() is None  # a version alone is none either


def test_the_champion_comes_with_its_verified_files(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    run_id = log(tracker, model)
    version = tracker.registry.register(run_id, {"blessed": "yes"})
    tracker.registry.set_alias("champion", version)
    champion = tracker.registry.champion(tmp_path / "fetched")
    assert champion is not None
    assert (champion.version, champion.run_id, champion.kind) == (1, run_id, "dlrm")
    assert (champion.folder / "weights.safetensors").read_text() == "one"
    tags = tracker._client.get_model_version(tracker.registry.name, "1").tags
    assert tags.items() >= {**LINEAGE.tags(), "kind": "dlrm", "blessed": "yes"}.items()


def test_aliases_move(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    first = tracker.registry.register(log(tracker, model))
    second = tracker.registry.register(log(tracker, make_model(tmp_path / "other", "two")))
    tracker.registry.set_alias("champion", first)
    tracker.registry.set_alias("candidate", second)
    registered = [tracker.registry.find(alias) for alias in ("champion", "candidate")]
    assert [version.version for version in registered if version] == [1, 2]
    tracker.registry.set_alias("champion", second)
    champion = tracker.registry.champion()
    assert champion is not None
    assert champion.version == 2


def test_an_alias_can_be_deleted(tracker: Tracker, model: Path) -> None:
    tracker.registry.set_alias("champion", None)  # there is no version yet
    tracker.registry.set_alias("champion", tracker.registry.register(log(tracker, model)))
    for _ in range(2):
        tracker.registry.set_alias("champion", None)
        assert tracker.registry.version_of("champion") is None


def test_a_run_has_one_version(tracker: Tracker, model: Path) -> None:
    run_id = log(tracker, model)
    assert [tracker.registry.register(run_id), tracker.registry.register(run_id)] == [1, 1]


def test_names_created_concurrently_by_another_process_are_reused_by_this_process(
    tracker: Tracker, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.registry.register(log(tracker, model))
    run_id = log(tracker, make_model(tmp_path / "other", "two"))
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(tracker._client, "search_registered_models", lambda _: [])
        assert tracker.registry.register(run_id) == 2
        name = tracker._client.get_experiment(tracker._experiment).name
        answers = iter([None, tracker._client.get_experiment(tracker._experiment)])
        meanwhile.setattr(tracker._client, "get_experiment_by_name", lambda _: next(answers))
        assert tracker._experiment_of(name) == tracker._experiment


def test_a_champion_whose_files_were_changed_is_refused(tracker: Tracker, model: Path) -> None:
    tracker.registry.set_alias("champion", tracker.registry.register(log(tracker, model)))
    champion = tracker.registry.champion()
    assert champion is not None
    (champion.folder / "weights.safetensors").write_text("tampered")
    with pytest.raises(IntegrityError, match=r"weights\.safetensors: changed after it was written"):
        tracker.registry.champion()


def test_any_version_comes_with_its_verified_files(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    first = tracker.registry.register(log(tracker, model))
    second = tracker.registry.register(log(tracker, make_model(tmp_path / "other", "two")))
    texts = [
        (tracker.registry.fetch(version).folder / "weights.safetensors").read_text() for version in (first, second)
    ]
    assert texts == ["one", "two"]
    (tracker.registry.fetch(second).folder / "weights.safetensors").write_text("tampered")
    with pytest.raises(IntegrityError, match=r"weights\.safetensors: changed after it was written"):
        tracker.registry.fetch(second)


def test_an_unregistered_version_is_an_error(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownVersionError, match=r"shortlist-\S+ has no version 1; registered: none"):
        tracker.registry.fetch(1)
    tracker.registry.register(log(tracker, model))
    tracker.registry.register(log(tracker, make_model(tmp_path / "other", "two")))
    for ask in (tracker.registry.fetch, tracker.registry.blessing_of):
        with pytest.raises(UnknownVersionError, match=r"has no version 9; registered: 1, 2"):
            ask(9)


def test_a_version_keeps_its_newest_blessing(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    run_id = log(tracker, model)
    version = tracker.registry.register(run_id)
    assert tracker.registry.blessing_of(version) is None
    for text in ("judged", "judged again"):
        (tmp_path / "blessing.json").write_text(text)
        tracker.log_blessing(run_id, tmp_path / "blessing.json")
    blessing = tracker.registry.blessing_of(version, tmp_path / "fetched")
    assert blessing is not None
    assert (blessing.name, blessing.read_text()) == ("blessing.json", "judged again")


def test_a_version_keeps_its_reference(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    run_id = log(tracker, model)
    version = tracker.registry.register(run_id)
    assert tracker.registry.reference_of(version) is None
    for text in ("first", "logged again"):
        tracker.log_reference(run_id, make_reference(tmp_path / text, text))
    reference = tracker.registry.reference_of(version, tmp_path / "fetched")
    assert reference is not None
    assert json.loads((reference / "reference.json").read_text()) == {"spec": "logged again"}
    stored = tracker.registry.reference_of(version)
    assert stored is not None
    (stored / "reference.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"reference\.json: changed after it was written"):
        tracker.registry.reference_of(version)
    with pytest.raises(UnknownVersionError, match="has no version 9; registered: 1"):
        tracker.registry.reference_of(9)


def test_a_reference_that_was_changed_is_not_logged(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    run_id = log(tracker, model)
    reference = make_reference(tmp_path / "reference", "one")
    (reference / "reference.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"reference\.json: changed after it was written"):
        tracker.log_reference(run_id, reference)
    assert tracker.registry.reference_of(tracker.registry.register(run_id)) is None


def test_the_same_model_with_another_release_is_another_version(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    run_id, registry = log(tracker, model), tracker.registry
    alone = registry.register(run_id)
    assert registry.retrieval_of(alone) is None
    folders = [make_reference(tmp_path / name, name) for name in ("one", "other")]
    first, second = (registry.register(run_id, {RELEASE: tracker.log_retrieval(run_id, folder)}) for folder in folders)
    assert [alone, first, second] == [1, 2, 3]
    assert registry.register(run_id, {RELEASE: tracker.log_retrieval(run_id, folders[0])}) == first
    for version, folder in ((first, folders[0]), (second, folders[1])):
        release = registry.retrieval_of(version, tmp_path / f"fetched-{version}")
        assert release is not None
        assert (release / "reference.json").read_bytes() == (folder / "reference.json").read_bytes()
    assert registry.reference_of(first) is None


def test_a_release_that_was_changed_is_not_logged(tracker: Tracker, model: Path, tmp_path: Path) -> None:
    release = make_reference(tmp_path / "release", "sources")
    (release / "reference.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"reference\.json: changed after it was written"):
        tracker.log_retrieval(log(tracker, model), release)


def test_a_version_that_does_not_exist_gets_no_alias(tracker: Tracker, model: Path) -> None:
    tracker.registry.register(log(tracker, model))
    with pytest.raises(TrackingError, match=r"MLflow at sqlite:.*mlflow\.db: .*version=9"):
        tracker.registry.set_alias("champion", 9)


def test_an_unopenable_store_is_an_error_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"MLflow at mongodb://\*\*\*@host/db: ") as refused:
        Tracker("mongodb://me:secret@host/db", "spec")
    assert "MLflow at mongodb://me:secret" not in str(refused.value)


def test_the_environment_chooses_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    assert tracking_uri(tmp_path) == "https://mlflow.example"


def test_pickles_are_never_loaded(tracker: Tracker) -> None:
    assert os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"


@pytest.mark.long
def test_two_processes_can_open_a_new_store_at_once_after_a_killed_process(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db.partial").write_text("half a database")
    uri = f"sqlite:///{tmp_path}/runs/mlflow.db"
    # In an environment without an empty database, so that the tables are made by MLflow's migrations.
    program = f"import sys; sys.prefix = {str(tmp_path / 'environment')!r}\n"
    program += f"from shortlist.tracking.mlflow_store import Tracker; Tracker({uri!r}, 'spec')"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": "."}
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [
        ("", 0),
        ("", 0),
    ]  # and neither speaks


def test_a_new_store_is_a_copy_of_an_empty_store_where_the_environment_is_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    databases = [tmp_path / name / "mlflow.db" for name in ("read-only", "migrated", "copied")]
    for database in databases:
        database.parent.mkdir()
    Tracker(f"sqlite:///{databases[0]}", "spec")  # there is no such environment
    (tmp_path / "environment").mkdir()
    Tracker(f"sqlite:///{databases[1]}", "spec")

    def migrate(*_: object) -> None:
        raise AssertionError("the tables were made by MLflow's migrations")

    monkeypatch.setattr("alembic.command.upgrade", migrate)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Tracker(f"sqlite:///{databases[2]}", "spec")
    tables, locations = zip(*map(read_database, databases), strict=True)
    assert tables[1] == tables[2]  # MLflow's migrations order constraints otherwise each time
    assert locations[0] == locations[1] != locations[2] == f"{tmp_path}/elsewhere/mlruns/0"


def read_database(database: Path) -> tuple[list[Any], str]:
    """Return the tables with MLflow's version of them, and the location of MLflow's first experiment."""
    with closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        (location,) = connection.execute("SELECT artifact_location FROM experiments WHERE name = 'Default'").fetchone()
    return tables + versions, location
