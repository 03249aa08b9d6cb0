"""A finished run in MLflow and on Kubeflow's pages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.serving.processes.ports import free_ports
from shortlist.storage.tables import DayTable
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_uri

pytestmark = pytest.mark.long


@pytest.fixture
def tracker(finished: Any) -> Tracker:
    assert finished.code == 0
    return Tracker(tracking_uri(finished.runs / "stores"), "demo")


@pytest.fixture
def runs(tracker: Tracker) -> dict[str, Any]:
    """The MLflow run of the pipeline, and those of its trainings, by name of the model."""
    found_runs = tracker._client.search_runs([tracker._experiment], order_by=["attributes.start_time ASC"])
    (pipeline, *_) = [run for run in found_runs if run.data.tags["kind"] == "pipeline"]
    children = [run for run in found_runs if run.data.tags.get("mlflow.parentRunId") == pipeline.info.run_id]
    return {"pipeline": pipeline, **{run.data.tags["model"]: run for run in children}}


@pytest.fixture
def loaded(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The champion, as MLflow's users load it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow

        yield mlflow.pyfunc.load_model("models:/shortlist-demo@champion")


def step(finished: Any, name: str) -> dict[str, Any]:
    """Return the outputs of a task of the run, by artefact."""
    (path,) = finished.artefacts.glob(f"**/{name}/executor_output.json")
    artefacts = json.loads(path.read_text())["artifacts"]
    return {name: artefact["artifacts"][0] for name, artefact in artefacts.items()}


def of_model(finished: Any, task: str, model: str) -> dict[str, Any]:
    """Return the outputs of a model's task, by artefact."""
    for path in finished.artefacts.glob(f"**/{task}/executor_output.json"):
        artefact_lists = json.loads(path.read_text())["artifacts"]
        artefacts = {name: artefact_list["artifacts"][0] for name, artefact_list in artefact_lists.items()}
        if any(artefact.get("metadata", {}).get("model") == model for artefact in artefacts.values()):
            return artefacts
    raise AssertionError(f"no task {task} of {model}")


@pytest.fixture
def scored(finished: Any) -> pl.DataFrame:
    """Raw rows of the test days, with the scores that training gave them."""
    scores = Path(of_model(finished, "train", "xgboost")["scores"]["uri"]) / Files.SCORES
    # A refitted model leaves the scores that it gave to the validation days before it learnt them.
    tested = pl.read_parquet(scores).filter(pl.col("split") == "test")
    trained = tested.select(Columns.IMPRESSION, Columns.DAY, pl.col("score").alias("trained"))
    log = DayTable.open(Path(step(finished, "validate")["valid_log"]["uri"]), Files.LOG)
    rows = pl.concat([frame for _, frame in log.frames(set(trained[Columns.DAY].to_list()))]).join(
        trained.drop(Columns.DAY), on=Columns.IMPRESSION
    )
    assert rows.height == trained.height > 500
    return rows.with_columns(pl.col(Columns.TIME).dt.epoch("us"))


@contextmanager
def answering(command: list[str], url: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A server of MLflow's, from when it answers until the end of the block."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", **environment},
    )  # fmt: skip
    try:
        until = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - on this machine
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, f"{command} does not answer"
                time.sleep(0.2)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)


def program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def test_the_champion_loaded_by_mlflow_gives_trainings_scores_of_raw_columns(loaded: Any, scored: pl.DataFrame) -> None:
    names = loaded.metadata.get_input_schema().input_names()
    predictions = loaded.predict(scored.select(names).to_pandas())
    assert np.abs(predictions - scored["trained"].to_numpy()).max() < 1e-6


