"""Runs a spec's refresh and backfill pipelines on this machine: new feature statistics without a training."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from monitoring.retraining.training_starts import newest_scheduled_time
from pipelines.compile import COMPILED
from pipelines.declared_steps import write_declared
from shortlist.contracts import ShortlistError
from shortlist.features.feast_store_location import spec_feast_store_location
from shortlist.features.previous_fit import DayRange
from shortlist.runs.display import Display
from shortlist.runs.local_training import local_location, run_child, training_arguments
from shortlist.runs.runs_folder import open_runs_folder
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import write_json
from shortlist.storage.storage_config import StorageConfig

_INTERRUPTED: Final = 130
"""Exit code of a run that the user stopped."""
_PARAMETERS: Final = ("name", "data", "features", "runtime", "log", "stores", "code")
"""Parameters that the training graph and the refresh graph share."""


def refresh_arguments(spec: Spec, location: str, stores: str, *, read_later: bool = False) -> dict[str, Any]:
    """Return the refresh pipeline's parameters; see `training_arguments`."""
    arguments = training_arguments(spec, location, stores, read_later=read_later)
    gate_arguments = {"slices": list(spec.gates.slices), "skew_rows": spec.gates.skew_rows}
    return {name: arguments[name] for name in (*_PARAMETERS, "serving")} | gate_arguments


def run_refresh_locally(spec: Spec, data: Path | None, runs: Path) -> int:
    """Collect rows that are due, count new days of the log and publish them with kfp.local; return the exit code.

    Args:
        spec: The spec.
        data: The user's files; None for a generated log.
        runs: Folder of runs and stores.

    Raises:
        ShortlistError: No version serves here, the data are not named or do not exist, or a step failed; servers then
            keep the statistics that they have.
    """
    stores = open_runs_folder(runs, spec.runtime).storage_parameter(spec.runtime)
    return _run_graph("refresh", spec, refresh_arguments(spec, local_location(spec, data), stores), runs)


def backfill_arguments(
    spec: Spec, location: str, stores: str, corrected: DayRange, *, publish: bool, read_later: bool = False
) -> dict[str, Any]:
    """Return the backfill pipeline's parameters.

    Args:
        spec: The spec.
        location: Path of the user's data; empty for a generated log.
        stores: Location of MLflow's and Feast's files (see `RunsFolder.storage_parameter`).
        corrected: The days whose rows, or the rules for them, were corrected.
        publish: Whether the result is published to the servers.
        read_later: Whether only the run reads the data, so that there is no digest of them yet.
    """
    arguments = refresh_arguments(spec, location, stores, read_later=read_later)
    del arguments["serving"]  # it collects nothing
    days = {"first_day": corrected.first.isoformat(), "last_day": corrected.last.isoformat()}
    return {**arguments, **days, "publish": publish}


def run_backfill_locally(spec: Spec, data: Path | None, runs: Path, corrected: DayRange, *, publish: bool) -> int:
    """Recount corrected days with kfp.local, and print which features change; return the exit code.

    The changes are also written to `<runs>/backfill/<spec>/changes.json` (a `FeatureChanges`).

    Args:
        spec: The spec.
        data: The user's files; None for a generated log.
        runs: Folder of runs and stores.
        corrected: The days whose rows, or the rules for them, were corrected.
        publish: Whether the result is published to the servers.

    Raises:
        ShortlistError: No version serves here, the data are not named or do not exist, or a step failed; servers then
            keep the statistics that they have.
    """
    stores = open_runs_folder(runs, spec.runtime).storage_parameter(spec.runtime)
    arguments = backfill_arguments(spec, local_location(spec, data), stores, corrected, publish=publish)
    code = _run_graph("backfill", spec, arguments, runs, {"changes": runs / "backfill" / spec.name / "changes.json"})
    if not publish and not code:
        sys.stdout.write("Nothing is published. The same command with --publish serves it.\n")
    return code


def _run_graph(
    graph: str, spec: Spec, arguments: Mapping[str, Any], runs: Path, copies: Mapping[str, Path] | None = None
) -> int:
    """Run a graph that writes no page, and print the notes of its steps.

    Args:
        graph: Name of the compiled file.
        spec: The spec.
        arguments: Arguments of the graph.
        runs: Folder of runs and stores.
        copies: Destination of files that steps write, by the name under which the steps announce them.
    """
    state = open_runs_folder(runs, spec.runtime)
    run = state.new_run(f"{spec.name}-{graph}")
    write_json(run / "arguments.json", arguments)
    compiled = write_declared(COMPILED / f"{graph}.yaml", spec, run / "graph.yaml")
    with Display(run / "events.jsonl", compiled) as display:
        code = run_child(compiled, run, state, display)
    if code and not display.interrupted:
        raise ShortlistError("\n".join(display.failed.values()) or display.internal_error(run))
    for name, path in (copies or {}).items():
        if not code:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(display.paths[name], path)
    shutil.rmtree(run)
    for line in display.notes:
        Console(highlight=False).print(line, markup=False, soft_wrap=True)
    return _INTERRUPTED if display.interrupted else code


def refresh_is_due(spec: Spec, stores: str, now: datetime) -> bool:
    """Whether a scheduled time of `schedule.refresh` has passed since features were last published.

    Args:
        spec: The spec with the schedule.
        stores: Location of Feast's files.
        now: The current time.
    """
    if spec.schedule.refresh is None:
        return False
    announced = spec_feast_store_location(StorageConfig.parse(stores), spec.name).read_announcement()
    if announced is None:
        return False
    return newest_scheduled_time(spec.schedule.refresh, now) > datetime.fromisoformat(announced["published"])
