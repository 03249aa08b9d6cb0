"""Runs a spec's training pipeline on this machine and shows its progress."""

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
from typing import TYPE_CHECKING, Any, Final

from monitoring.retraining.training_starts import begin_manual_training
from monitoring.store.monitoring_store import RetrainingState, open_monitoring_store
from monitoring.windows.records import RetrainDecision
from shortlist.contracts import Files, ShortlistError
from shortlist.ranking.kind import DeclaredModel
from shortlist.report.assembly import build_summary, page_steps
from shortlist.report.page import RunPage
from shortlist.report.report import write_report
from shortlist.report.summary import RunFailure, write_summary
from shortlist.runs.display import Display
from shortlist.runs.runner import roles_of
from shortlist.runs.runs_folder import RunsFolder
from shortlist.runs.runs_page import write_runs_page
from shortlist.spec.cluster import Cluster
from shortlist.spec.data import GeneratedSource
from shortlist.spec.load import canonical_json
from shortlist.spec.runtime import Runtime
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json, write_json, write_text
from shortlist.system.progress import EVENTS_VARIABLE
from shortlist.system.query_engine import prepare_engine
from shortlist.tracking.pipeline_run import RUN_VARIABLE
from shortlist.tracking.run_context import RunContext

if TYPE_CHECKING:  # importing kfp takes seconds, which only the child process needs
    from pipelines.compile import GraphName

_DEFAULT_RESOURCES: Final = {"cluster": Cluster(), "steps_at_once": 1, "share_cores": False}
NOT_MEASURED: Final = 3
"""Exit code of a run whose measurement failed: no candidate is judged, and the next run measures again."""


def graph_arguments(
    spec: Spec,
    location: str,
    stores: str,
    until: datetime | None = None,
    decision: RetrainDecision | None = None,
    *,
    read_later: bool = False,
    with_rollout: bool = True,
) -> dict[str, Any]:
    """Return the parameters of a spec's graphs: one per section, so that a changed section re-runs only its readers.

    Each graph takes those that it declares.

    Args:
        spec: The spec.
        location: Path of the user's data; empty for a generated log.
        stores: Location of MLflow's and Feast's files (see `RunsFolder.storage_parameter`).
        until: Time with its timezone; rows at or after it, or at or after the decision's `until`, are not read.
        decision: Decision that starts the training; None when a person starts it. Days that the newest features have
            counted are not recounted.
        read_later: Whether only the run reads the data, so that there is no digest of them yet.
        with_rollout: Whether the blessed version is rolled out where the spec is served.

    Raises:
        ShortlistError: The data do not exist, or `until` has no timezone.
    """
    from shortlist.data.digest import input_digest
    from shortlist.slates.step import lists_digest
    from shortlist.tracking.lineage import TrainingTrigger, gate_code_version, step_code_version

    if until is not None and until.tzinfo is None:
        raise ShortlistError(f"until: got {until.isoformat()}, wanted a time with its offset from UTC")
    limit = min((moment for moment in (until, decision.until if decision else None) if moment), default=None)
    stages = {"retrieval": spec.retrieval, "filters": spec.filters, "ordering": spec.ordering}
    return {
        "name": spec.name,
        "data": canonical_json(spec.data),
        "features": canonical_json(spec.features),
        "models": [model.text for model in declared_models(spec)],
        "gates": canonical_json(spec.gates.model_copy(update={"baseline": spec.reference_baseline})),
        "export_limits": canonical_json(spec.gates.export_limits),
        "monitoring": canonical_json(spec.monitoring),
        "serving": canonical_json(spec.serving),
        # Resources change neither data nor models: the steps that make these do not get them.
        "runtime": canonical_json(spec.runtime.model_copy(update=_DEFAULT_RESOURCES)),
        "cluster": canonical_json(spec.runtime.cluster),
        "log": {"location": location, "digest": "" if read_later else input_digest(spec.data, location)},
        "stores": stores,
        "code": step_code_version(),
        "gate_code": gate_code_version(),
        "cause": (decision.cause if decision else TrainingTrigger().model_dump(mode="json"))
        | ({"until": limit.astimezone(UTC).isoformat()} if limit else {}),
        **{name: canonical_json(section) if section is not None else "" for name, section in stages.items()},
        # A run that reads the log later reads the lists then; a changed list changes the release.
        "lists": "" if read_later else lists_digest(spec.filters, location),
        "slices": list(spec.gates.kept_columns(spec.data)),
        "skew_rows": spec.gates.skew_rows,
        "tune": canonical_json(spec.search),
        "cron": spec.schedule.retrain or "",
        "with_rollout": with_rollout,
    }


