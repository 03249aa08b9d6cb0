"""Runs a spec's watching pipeline on this machine: once, or again and again with the schedule's trainings."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from monitoring.exposition import serve_metrics
from monitoring.monitoring_job import MonitoringJob
from monitoring.retraining.moments import begin_moment, newest_moment
from monitoring.windows.records import RetrainDecision
from pipelines.compile import COMPILED, monitoring_pipeline
from pipelines.declared_steps import write_declared
from shortlist.collecting.collector import Collected, Collector
from shortlist.contracts import Files, ShortlistError
from shortlist.runs.display import Display
from shortlist.runs.refresh_runs import refresh_is_due, run_refresh_locally
from shortlist.runs.runner import roles_of
from shortlist.runs.runs_folder import RunsFolder, existing
from shortlist.runs.submit import finish, location_of, run_child, run_locally, training_arguments
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json, write_json

_INTERRUPTED: Final = 130
"""Exit code of what the user stopped."""


def monitoring_arguments(spec: Spec, location: str, stores: str, *, read_later: bool = False) -> dict[str, Any]:
    """Return the watching pipeline's parameters; see `training_arguments`."""
    arguments = training_arguments(spec, location, stores, read_later=read_later)
    return {name: value for name, value in arguments.items() if name != "cause"}  # the look itself gives it


def run_monitoring_locally(spec: Spec, data: Path | None, runs: Path) -> int:
    """Look at live traffic once with kfp.local, and train when that is decided; return the exit code.

    Where nothing is trained and the schedule asks for it, newer statistics are published.

    Returns:
        0 when all is well or a training ended well; 1 when a person is needed; 130 when stopped.

    Raises:
        ShortlistError: Nothing was ever trained here, or the data are not given or not there.
    """
    state = existing(runs)
    run = state.new_run(f"{spec.name}-watch")
    stores = state.storage_parameter(spec.runtime)
    arguments = monitoring_arguments(spec, location_of(spec, data), stores)
    write_json(run / "arguments.json", arguments)
    started = datetime.now(UTC)
    graph = write_declared(COMPILED / f"{monitoring_pipeline(spec)}.yaml", spec, run / "graph.yaml")
    with Display(run / "events.jsonl", graph, roles_of(arguments)) as display:
        code = run_child(graph, run, state, display)
    if "find_champion" in display.finished:  # a training began
        code = finish(spec, run, runs, display, code, started)
        keep_served_features(spec, state)
        return code
    if code and not display.interrupted:
        raise ShortlistError("\n".join(display.failed.values()) or display.fault(run))
    shutil.rmtree(run)
    keep_served_features(spec, state)
    for line in display.notes:
        Console(highlight=False).print(line, markup=False, soft_wrap=True)
    if not code and refresh_is_due(spec, stores, datetime.now(UTC)):
        code = run_refresh_locally(spec, data, runs)
    newest = _watch(spec, state).newest_decision()
    return code or int(newest is not None and newest.action == "page")


def keep_served_features(spec: Spec, state: RunsFolder) -> None:
    """Write the newest comparison of served features into the newest run's folder, where that is a run of the spec."""
    latest = state.root / "latest"
    found = _watch(spec, state).served_features
    summary = latest / Files.SUMMARY
    if found is not None and summary.exists() and read_json(summary).get("spec") == spec.name:
        write_json(latest / Files.SERVED_FEATURES, found.model_dump(mode="json"))


def collect_locally(spec: Spec, runs: Path) -> Collected:
    """Collect what is due of a spec's live traffic on this machine; return what was published.

    Raises:
        ShortlistError: Nothing was ever trained here, the spec collects nothing, or its logs are not as they should be.
    """
    stores = existing(runs).storage_parameter(spec.runtime)
    return Collector(spec.name, stores, spec.data, spec.serving, spec.runtime.chunk_rows).collect()


def run_monitoring_periodically(spec: Spec, data: Path | None, runs: Path, seconds: int, port: int) -> None:
    """Look every so many seconds until stopped; start the schedule's trainings; tell Prometheus.

    Args:
        spec: The declaration.
        data: The log, for trainings.
        runs: Folder of runs and stores.
        seconds: From the begin of one look to that of the next.
        port: Of the metrics, on 127.0.0.1; 0 for any.

    Raises:
        ShortlistError: Nothing was ever trained here, or the data are not given or not there.
    """
    console = Console(highlight=False)
    watch = _watch(spec, existing(runs))
    since = datetime.now(UTC)
    with serve_metrics(watch.monitoring_store, port) as at:
        console.print(f"Looking every {seconds} s. Metrics: http://127.0.0.1:{at}/metrics   Stop: Ctrl-C")
        with suppress(KeyboardInterrupt):
            while True:
                began = time.monotonic()
                if _turn(spec, data, runs, watch, since, console) == _INTERRUPTED:
                    break
                time.sleep(max(0.0, began + seconds - time.monotonic()))
        console.print("Stopped looking.")


def _turn(spec: Spec, data: Path | None, runs: Path, watch: MonitoringJob, since: datetime, console: Console) -> int:
    """Look once, and start what the schedule asks for; return the exit code of what ran last."""
    try:
        code = run_monitoring_locally(spec, data, runs)
        if code != _INTERRUPTED and (decision := due(spec, watch, since, datetime.now(UTC))) is not None:
            code = run_locally(spec, data, runs, decision=decision)
    except ShortlistError as problem:  # the next look may find it mended
        console.print(str(problem), markup=False, soft_wrap=True)
        return 1
    return code


def due(spec: Spec, watch: MonitoringJob, since: datetime, now: datetime) -> RetrainDecision | None:
    """Return the training that the schedule asks for now, its begin noted; None when there is none, or others run it.

    Args:
        spec: Declares the schedule.
        watch: Of the spec.
        since: Earlier moments of the schedule are not made up for.
        now: The present moment.
    """
    if spec.schedule.retrain is None:
        return None
    if newest_moment(spec.schedule.retrain, now) <= since:
        return None
    begun, decision = begin_moment(watch.monitoring_store, spec.schedule.retrain, spec.monitoring.retrain, now)
    return decision if begun else None


def _watch(spec: Spec, state: RunsFolder) -> MonitoringJob:
    return MonitoringJob(
        spec.name, state.storage_parameter(spec.runtime), spec.monitoring, spec.gates.slices, spec.serving.log.sampling
    )
