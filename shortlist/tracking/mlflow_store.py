"""Logs every training to MLflow as a run with its numbers and files."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import Files
from shortlist.storage.artefacts import folder_digest, verify_manifest
from shortlist.tracking.flat import Numbers, Point, bounded_text, finite_numbers, flatten, metric_points
from shortlist.tracking.lineage import Lineage
from shortlist.tracking.logged_model import (
    MODEL,
    ServableModel,
    TrackedDataset,
    TrainingDetails,
    logged_model_of,
    model_source,
)
from shortlist.tracking.pipeline_run import PARENT, PIPELINE, SOURCE, PipelineRuns, pipeline_name
from shortlist.tracking.registry import REFERENCE, RETRIEVAL, ModelRegistry
from shortlist.tracking.store_access import (
    create_if_missing,
    database_of,
    files_beside,
    migration_lock,
    quiet_mlflow,
    sqlite_uri,
)

_KEY: Final = "shortlist.key"
_NESTED: Final = "shortlist.nested"
"""Tag of a run with child runs."""
_PARENT: Final = "MLFLOW_RUN_ID"
"""Environment variable with the run that Kubeflow's MLflow plugin has opened; our runs are its children."""
_VIEW: Final = {"mlflow.experimentKind": "custom_model_development"}
"""Tag of an experiment with which MLflow's UI shows runs, metrics and models instead of traces of language models."""

_REQUIREMENTS: Final = "requirements.txt"
_ENVIRONMENT: Final = "python_env.yaml"
"""Files beside MLmodel, as MLflow names them."""
_EMPTY_DATABASES: Final = "empty-databases"
"""Folder of the environment with an empty database of MLflow's version."""
_MAX_METRICS, _MAX_PARAMS, _LONGEST_PARAM = 1_000, 100, 6_000  # MLflow's limits per call


