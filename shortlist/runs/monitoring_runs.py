"""Runs a spec's monitoring pipeline on this machine: once, or periodically with the scheduled trainings."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from monitoring.exposition import serve_metrics
from monitoring.monitoring_job import MonitoringJob
from monitoring.retraining.training_starts import begin_scheduled_training, newest_scheduled_time
from monitoring.windows.records import RetrainDecision
from shortlist.collecting.collector import Collector, CollectorRun, describe_batch
from shortlist.contracts import Files, ShortlistError
from shortlist.data.collected import CollectedLog
from shortlist.runs.display import Display
from shortlist.runs.local_training import finish_training, graph_arguments, local_location, run_child, run_locally
from shortlist.runs.refresh_runs import refresh_is_due, run_refresh_locally
from shortlist.runs.runner import roles_of
from shortlist.runs.runs_folder import RunsFolder, open_runs_folder
from shortlist.runs.runs_page import write_runs_page
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json, write_json
from shortlist.tracking.run_context import RunContext
from shortlist.training.withdrawn_batches import versions_with_batch

_MOST_LINES: Final = 6
"""Lines that one check prints."""
_INTERRUPTED: Final = 130
"""Exit code of a run that the user stopped."""


def new_lines(lines: Sequence[str], shown: set[str]) -> list[str]:
    """Return the lines that were not shown before, the first ones and how many more there are; remember all.

    >>> shown = set()
    >>> new_lines([f"alarm {number}" for number in range(9)], shown)[-2:]
    ['alarm 5', '... and 3 more, on the page of the newest window']
    >>> new_lines(["alarm 8", "alarm 9"], shown)
    ['alarm 9']
    """
    fresh = [line for line in lines if line not in shown]
    shown.update(fresh)
    rest = len(fresh) - _MOST_LINES
    return fresh if rest <= 0 else [*fresh[:_MOST_LINES], f"... and {rest} more, on the page of the newest window"]


def run_monitoring_locally(spec: Spec, data: Path | None, runs: Path, shown: set[str] | None = None) -> int:
    """Check live traffic once with kfp.local, and train when that is decided; return the exit code.

    Where no training starts and a refresh is due, newer statistics are published.

    Args:
        spec: The spec.
        data: The log, for a training.
        runs: Folder of runs and stores.
        shown: Lines of earlier checks, which are not printed again; None: of none.

    Returns:
        0 when traffic is fine or a training succeeded; 1 when a person is needed; 130 when stopped.

    Raises:
        ShortlistError: No model was trained here, or the data are not named or do not exist.
    """
    state = open_runs_folder(runs, spec.runtime)
    run = state.new_run(f"{spec.name}-watch")
    stores = state.storage_parameter(spec.runtime)
    arguments = graph_arguments(spec, local_location(spec, data), stores)
    write_json(run / "arguments.json", arguments)
    started = datetime.now(UTC)
    console = Console(highlight=False)
    if shown is None:
        console.print(f"Judging the windows of '{spec.name}' that have become complete since the last check ...")
    with Display(run / "events.jsonl", roles_of(arguments)) as display:
        code = run_child("monitoring", spec, run, state, display)
    if "find_champion" in display.finished:  # a training started
        code = finish_training(spec, run, runs, display, code, started)
        keep_served_features(spec, state)
        return code
    if code and not display.interrupted:
        raise ShortlistError("\n".join(display.failed.values()) or display.internal_error(run))
    shutil.rmtree(run)
    keep_served_features(spec, state)
    write_runs_page(state)
    for line in new_lines(display.notes, set() if shown is None else shown):
        console.print(line, markup=False, soft_wrap=True)
    if not code and refresh_is_due(spec, stores, datetime.now(UTC)):
        code = run_refresh_locally(spec, data, runs)
    newest = _monitoring_job(spec, state).newest_decision()
    return code or int(newest is not None and newest.action == "page")


def keep_served_features(spec: Spec, state: RunsFolder) -> None:
    """Write the newest comparison of served features into the newest run's folder, if it is a run of the spec."""
    latest = state.root / "latest"
    comparison = _monitoring_job(spec, state).served_features
    summary = latest / Files.SUMMARY
    if comparison is not None and summary.exists() and read_json(summary).get("spec") == spec.name:
        write_json(latest / Files.SERVED_FEATURES, comparison.model_dump(mode="json"))


