"""Runs a spec's training pipeline on this machine and shows how it goes."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from models.base import DeclaredModel
from monitoring.retraining.training_starts import begin_manual_training
from monitoring.store.monitoring_store import RetrainingState, open_monitoring_store
from monitoring.windows.records import RetrainDecision
from pipelines.compile import COMPILED, training_pipeline
from pipelines.declared_steps import write_declared
from shortlist.contracts import Files, ShortlistError
from shortlist.report.assembly import page_steps, summary_of
from shortlist.report.page import RunPage
from shortlist.report.report import write_report
from shortlist.report.summary import Failure, write_summary
from shortlist.runs.display import Display
from shortlist.runs.runner import roles_of
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.cluster import Cluster
from shortlist.spec.data import GeneratedSource
from shortlist.spec.load import canonical_json
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json, write_json
from shortlist.system.progress import EVENTS_VARIABLE
from shortlist.system.query_engine import prepare_engine
from shortlist.tracking.pipeline_run import RUN_VARIABLE
from shortlist.training.training import RunContext


def training_arguments(
    spec: Spec,
    location: str,
    stores: str,
    until: datetime | None = None,
    decision: RetrainDecision | None = None,
    *,
    read_later: bool = False,
) -> dict[str, Any]:
    """Return the training pipeline's parameters: one per section, so that a changed section re-runs only what reads it.

    Args:
        spec: The declaration.
        location: Path of the user's data; empty for a generated log.
        stores: Where MLflow and Feast keep their files (see `State.reference`).
        until: No row at or after this moment, with its timezone, is read, nor at or after the decision's.
        decision: What starts the training; None: a person does. Days that the newest features have counted are not
            counted again.
        read_later: Whether the data are looked at by the run itself and not now, so that there is no digest of them.

    Raises:
        ShortlistError: The data are not there, or `until` has no timezone.
    """
    from shortlist.data.digest import input_digest
    from shortlist.recommending.step import lists_digest
    from shortlist.tracking.lineage import TrainingTrigger, code_version

    if until is not None and until.tzinfo is None:
        raise ShortlistError(f"until: got {until.isoformat()}, wanted a moment with its offset from UTC")
    limit = min((moment for moment in (until, decision.until if decision else None) if moment), default=None)
    stages = {"retrieval": spec.retrieval, "filters": spec.filters, "ordering": spec.ordering}
    return {
        "name": spec.name,
        "data": canonical_json(spec.data),
        "features": canonical_json(spec.features),
        "models": [model.text for model in declared_models(spec)],
        "gates": canonical_json(spec.gates.model_copy(update={"baseline": spec.reference_baseline})),
        "monitoring": canonical_json(spec.monitoring),
        "serving": canonical_json(spec.serving),
        # Whatever Kubernetes is asked for, the data and the models are the same: no step that makes them is told.
        "runtime": canonical_json(spec.runtime.model_copy(update={"cluster": Cluster()})),
        "cluster": canonical_json(spec.runtime.cluster),
        "log": {"location": location, "digest": "" if read_later else input_digest(spec.data, location)},
        "stores": stores,
        "code": code_version(),
        "cause": (decision.cause if decision else TrainingTrigger().model_dump(mode="json"))
        | ({"until": limit.astimezone(UTC).isoformat()} if limit else {}),
        **{name: canonical_json(one) if one is not None else "" for name, one in stages.items()},
        # Whoever looks at the log later looks at the lists then; a changed list is a changed release.
        "lists": "" if read_later else lists_digest(spec.filters, location),
    }


def tuning_arguments(spec: Spec, location: str, stores: str) -> dict[str, Any]:
    """Return the tuning pipeline's parameters; see `training_arguments`."""
    shared = ("name", "data", "features", "models", "runtime", "log", "stores", "code")
    training = training_arguments(spec, location, stores)
    own = {"slices": list(spec.gates.slices), "tune": canonical_json(spec.search)}
    return {name: training[name] for name in shared} | own


def declared_models(spec: Spec) -> list[DeclaredModel]:
    """Return the models that a run trains: candidates first, as the gates and the page list them."""
    cluster = canonical_json(spec.runtime.cluster)
    return [
        DeclaredModel(
            name=name,
            section=model.model_dump(mode="json"),
            cluster=cluster if name in spec.runtime.cluster.workers else "",
            members=model.members,
        )
        for name, model in sorted(spec.models.items(), key=lambda item: item[1].role != "candidate")
    ]


def run_locally(
    spec: Spec,
    data: Path | None,
    runs: Path,
    *,
    until: datetime | None = None,
    decision: RetrainDecision | None = None,
    asked: str = "",
) -> int:
    """Run the training pipeline with kfp.local; return the exit code.

    Once live traffic is monitored, a training that a person starts is in the monitoring store like any other;
    while another one is running, it says so and ends.

    The run's folder, `<runs>/latest`, ends with the page, the summary, the log and the arguments.

    Args:
        spec: The declaration.
        data: The user's files; none for a generated log.
        runs: Folder of runs and stores.
        until: See `training_arguments`.
        decision: Likewise.
        asked: What the user calls the spec, a name or a path, for the commands shown at the end; its name by default.

    Raises:
        ShortlistError: The data are not given, or not there, or `until` has no timezone; or the engine is not there.
    """
    location = location_of(spec, data)
    sys.stdout.write(f"{prepare_engine(spec.runtime.engine, spec.runtime.gpu)}\n")
    state = RunsFolder.open(runs)
    stores = state.storage_parameter(spec.runtime)
    arguments = training_arguments(spec, location, stores, until, decision)
    run = state.new_run(spec.name)
    write_json(run / "arguments.json", arguments)
    monitoring_store, own = open_monitoring_store(stores, spec.name), None
    if decision is None:
        may_run, own = begin_manual_training(monitoring_store, until, datetime.now(UTC), str(run))
        if not may_run:
            assert own is not None
            shutil.rmtree(run)
            sys.stdout.write(f"Nothing is trained: {own.reasons[0]}.\n")
            return 0
    try:
        code = _run_training(spec, run, runs, state, arguments, asked or spec.name)
    except BaseException as error:
        if own is not None:
            monitoring_store.mark_failed(own.key, str(error) or type(error).__name__)
        raise
    if own is not None:
        monitoring_store.finish(own.key, *_ending(spec, stores, run, code))
    return code