def declared_models(spec: Spec) -> list[DeclaredModel]:
    """Return the models that a run trains, candidates first, as in the gates and on the page."""
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
    spec_argument: str = "",
    with_rollout: bool = True,
) -> int:
    """Run the training pipeline with kfp.local; return the exit code.

    Once live traffic is monitored, a training that a person starts is recorded in the monitoring store like any other;
    while another one is running, nothing is trained.

    At the end the run's folder, `<runs>/latest`, has the page, the summary, the log and the arguments.

    Args:
        spec: The spec.
        data: The user's files; None for a generated log.
        runs: Folder of runs and stores.
        until: See `graph_arguments`.
        decision: See `graph_arguments`.
        with_rollout: See `graph_arguments`.
        spec_argument: The spec as the user named it, by name or path, for the printed commands; its name by default.

    Raises:
        ShortlistError: The data are not named or do not exist, `until` has no timezone, or the engine is missing.
    """
    location = local_location(spec, data)
    sys.stdout.write(f"{prepare_engine(spec.runtime.engine, spec.runtime.gpu)}\n")
    state = RunsFolder.open(runs)
    stores = state.storage_parameter(spec.runtime)
    arguments = graph_arguments(spec, location, stores, until, decision, with_rollout=with_rollout)
    run = state.new_run(spec.name)
    write_json(run / "arguments.json", arguments)
    monitoring_store, decision_of_run = open_monitoring_store(stores, spec.name), None
    if decision is None:
        may_run, decision_of_run = begin_manual_training(monitoring_store, until, datetime.now(UTC), str(run))
        if not may_run:
            assert decision_of_run is not None
            shutil.rmtree(run)
            sys.stdout.write(f"Nothing is trained: {decision_of_run.reasons[0]}.\n")
            return 0
    try:
        code = _run_training(spec, run, runs, state, arguments, spec_argument or spec.name)
    except BaseException as error:
        if decision_of_run is not None:
            monitoring_store.mark_failed(decision_of_run.key, str(error) or type(error).__name__)
        raise
    if decision_of_run is not None:
        monitoring_store.finish(decision_of_run.key, *_training_outcome(spec, stores, run, code))
        from monitoring.monitoring_job import report_ended_training  # most runs start without its imports

        report_ended_training(spec.name, stores, spec.monitoring)
    return code


def _run_training(
    spec: Spec, run: Path, runs: Path, state: RunsFolder, arguments: dict[str, Any], spec_argument: str
) -> int:
    started = datetime.now(UTC)
    with Display(run / "events.jsonl", roles_of(arguments), spec_argument) as display:
        code = run_child("training", spec, run, state, display)
    return finish_training(spec, run, runs, display, code, started)


def _training_outcome(spec: Spec, stores: str, run: Path, code: int) -> tuple[RetrainingState, int | None, str]:
    """Return the outcome of a person's training: its state, its version, and why no version serves."""
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