def collect_locally(spec: Spec, runs: Path) -> CollectorRun:
    """Publish the rows of live traffic whose outcomes are due, on this machine; return what was published.

    Raises:
        ShortlistError: No model was trained here, the spec collects nothing, or its logs are malformed.
    """
    stores = open_runs_folder(runs, spec.runtime).storage_parameter(spec.runtime)
    return Collector(spec.name, stores, spec.data, spec.serving, spec.runtime.chunk_rows).collect()


def withdraw_locally(spec: Spec, runs: Path, number: int) -> tuple[str, ...]:
    """Withdraw a batch of collected rows; return sentences about it, with the versions that were trained with it.

    Raises:
        ShortlistError: No model was trained here, or there is no such batch.
    """
    stores = open_runs_folder(runs, spec.runtime).storage_parameter(spec.runtime)
    batch = CollectedLog.open(stores, spec.name).withdraw(number, datetime.now(UTC))
    registry = RunContext(name=spec.name, stores=stores).tracker.registry
    champion, versions = registry.version_of("champion"), versions_with_batch(registry, number)
    names = ", ".join(f"version {version}{' (champion)' * (version == champion)}" for version in versions)
    return (
        f"Withdrawn: {describe_batch(batch)}.",
        f"Trained with it: {names}." if versions else "No version was trained with it.",
        "Servers read statistics that count its rows until others are published:"
        f" .venv/bin/shortlist refresh {spec.name}",
    )


def run_monitoring_periodically(spec: Spec, data: Path | None, runs: Path, seconds: int, port: int) -> None:
    """Check live traffic periodically until stopped; start the scheduled trainings; export metrics for Prometheus.

    Args:
        spec: The spec.
        data: The log, for trainings.
        runs: Folder of runs and stores.
        seconds: Time from the start of one check to the start of the next.
        port: Port of the metrics, on 127.0.0.1; 0 for any free port.

    Raises:
        ShortlistError: No model was trained here, or the data are not named or do not exist.
    """
    console = Console(highlight=False)
    watch = _monitoring_job(spec, open_runs_folder(runs, spec.runtime))
    since, shown = datetime.now(UTC), set[str]()
    with serve_metrics(watch.monitoring_store, port) as at:
        console.print(f"Monitoring every {seconds} s. Metrics: http://127.0.0.1:{at}/metrics   Stop: Ctrl-C")
        with suppress(KeyboardInterrupt):
            while True:
                began = time.monotonic()
                if _run_once(spec, data, runs, watch, since, console, shown) == _INTERRUPTED:
                    break
                time.sleep(max(0.0, began + seconds - time.monotonic()))
        console.print("Monitoring has stopped.")


def _run_once(
    spec: Spec,
    data: Path | None,
    runs: Path,
    watch: MonitoringJob,
    since: datetime,
    console: Console,
    shown: set[str],
) -> int:
    """Check once, and start a scheduled training that is due; return the exit code of what ran last."""
    try:
        code = run_monitoring_locally(spec, data, runs, shown)
        if (
            code != _INTERRUPTED
            and (decision := start_scheduled_training(spec, watch, since, datetime.now(UTC))) is not None
        ):
            code = run_locally(spec, data, runs, decision=decision)
    except ShortlistError as problem:  # the next check may succeed
        console.print(str(problem), markup=False, soft_wrap=True)
        return 1
    return code


def start_scheduled_training(
    spec: Spec, watch: MonitoringJob, since: datetime, now: datetime
) -> RetrainDecision | None:
    """Record the start of a scheduled training and return its decision; None when none is due or another one runs.

    Args:
        spec: The spec with the schedule.
        watch: The spec's monitoring job.
        since: Trainings that were due before this time are not caught up.
        now: The current time.
    """
    if spec.schedule.retrain is None:
        return None
    if newest_scheduled_time(spec.schedule.retrain, now) <= since:
        return None
    started, decision = begin_scheduled_training(
        watch.monitoring_store, spec.schedule.retrain, spec.monitoring.retrain, now
    )
    return decision if started else None


def _monitoring_job(spec: Spec, state: RunsFolder) -> MonitoringJob:
    return MonitoringJob(
        spec.name, state.storage_parameter(spec.runtime), spec.monitoring, spec.gates.slice_columns, spec.serving,
        spec.ordering,
    )  # fmt: skip