def _run_training(spec: Spec, run: Path, runs: Path, state: RunsFolder, arguments: dict[str, Any], asked: str) -> int:
    started = datetime.now(UTC)
    graph = write_declared(COMPILED / f"{training_pipeline(spec)}.yaml", spec, run / "graph.yaml")
    with Display(run / "events.jsonl", graph, roles_of(arguments), asked) as display:
        code = run_child(graph, run, state, display)
    return finish(spec, run, runs, display, code, started)


def _ending(spec: Spec, stores: str, run: Path, code: int) -> tuple[RetrainingState, int | None, str]:
    """Return how a person's training ended: its state, the version that it made, and why no version serves."""
    summary = read_json(run / Files.SUMMARY) if (run / Files.SUMMARY).exists() else {}
    failed, blessed = summary.get("failed"), summary.get("blessed")
    if code or failed:
        return "failed", None, failed["message"] if failed else f"exit code {code}"
    if not blessed:
        return "held", None, "no candidate passed the gates"
    version = int(blessed["version"])
    if RunContext(name=spec.name, stores=stores).tracker.registry.version_of("champion") == version:
        return "promoted", version, ""
    return "not_promoted", version, f"version {version} is blessed and does not serve"


def finish(spec: Spec, run: Path, runs: Path, display: Display, code: int, started: datetime) -> int:
    """Leave a training's page and summary in its folder, say where they are, and return the exit code.

    Args:
        spec: The declaration.
        run: Folder of the run.
        runs: Where runs are kept.
        display: That followed it.
        code: Exit code of the pipeline.
        started: When it began.
    """
    if "report" in display.finished:
        shutil.copyfile(display.paths["page"], run / Files.REPORT)
        shutil.copyfile(display.paths["summary"], run / Files.SUMMARY)
        shutil.copyfile(display.paths["comparison"], run / Files.COMPARISON)
    else:
        write_failure(spec.name, run, display, started)
    RunsFolder.open(runs).point_latest_at(run)
    display.conclude(run, code, relative_to=runs)
    return code


def location_of(spec: Spec, data: Path | None) -> str:
    """Return the path of the user's files; empty for a generated log.

    Raises:
        ShortlistError: The spec reads files, and none are given.
    """
    if isinstance(spec.data.source, GeneratedSource):
        return ""
    if data is None:
        raise ShortlistError(
            f"spec '{spec.name}' reads files: say where they are, e.g. make run SPEC={spec.name} DATA=path"
        )
    return str(data.resolve())


def run_child(pipeline: Path, run: Path, state: RunsFolder, display: Display) -> int:
    """Run a compiled pipeline in a process of its own, and show how it goes; return the exit code.

    Args:
        pipeline: The compiled YAML.
        run: Folder with its `arguments.json`; gets `pipeline.log`.
        state: Where the cache is kept.
        display: That follows it.
    """
    command = [sys.executable, "-m", "shortlist.runs.runner", str(pipeline), str(run / "arguments.json")]
    # kfp.local leaves a folder per task behind; in a folder of our own they go with the run.
    with TemporaryDirectory(prefix="shortlist-") as scratch, (run / "pipeline.log").open("w") as log:
        # Threads that spin at barriers steal the cores of whoever shares them: 20 times slower on a busy machine.
        calm = {"OMP_WAIT_POLICY": "PASSIVE"}
        name = f"{run.name}.{secrets.token_hex(4)}"  # other folders of runs may share the MLflow store
        own = {EVENTS_VARIABLE: str(run / "events.jsonl"), RUN_VARIABLE: name, "TMPDIR": scratch}
        environment = {**calm, **os.environ, **own}
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, str(state.root / "cache")],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                display.refresh()
            display.refresh()
        except KeyboardInterrupt:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
            display.interrupted = True
            return 130
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        return 1 if child.returncode else 0


def write_failure(spec: str, run: Path, display: Display, started: datetime) -> None:
    """Write `report.html` and `summary.json` of a stopped run: what stopped it, and what was found until then."""
    step, message = next(iter(display.failed.items()), (display.current, display.fault(run)))
    quarantine = Path(display.paths.get("quarantine", ""))
    began = started.isoformat(timespec="milliseconds")
    records = [record for record in display.finished.values() if not record.get("cached")]
    page = RunPage(
        spec=spec,
        started=began,
        seconds=(datetime.now(UTC) - started).total_seconds(),
        steps=page_steps(records, began),
        failure=Failure(step=step, message=message),
        quarantine=quarantine if (quarantine / Files.QUARANTINE).is_file() else None,
    )
    write_report(page, run / Files.REPORT)
    write_summary(run / Files.SUMMARY, summary_of(page))
