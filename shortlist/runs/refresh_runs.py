"""Runs a spec's refresh and backfill pipelines on this machine: other statistics without a training."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from monitoring.retraining.moments import newest_moment
from pipelines.compile import COMPILED
from pipelines.declared_steps import write_declared
from shortlist.contracts import ShortlistError
from shortlist.features.feast_store_location import spec_feast_store_location
from shortlist.features.previous_fit import DayRange
from shortlist.runs.display import Display
from shortlist.runs.runs_folder import existing
from shortlist.runs.submit import location_of, run_child, training_arguments
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import write_json
from shortlist.storage.storage_config import StorageConfig

_INTERRUPTED: Final = 130
"""Exit code of what the user stopped."""
_PARAMETERS: Final = ("name", "data", "features", "runtime", "log", "stores", "code")
"""Those of the training graph that the refresh graph has too."""


def refresh_arguments(spec: Spec, location: str, stores: str, *, read_later: bool = False) -> dict[str, Any]:
    """Return the refresh pipeline's parameters; see `training_arguments`."""
    arguments = training_arguments(spec, location, stores, read_later=read_later)
    own = {"slices": list(spec.gates.slices), "skew_rows": spec.gates.skew_rows}
    return {name: arguments[name] for name in (*_PARAMETERS, "serving")} | own


def run_refresh_locally(spec: Spec, data: Path | None, runs: Path) -> int:
    """Collect what is due, count what is new in the log and publish it with kfp.local; return the exit code.

    Args:
        spec: The declaration.
        data: The user's files; none for a generated log.
        runs: Folder of runs and stores.

    Raises:
        ShortlistError: Nothing serves here, the data are not given or not there, or a step stopped: servers then keep
            the statistics that they have.
    """
    stores = existing(runs).storage_parameter(spec.runtime)
    return _run("refresh", spec, refresh_arguments(spec, location_of(spec, data), stores), runs)


def backfill_arguments(
    spec: Spec, location: str, stores: str, corrected: DayRange, *, publish: bool, read_later: bool = False
) -> dict[str, Any]:
    """Return the backfill pipeline's parameters.

    Args:
        spec: As for `training_arguments`, likewise location, stores and read_later.
        location: Likewise.
        stores: Likewise.
        corrected: The days whose rows, or their rules, were corrected.
        publish: Whether servers are to read the result.
        read_later: Likewise.
    """
    arguments = refresh_arguments(spec, location, stores, read_later=read_later)
    del arguments["serving"]  # it collects nothing
    days = {"first_day": corrected.first.isoformat(), "last_day": corrected.last.isoformat()}
    return {**arguments, **days, "publish": publish}


def run_backfill_locally(spec: Spec, data: Path | None, runs: Path, corrected: DayRange, *, publish: bool) -> int:
    """Count corrected days again with kfp.local, and say what that changes; return the exit code.

    What changes is also written to `<runs>/backfill/<spec>/changes.json` (a `FeatureChanges`).

    Args:
        spec: The declaration.
        data: The user's files; none for a generated log.
        runs: Folder of runs and stores.
        corrected: The days whose rows, or their rules, were corrected.
        publish: Whether servers are to read the result.

    Raises:
        ShortlistError: Nothing serves here, the data are not given or not there, or a step stopped: servers then keep
            the statistics that they have.
    """
    stores = existing(runs).storage_parameter(spec.runtime)
    arguments = backfill_arguments(spec, location_of(spec, data), stores, corrected, publish=publish)
    code = _run("backfill", spec, arguments, runs, {"changes": runs / "backfill" / spec.name / "changes.json"})
    if not publish and not code:
        sys.stdout.write("Nothing is published. The same command with --publish serves it.\n")
    return code


def _run(
    graph: str, spec: Spec, arguments: Mapping[str, Any], runs: Path, kept: Mapping[str, Path] | None = None
) -> int:
    """Run a graph whose run leaves no page, and print what its steps note.

    Args:
        graph: Name of the compiled file.
        spec: The declaration.
        arguments: Of the graph.
        runs: Folder of runs and stores.
        kept: Where to copy files that steps write, by the name under which these tell of them.
    """
    state = existing(runs)
    run = state.new_run(f"{spec.name}-{graph}")
    write_json(run / "arguments.json", arguments)
    compiled = write_declared(COMPILED / f"{graph}.yaml", spec, run / "graph.yaml")
    with Display(run / "events.jsonl", compiled) as display:
        code = run_child(compiled, run, state, display)
    if code and not display.interrupted:
        raise ShortlistError("\n".join(display.failed.values()) or display.fault(run))
    for name, path in (kept or {}).items():
        if not code:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(display.paths[name], path)
    shutil.rmtree(run)
    for line in display.notes:
        Console(highlight=False).print(line, markup=False, soft_wrap=True)
    return _INTERRUPTED if display.interrupted else code


def refresh_is_due(spec: Spec, stores: str, now: datetime) -> bool:
    """Say whether a moment of `schedule.refresh` has passed since features were published last.

    Args:
        spec: Declares the schedule.
        stores: Where Feast keeps its files.
        now: The present moment.
    """
    if spec.schedule.refresh is None:
        return False
    announced = spec_feast_store_location(StorageConfig.parse(stores), spec.name).announced()
    if announced is None:
        return False
    return newest_moment(spec.schedule.refresh, now) > datetime.fromisoformat(announced["published"])
