"""Runs a spec's refresh and backfill pipelines on this machine: new feature statistics without a training."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from monitoring.retraining.training_starts import newest_scheduled_time
from shortlist.contracts import ShortlistError
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.fits.previous_fit import DayRange
from shortlist.runs.display import Display
from shortlist.runs.local_training import graph_arguments, local_location, run_child
from shortlist.runs.runs_folder import open_runs_folder
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import write_json
from shortlist.storage.storage_config import StorageConfig

if TYPE_CHECKING:  # importing kfp takes seconds, which only the child process needs
    from pipelines.compile import GraphName

_INTERRUPTED: Final = 130
"""Exit code of a run that the user stopped."""


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
    return _run_graph("refresh", spec, graph_arguments(spec, local_location(spec, data), stores), runs)


def backfill_arguments(corrected: DayRange, *, publish: bool) -> dict[str, Any]:
    """Return the parameters that only the backfill graph has.

    Args:
        corrected: The days whose rows, or the rules for them, were corrected.
        publish: Whether the result is published to the servers.
    """
    return {"first_day": corrected.first.isoformat(), "last_day": corrected.last.isoformat(), "publish": publish}


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
    arguments = graph_arguments(spec, local_location(spec, data), stores) | backfill_arguments(
        corrected, publish=publish
    )
    code = _run_graph("backfill", spec, arguments, runs, {"changes": runs / "backfill" / spec.name / "changes.json"})
    if not publish and not code:
        sys.stdout.write("Nothing is published. The same command with --publish serves it.\n")
    return code


def _run_graph(
    graph: GraphName, spec: Spec, arguments: Mapping[str, Any], runs: Path, copies: Mapping[str, Path] | None = None
) -> int:
    """Run a graph that writes no page, and print the notes of its steps.

    Args:
        graph: Name of the graph.
        spec: The spec.
        arguments: Arguments of the graph.
        runs: Folder of runs and stores.
        copies: Destination of files that steps write, by the name under which the steps announce them.
    """
    state = open_runs_folder(runs, spec.runtime)
    run = state.new_run(f"{spec.name}-{graph}")
    write_json(run / "arguments.json", arguments)
    with Display(run / "events.jsonl") as display:
        code = run_child(graph, spec, run, state, display)
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