def finish_training(spec: Spec, run: Path, runs: Path, display: Display, code: int, started: datetime) -> int:
    """Write a training's page and summary into its folder, print the results, and return the exit code.

    Args:
        spec: The spec.
        run: Folder of the run.
        runs: Folder of all runs.
        display: Display that followed the run.
        code: Exit code of the pipeline.
        started: Time at which the run started.
    """
    if "report" in display.finished:
        shutil.copyfile(display.paths["page"], run / Files.REPORT)
        shutil.copyfile(display.paths["summary"], run / Files.SUMMARY)
        shutil.copyfile(display.paths["comparison"], run / Files.COMPARISON)
    else:
        write_failure(spec.name, run, display, started)
    state = RunsFolder.open(runs)
    state.point_latest_at(run)
    champion = display.finished.get("roll_out", {}).get("champion")
    write_runs_page(state, {} if champion is None else {spec.name: champion})
    display.print_results(run, code, relative_to=runs)
    return code


def local_location(spec: Spec, data: Path | None) -> str:
    """Return the path of the user's files; empty for a generated log.

    Raises:
        ShortlistError: The spec reads files, and none are named.
    """
    if isinstance(spec.data.source, GeneratedSource):
        return ""
    if data is None:
        raise ShortlistError(
            f"spec '{spec.name}' reads files: name their location, e.g. make run SPEC={spec.name} DATA=path"
        )
    return str(data.resolve())


def thread_variables(runtime: Runtime) -> dict[str, str]:
    """Return the environment variables of a run's steps that say how they use the cores."""
    # Threads that spin at barriers take cores from other processes: 20 times slower on a busy machine.
    variables = {"OMP_WAIT_POLICY": "PASSIVE"}
    if runtime.share_cores:
        variables["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // runtime.steps_at_once))
    return variables


def run_child(graph: GraphName, spec: Spec, run: Path, state: RunsFolder, display: Display) -> int:
    """Run a graph in a process of its own, and show its progress; return the exit code.

    It is 0 also when every candidate is held, 1 for a failed step, and `NOT_MEASURED` for a step that could not
    measure.

    Args:
        graph: Name of the graph.
        spec: The declaration.
        run: Folder with its `arguments.json`; `spec.json` and `pipeline.log` are written into it.
        state: Runs folder with the cache.
        display: Display that follows the run.
    """
    declaration = run / Files.SPEC
    write_text(declaration, canonical_json(spec))
    files = [str(declaration), str(run / "arguments.json"), str(state.root / "cache")]
    command = [sys.executable, "-m", "shortlist.runs.runner", graph, *files]
    # kfp.local leaves a folder per task behind; in a temporary folder they are deleted with the run.
    with TemporaryDirectory(prefix="shortlist-") as scratch, (run / "pipeline.log").open("w") as log:
        name = f"{run.name}.{secrets.token_hex(4)}"  # other folders of runs may share the MLflow store
        run_variables = {EVENTS_VARIABLE: str(run / "events.jsonl"), RUN_VARIABLE: name, "TMPDIR": scratch}
        environment = {**thread_variables(spec.runtime), **os.environ, **run_variables}
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
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
        if not child.returncode:
            return 0
        return NOT_MEASURED if display.not_measured else 1


def write_failure(spec: str, run: Path, display: Display, started: datetime) -> None:
    """Write `report.html` and `summary.json` of a failed run: its error, and the results until then."""
    step, message = next(iter(display.failed.items()), (display.broken_step, display.internal_error(run)))
    quarantine = Path(display.paths.get("quarantine", ""))
    began = started.isoformat(timespec="milliseconds")
    records = [record for record in display.finished.values() if not record.get("cached")]
    page = RunPage(
        spec=spec,
        started=began,
        seconds=(datetime.now(UTC) - started).total_seconds(),
        steps=page_steps(records, began),
        failure=RunFailure(step=step, message=message),
        quarantine=quarantine if (quarantine / Files.QUARANTINE).is_file() else None,
    )
    write_report(page, run / Files.REPORT)
    write_summary(run / Files.SUMMARY, build_summary(page))