class GatedRun(BaseModel):
    """A training whose model passed every gate."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    tags: Mapping[str, str]


class Tracker:
    """A spec's experiment and registered model in one MLflow store.

    Args:
        uri: Address of the store; see `shortlist.tracking.store_access.tracking_location`.
        spec: Name of the spec, and of the experiment.
        files: Location of the files of a new experiment's runs; None: beside a SQLite store, or where a server puts
            them.

    Raises:
        TrackingError: The store cannot be opened.
    """

    def __init__(self, uri: str, spec: str, files: str | None = None) -> None:
        self.uri = uri
        self._files = files or files_beside(uri, spec)
        with quiet_mlflow(uri):
            self._client = _open_client(uri)
            self._experiment = self._experiment_of(spec)
        self.registry = ModelRegistry(self._client, uri, spec, lambda source, to: _download(uri, source, to))
        self._pipelines = PipelineRuns(self._client, self._experiment)

    @property
    def page(self) -> str:
        """Path of the experiment's page on MLflow's server."""
        return f"#/experiments/{self._experiment}/runs"

    def begin_pipeline(self, lineage: Mapping[str, str], started: datetime) -> str:
        """Open the run of this step's pipeline, the parent of its trainings; return its id.

        A second call returns the same run. Outside of a pipeline there is none, and the id is empty.

        Args:
            lineage: Tags with the cause of the pipeline and the version of its code.
            started: Time at which it started.
        """
        with quiet_mlflow(self.uri):
            return self._pipelines.begin(lineage, started)

    def log_pipeline(self, metrics: Mapping[str, Any], tags: Mapping[str, str], files: Sequence[Path]) -> None:
        """Log metrics, tags and files to the run of this step's pipeline, if any, and end that run."""
        run = self._pipelines.current()
        if not run:
            return
        self.log_metrics(run, metrics)
        with quiet_mlflow(self.uri):
            for name, value in tags.items():
                self._client.set_tag(run, name, value)
            for file in files:
                self._client.log_artifact(run, str(file))
            self._pipelines.end()

    def fail_pipeline(self, reason: str) -> None:
        """End the run of this step's pipeline as failed; its trainings that are still open are marked as killed."""
        self.mark_killed_runs()
        with quiet_mlflow(self.uri):
            self._pipelines.end(reason)

    def log_training(
        self,
        model_folder: Path,
        kind: str,
        params: Mapping[str, Any],
        history: Sequence[Numbers],
        lineage: Lineage,
        plots: Path | None = None,
        name: str = "",
        details: TrainingDetails | None = None,
    ) -> str:
        """Log a finished training as a child of its pipeline's run; return the id of its run.

        Logging the same model of the same lineage again returns the existing run. The run of a killed process is marked
        as killed, and the training is logged as a new run: no unfinished run is ever shown as finished.

        Args:
            model_folder: The model's files with their manifest.
            kind: Kind of the model.
            params: Nested parameters; their names are joined by dots.
            history: Numbers per epoch or tree, in order; `epoch` or `round` is the step. None is left out.
            lineage: Inputs of the training.
            plots: Folder of plots.
            name: Name of the model in the spec, and of its run; empty: the kind.
            details: Start, datasets, and how the model scores raw columns.

        Raises:
            IntegrityError: The model's files are not the ones that were trained.
            TrackingError: MLflow refuses.
        """
        verify_manifest(model_folder)
        details = details or TrainingDetails()
        name = name or kind
        tags = {**lineage.tags(), "model": name, "kind": kind, "model_digest": folder_digest(model_folder)}
        key = hashlib.sha256(json.dumps(tags, sort_keys=True).encode()).hexdigest()[:16]
        with quiet_mlflow(self.uri):
            finished = self._finished_run(key)
            if finished is not None:
                return finished
            with self._run(name, {**tags, _KEY: key}, details.started) as run_id:
                self._log_params(run_id, flatten(params))
                self._log_points(run_id, metric_points(history))
                self._log_datasets(run_id, details.datasets)
                if details.servable is None:
                    self._client.log_artifacts(run_id, str(model_folder), MODEL)
                else:
                    self._log_model(run_id, name, model_folder, details.servable, tags)
                if plots is not None:
                    self._client.log_artifacts(run_id, str(plots), "plots")
        return run_id

    def log_gates(self, run_id: str, report: Mapping[str, Any]) -> None:
        """Add the gates' results of a run's model: a tag per gate, its numbers as metrics, the report as a file.

        Args:
            run_id: From `log_training`.
            report: `passed`, and `gates` with `name`, `passed`, `reason` and `numbers` each.
        """
        tag_by_gate = {
            f"gate.{gate['name']}": "passed" if gate["passed"] else gate["reason"] for gate in report["gates"]
        }
        numbers = {gate["name"]: gate.get("numbers", {}) for gate in report["gates"]}
        with quiet_mlflow(self.uri):
            for name, value in {**tag_by_gate, "gates": "passed" if report["passed"] else "held"}.items():
                self._client.set_tag(run_id, name, value)
            self._client.log_dict(run_id, dict(report), Files.GATES)
        self.log_metrics(run_id, {"gate": numbers})

    def log_blessing(self, run_id: str, blessing: Path) -> None:
        """Store the blessing of a run's model in the run, where `ModelRegistry.blessing_of` finds it.

        Args:
            run_id: From `log_training`.
            blessing: The `blessing.json` that blesses it.
        """
        assert blessing.name == Files.BLESSING
        with quiet_mlflow(self.uri):
            self._client.log_artifact(run_id, str(blessing))

    def passed_runs(self, name: str, kind: str) -> list[GatedRun]:
        """Return the trainings of a model whose gates passed, the newest first.

        Args:
            name: Name of the model in the spec.
            kind: Kind of the model.
        """
        run_filter = f"tags.model = '{name}' and tags.kind = '{kind}'"
        run_filter += " and tags.gates = 'passed' and attributes.status = 'FINISHED'"
        with quiet_mlflow(self.uri):
            runs = self._client.search_runs([self._experiment], run_filter, order_by=["attributes.start_time DESC"])
        return [GatedRun(run_id=run.info.run_id, tags=dict(run.data.tags)) for run in runs]

    def fetch_model(self, run_id: str, to: Path | None = None) -> Path:
        """Return the model files of a run.

        Args:
            run_id: From `log_training`.
            to: Folder for files that are fetched from a remote store; local ones are used in place.

        Raises:
            IntegrityError: The files are not the ones that were trained.
            TrackingError: MLflow cannot be reached.
        """
        with quiet_mlflow(self.uri):
            if to is not None:
                to.mkdir(parents=True, exist_ok=True)
            source = model_source(self._client, self._client.get_run(run_id))
            folder = Path(_download(self.uri, source, None if to is None else str(to)))
        verify_manifest(folder)
        return folder

    def log_reference(self, run_id: str, reference: Path) -> None:
        """Store the reference profile of a run's model in the run, where `ModelRegistry.reference_of` finds it.

        Args:
            run_id: From `log_training`.
            reference: Folder of the reference profile, with a manifest.

        Raises:
            IntegrityError: A file was changed after it was written.
            TrackingError: MLflow refuses.
        """
        verify_manifest(reference)
        self.log_files(run_id, reference, REFERENCE)

    def log_retrieval(self, run_id: str, release: Path) -> str:
        """Store the release of a run's model, where `ModelRegistry.retrieval_of` finds it; return its digest.

        Args:
            run_id: From `log_training`.
            release: Folder of the release (sources, filters, ordering), with a manifest.

        Raises:
            IntegrityError: A file was changed after it was written.
            TrackingError: MLflow refuses.
        """
        verify_manifest(release)
        digest = folder_digest(release)
        self.log_files(run_id, release, f"{RETRIEVAL}/{digest}")
        return digest

    def mark_killed_runs(self) -> int:
        """Mark runs that a killed process left running as killed; return how many there were.

        Within a pipeline only its trainings are marked, because other pipelines may be running.
        """
        name, run_filter = pipeline_name(), "attributes.status = 'RUNNING'"
        if name:
            run_filter += f" and tags.`{PIPELINE}` = '{name}' and tags.kind != 'pipeline'"
        with quiet_mlflow(self.uri):
            runs = self._client.search_runs([self._experiment], run_filter)
            for run in runs:
                self._client.set_terminated(run.info.run_id, "KILLED")
        return len(runs)

    def log_metrics(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        """Add the numbers among nested values to a run and to its logged model, at step 0."""
        with quiet_mlflow(self.uri):
            logged = logged_model_of(self._client, self._client.get_run(run_id))
            values = [(name, value, 0) for name, value in finite_numbers(flatten(metrics)).items()]
            self._log_points(run_id, values, logged)

    def log_files(self, run_id: str, folder: Path, place: str) -> None:
        """Add the files of a folder to a run, below `place`."""
        with quiet_mlflow(self.uri):
            self._client.log_artifacts(run_id, str(folder), place)

    def open_run(self, name: str, tags: Mapping[str, str]) -> str:
        """Return the newest run with these tags, marked as running again; a new one where there is none.

        Args:
            name: Name of a new run.
            tags: Tags that identify the run.
        """
        run_filter = " and ".join(f"tags.`{key}` = '{value}'" for key, value in (*tags.items(), (_NESTED, "parent")))
        with quiet_mlflow(self.uri):
            runs = self._client.search_runs([self._experiment], run_filter, max_results=1)
            if runs:
                run_id = str(runs[0].info.run_id)
                self._client.update_run(run_id, status="RUNNING")
                return run_id
            parent = os.environ.get(_PARENT)
            run_tags = {**tags, _NESTED: "parent", **({"mlflow.parentRunId": parent} if parent else {})}
            return str(self._client.create_run(self._experiment, tags=run_tags, run_name=name).info.run_id)

    def log_nested(
        self, parent: str, name: str, params: Mapping[str, Any], metrics: Mapping[str, float],
        tags: Mapping[str, str], status: str,
    ) -> str:  # fmt: skip
        """Log a child run that has already ended; return its id.

        Args:
            parent: Id of a run of this experiment.
            name: Name of the child run.
            params: Parameters by name.
            metrics: Metrics by name.
            tags: Tags by name.
            status: `FINISHED`, `FAILED` or `KILLED`.
        """
        with quiet_mlflow(self.uri):
            run_tags = {**tags, "mlflow.parentRunId": parent}
            run_id = str(self._client.create_run(self._experiment, tags=run_tags, run_name=name).info.run_id)
            self._log_params(run_id, params)
            self._log_points(run_id, [(metric, value, 0) for metric, value in metrics.items()])
            self._client.set_terminated(run_id, status)
        return run_id

    def nested_runs(self, parent: str) -> list[GatedRun]:
        """Return the child runs of a run, by their tag `trial`."""
        with quiet_mlflow(self.uri):
            runs = self._client.search_runs([self._experiment], f"tags.`mlflow.parentRunId` = '{parent}'")
        runs_by_trial = sorted(runs, key=lambda run: int(run.data.tags.get("trial", 0)))
        return [GatedRun(run_id=run.info.run_id, tags=dict(run.data.tags)) for run in runs_by_trial]

    def close_run(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        """Add numbers to a run of `open_run`, and end it."""
        self.log_metrics(run_id, metrics)
        with quiet_mlflow(self.uri):
            self._client.set_terminated(run_id, "FINISHED")

    def _experiment_of(self, spec: str) -> str:
        parent = os.environ.get(_PARENT)
        if parent:  # MLflow shows a child run below its parent only within one experiment
            return str(self._client.get_run(parent).info.experiment_id)
        experiment = self._client.get_experiment_by_name(spec)
        if experiment is None:
            create_if_missing(lambda: self._client.create_experiment(spec, artifact_location=self._files, tags=_VIEW))
            experiment = self._client.get_experiment_by_name(spec)
        elif experiment.lifecycle_stage != "active":
            self._client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def _finished_run(self, key: str) -> str | None:
        """Return the finished run with a key, if any; mark those that a killed process left running."""
        runs = self._client.search_runs([self._experiment], f"tags.`{_KEY}` = '{key}'")
        for run in runs:
            if run.info.status == "RUNNING":
                self._client.set_terminated(run.info.run_id, "KILLED")
        return next((str(run.info.run_id) for run in runs if run.info.status == "FINISHED"), None)

    @contextmanager
    def _run(self, name: str, tags: Mapping[str, str], started: datetime | None) -> Iterator[str]:
        parent = self._pipelines.current()
        parent_tags = {PARENT: parent, PIPELINE: pipeline_name()} if parent else {}
        moment = round((started or datetime.now(UTC)).timestamp() * 1_000)
        run_tags = {**SOURCE, **tags, **{name: value for name, value in parent_tags.items() if value}}
        run_id = str(self._client.create_run(self._experiment, moment, run_tags, name).info.run_id)
        try:
            yield run_id
        except BaseException:
            self._client.set_terminated(run_id, "FAILED")
            raise
        self._client.set_terminated(run_id, "FINISHED")

    def _log_datasets(self, run_id: str, datasets: Sequence[TrackedDataset]) -> None:
        from mlflow.data.dataset_source_registry import resolve_dataset_source
        from mlflow.data.meta_dataset import MetaDataset
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = []
        for dataset in datasets:
            # MLflow declares `profile` as abstract and yet instantiates this class itself.
            source = resolve_dataset_source(dataset.path)
            fields = MetaDataset(source, name=dataset.name, digest=dataset.digest).to_dict()  # type: ignore[abstract]
            fields["profile"] = json.dumps({"num_rows": dataset.rows, "days": dataset.days})
            tags = [InputTag("mlflow.data.context", dataset.context)]
            inputs.append(DatasetInput(Dataset(**fields), tags))
        if inputs:
            self._client.log_inputs(run_id, inputs)

    def _log_model(
        self, run_id: str, name: str, model_folder: Path, servable: ServableModel, tags: Mapping[str, str]
    ) -> None:
        """Log a model with a flavour; its status is READY once all its files are stored."""
        from mlflow.entities import LoggedModelOutput

        logged_model = self._client.create_logged_model(
            self._experiment, name, run_id, tags=dict(tags), model_type=str(tags["kind"])
        )
        try:
            with TemporaryDirectory(prefix="shortlist-logged-") as scratch:
                flavour = Path(scratch) / "flavour"
                _write_flavour(flavour, servable)
                self._client.log_model_artifacts(logged_model.model_id, str(flavour))
            for folder, path in {MODEL: model_folder, **servable.folders}.items():
                self._client.log_model_artifacts(logged_model.model_id, str(path), folder)
        except BaseException:
            self._client.finalize_logged_model(logged_model.model_id, "FAILED")
            raise
        self._client.finalize_logged_model(logged_model.model_id, "READY")
        self._client.log_outputs(run_id, [LoggedModelOutput(logged_model.model_id, 0)])

    def _log_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        texts = [Param(name, bounded_text(value, _LONGEST_PARAM)) for name, value in params.items()]
        for first in range(0, len(texts), _MAX_PARAMS):
            self._client.log_batch(run_id, params=texts[first : first + _MAX_PARAMS])

    def _log_points(self, run_id: str, values: Sequence[Point], logged: Any = None) -> None:
        """Add numbers to a run and, if there is one, to its logged model; known numbers are not added again."""
        from mlflow.entities import Metric

        # The start of the run is the time of every number: logging the same numbers again then adds nothing.
        moment = self._client.get_run(run_id).info.start_time
        # MLflow refuses a second value of a logged model's metric at one time: the next one is a millisecond later.
        logged_metrics = sorted((logged.metrics or ()) if logged else (), key=lambda metric: metric.timestamp)
        newest = {(metric.key, metric.step): metric for metric in logged_metrics}
        metrics = []
        for name, value, step in values:
            logged_metric = newest.get((name, step))
            if logged_metric is None or logged_metric.value != value:
                time = moment if logged_metric is None else logged_metric.timestamp + 1
                metrics.append(Metric(name, value, time, step, model_id=logged.model_id if logged else None))
        for first in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(run_id, metrics=metrics[first : first + _MAX_METRICS])


def _write_flavour(folder: Path, servable: ServableModel) -> None:
    """Write MLmodel and the requirements, from which `mlflow.pyfunc.load_model` loads the logged folder."""
    import numpy as np
    from mlflow.models import Model, ModelSignature
    from mlflow.pyfunc import add_to_model
    from mlflow.types.schema import AnyType, Array, ColSpec, DataType, Schema, TensorSpec

    types: dict[str, Any] = {name: getattr(DataType, name) for name in ("long", "double", "string")}
    types["any"] = AnyType()  # type: ignore[no-untyped-call]
    types |= {"vector": Array(types["double"]), "longs": Array(types["long"]), "strings": Array(types["string"])}
    columns: list[ColSpec | TensorSpec] = [
        ColSpec(types[column.type], column.name, required=column.required) for column in servable.columns
    ]
    signature = ModelSignature(Schema(columns), Schema([TensorSpec(np.dtype(np.float32), (-1,))]))
    # Not by `save_model`, which looks for the modules of all installed packages, for 0.7 s.
    environment = {
        "python": platform.python_version(),
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": [f"-r {_REQUIREMENTS}"],
    }
    model = Model(signature=signature)
    add_to_model(model, servable.loader, python_env=_ENVIRONMENT)  # type: ignore[no-untyped-call]
    folder.mkdir()
    (folder / _REQUIREMENTS).write_text("\n".join(servable.requirements) + "\n")
    (folder / _ENVIRONMENT).write_text(json.dumps(environment, indent=2) + "\n")  # JSON is YAML
    model.save(str(folder / "MLmodel"))


def _open_client(uri: str) -> Any:
    os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] = "false"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    with migration_lock(uri):
        database = database_of(uri)
        if database is not None and not database.exists():
            _create_database(database)
        return _client(uri)


def _create_database(database: Path) -> None:
    """Create the tables under a temporary name: MLflow can never open a store whose creation was interrupted.

    MLflow's migrations take seconds of processor time; the environment keeps an empty database, which is copied.
    """
    staging = database.with_name(database.name + ".partial")
    staging.unlink(missing_ok=True)
    empty_database = Path(sys.prefix) / _EMPTY_DATABASES / f"mlflow-{version('mlflow')}.db"
    if empty_database.exists():
        shutil.copyfile(empty_database, staging)
    else:
        _client(sqlite_uri(staging))
        with suppress(OSError, sqlite3.OperationalError):  # an environment that this process may not write to
            _keep_empty_copy(staging, empty_database)
    staging.rename(database)


def _keep_empty_copy(database: Path, copy: Path) -> None:
    """Copy a new database without MLflow's first experiment, whose location depends on the working directory."""
    copy.parent.mkdir(exist_ok=True)
    temporary = copy.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(temporary)) as target:
        source.backup(target)
        target.execute("DELETE FROM experiments")
        target.commit()
    temporary.replace(copy)


def _client(uri: str) -> Any:
    with _without_garbage_collection():  # the first client and its first call import SQLAlchemy and MLflow's stores
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_registered_models(max_results=1)  # the first call creates the registry's tables
    return client


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during large imports: MLflow's takes 1.0 s instead of 1.2, and leaves no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _download(uri: str, source: str, to: str | None) -> str:
    from mlflow.artifacts import download_artifacts

    return str(download_artifacts(source, dst_path=to, tracking_uri=uri))