@pytest.mark.timeout(400)
def test_mlflows_own_server_gives_trainings_scores(tracker: Tracker, loaded: Any, scored: pl.DataFrame) -> None:
    (port,) = free_ports(1)
    model = ["-m", "models:/shortlist-demo@champion", "--env-manager", "local", "-p", str(port)]
    rows = scored.head(20).select(*loaded.metadata.get_input_schema().input_names(), "trained")
    body = json.dumps({"dataframe_records": rows.drop("trained").to_dicts()}, default=str).encode()
    url = f"http://127.0.0.1:{port}"
    # MLflow starts uvicorn by its name.
    environment = {"MLFLOW_TRACKING_URI": tracker.uri, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with answering([program("mlflow"), "models", "serve", *model], f"{url}/ping", **environment):
        request = urllib.request.Request(f"{url}/invocations", body, {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - on this machine
            predictions = json.load(answer)["predictions"]
    assert np.abs(np.array(predictions) - rows["trained"].to_numpy()).max() < 1e-6


def test_mlflow_evaluates_the_champion_by_its_address(tracker: Tracker, loaded: Any, scored: pl.DataFrame) -> None:
    import mlflow

    names = loaded.metadata.get_input_schema().input_names()
    frame = scored.select(*names, pl.col(Columns.LABEL).cast(pl.Float64)).to_pandas()
    # An experiment of its own: other tests count the runs of the pipeline's.
    place = tracker._client.create_experiment("evaluated")
    with mlflow.start_run(experiment_id=place):
        evaluation = mlflow.models.evaluate(
            "models:/shortlist-demo@champion", frame, targets=Columns.LABEL, model_type="regressor",
            evaluator_config={"log_explainer": False, "log_model_explainability": False},
        )  # fmt: skip
    squared = np.square(scored["trained"].to_numpy() - scored[Columns.LABEL].to_numpy())
    assert evaluation.metrics["mean_squared_error"] == pytest.approx(squared.mean(), abs=1e-6)
    assert evaluation.metrics["example_count"] == scored.height


@pytest.mark.timeout(400)
def test_the_ui_prints_the_address_of_the_projects_experiment(finished: Any, runs: dict[str, Any]) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with answering([program("shortlist"), "ui", "--runs", str(finished.runs), "--port", str(port)], url) as server:
        assert server.stdout is not None
        printed = server.stdout.readline()
        named = re.search(rf"{url}/(#/experiments/(\d+))", printed)
        assert named, printed
        with urllib.request.urlopen(f"{url}/{named[1]}", timeout=60) as answer:  # noqa: S310 - on this machine
            assert "<title>MLflow</title>" in answer.read().decode()
        api_url = f"{url}/api/2.0/mlflow/experiments/get?experiment_id={named[2]}"
        with urllib.request.urlopen(api_url, timeout=60) as answer:  # noqa: S310 - on this machine
            experiment = json.load(answer)["experiment"]
    assert experiment["experiment_id"] == runs["pipeline"].info.experiment_id and "demo" in experiment["name"]


def test_rows_may_lack_values_and_are_refused_with_a_sentence_where_too_old(loaded: Any) -> None:
    import pandas as pd

    now = loaded.predict(pd.DataFrame({"item_id": [5, 7], "position": [1.0, None], "surface": ["home", None]}))
    assert now.shape == (2,) and ((now > 0) & (now < 1)).all()
    early = pd.DataFrame({"item_id": [5], "event_time": [1_700_000_000_000_000]})  # in 2023
    with pytest.raises(
        ShortlistError, match=r"got a row of 2023-11-14; this model keeps statistics from 2026-01-\d+ on"
    ):
        loaded.predict(early)
    with pytest.raises(ShortlistError, match=r"position.*got 1\.5"):
        loaded.predict(pd.DataFrame({"item_id": [5], "position": [1.5]}))


def test_a_logged_model_has_a_signature_and_no_code(finished: Any, loaded: Any, runs: dict[str, Any]) -> None:
    schema = loaded.metadata.get_input_schema()
    assert schema.required_input_names() == ["item_id"]
    assert {"user_id", "surface", "device", "position", "duration", "event_time"} <= set(schema.input_names())
    folder = Path(Tracker(tracking_uri(finished.runs / "stores"), "demo").fetch_model(runs["xgboost"].info.run_id))
    suffixes = {path.suffix for path in folder.parent.rglob("*") if path.is_file()}
    assert (folder.parent / "MLmodel").is_file()
    assert suffixes <= {"", ".yaml", ".txt", ".json", ".parquet", ".onnx", ".ubj"}


def test_every_model_has_a_run_with_its_real_time_its_data_and_its_source(runs: dict[str, Any]) -> None:
    pipeline = runs.pop("pipeline")
    assert pipeline.info.status == "FINISHED"
    assert {"xgboost", "popularity"} <= set(runs)
    for name, run in runs.items():
        info, tags = run.info, run.data.tags
        assert pipeline.info.start_time < info.start_time < info.end_time <= pipeline.info.end_time
        assert (tags["mlflow.source.name"], tags["mlflow.source.type"]) == ("pipelines/training.py", "PROJECT")
        read = {run.tags[0].value: json.loads(run.dataset.profile)["num_rows"] for run in run.inputs.dataset_inputs}
        assert set(read) == {"training", "validation", "test"} and min(read.values()) > 500
        assert len({input_.dataset.digest for input_ in run.inputs.dataset_inputs}) == 3
        assert pipeline.data.tags[f"run.{name}"] == info.run_id
    metrics = runs["xgboost"].data.metrics
    for name in ("auc", "gauc", "ndcg_at_10"):
        assert metrics[f"test.{name}_low"] < metrics[f"test.{name}"] < metrics[f"test.{name}_high"]
    assert pipeline.data.metrics["xgboost.auc"] == pytest.approx(metrics["test.auc"])


def test_the_curve_of_a_training_has_a_point_per_round(tracker: Tracker, runs: dict[str, Any]) -> None:
    history = tracker._client.get_metric_history(runs["xgboost"].info.run_id, "validation_log_loss")
    steps = [point.step for point in history]
    assert len(steps) > 10 and steps == sorted(set(steps))


def test_a_training_has_its_settings_its_pictures_and_one_logged_model(tracker: Tracker, runs: dict[str, Any]) -> None:
    run = runs["xgboost"]
    assert run.data.params["kind"] == "xgboost" and int(run.data.params["rounds"]) > 10
    plots = {Path(file.path).name for file in tracker._client.list_artifacts(run.info.run_id, "plots")}
    assert plots >= {"auc.svg", "calibration.svg", "roc.svg", "scores.svg", "loss_xgboost.svg"}
    assert [len(runs[name].outputs.model_outputs) for name in ("xgboost", "popularity")] == [1, 0]
    assert len(run.data.tags["code_version"]) == 16
    (pipeline_run,) = tracker._client.search_runs([run.info.experiment_id], "tags.kind = 'pipeline'")
    gate_code = pipeline_run.data.tags["gate_code_version"]
    assert (len(gate_code), tracker.registry.tags_of(1)["gate_code_version"]) == (16, gate_code)


def test_kubeflows_pages_get_numbers_to_compare_and_a_page_to_show(finished: Any) -> None:
    gates = step(finished, "evaluate-gates")["metrics"]["metadata"]
    assert gates["xgboost auc"] == pytest.approx(finished.summary["models"]["xgboost"]["auc"], abs=1e-6)
    assert gates["xgboost auc_low"] < gates["xgboost auc"] and gates["xgboost gates that hold"] == 0
    assert of_model(finished, "train", "xgboost")["metrics"]["metadata"]["train_rows"] > 10_000
    assert of_model(finished, "validate-export", "xgboost")["metrics"]["metadata"]["p99_ms"] > 0
    assert "<html" in Path(step(finished, "report")["page"]["uri"]).read_text()
    assert step(finished, "ingest")["raw_log"]["metadata"]["rows"] == finished.summary["rows"]["raw"]


def test_kubeflow_draws_the_curve_and_the_confusion_matrix_of_every_model(finished: Any) -> None:
    for model in ("xgboost", "popularity"):
        artefacts = of_model(finished, "validate-export", model)["classification"]["metadata"]
        points = artefacts["confidenceMetrics"]
        rates = [(point["falsePositiveRate"], point["recall"]) for point in points]
        assert rates[0] == (0.0, 0.0) and rates[-1] == (1.0, 1.0) and rates == sorted(rates)
        counts = [cell for line in artefacts["confusionMatrix"]["rows"] for cell in line["row"]]
        assert sum(counts) == finished.summary["rows"]["test"]
        # Nothing is declared: the threshold is the label rate.
        assert artefacts["threshold"] == pytest.approx((counts[2] + counts[3]) / sum(counts), abs=1e-6)
