"""Runs a spec's refresh pipeline on this machine: newer statistics for what serves, without a training."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from monitoring.retraining.moments import newest_moment
from pipelines.compile import COMPILED
from shortlist.contracts import ShortlistError
from shortlist.features.feast_store_location import spec_feast_store_location
from shortlist.runs.display import Display
from shortlist.runs.runs_folder import existing
from shortlist.runs.submit import location_of, run_child, training_arguments
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import write_json
from shortlist.storage.storage_config import StorageConfig

_INTERRUPTED: Final = 130
"""Exit code of what the user stopped."""
_PARAMETERS: Final = (
    "name", "data", "features", "slices", "skew_rows", "runtime", "location", "input_digest", "stores", "code", "now",
    "until",
)  # fmt: skip
"""Those of the training graph that the refresh graph has too."""


def refresh_arguments(spec: Spec, location: str, stores: str, *, read_later: bool = False) -> dict[str, Any]:
    """Return the refresh pipeline's parameters; see `training_arguments`."""
    arguments = training_arguments(spec, location, stores, read_later=read_later)
    return {name: arguments[name] for name in _PARAMETERS}


def run_refresh_locally(spec: Spec, data: Path | None, runs: Path) -> int:
    """Count what is new in the log and publish it with kfp.local; return the exit code.

    Args:
        spec: The declaration.
        data: The user's files; none for a generated log.
        runs: Folder of runs and stores.

    Raises:
        ShortlistError: Nothing serves here, the data are not given or not there, or a step stopped: servers then keep
            the statistics that they have.
    """
    state = existing(runs)
    run = state.new_run(f"{spec.name}-refresh")
    write_json(
        run / "arguments.json",
        refresh_arguments(spec, location_of(spec, data), state.storage_parameter(spec.runtime)),
    )
    graph = COMPILED / "refresh.yaml"
    with Display(run / "events.jsonl", graph) as display:
        code = run_child(graph, run, state, display)
    if code and not display.interrupted:
        raise ShortlistError("\n".join(display.failed.values()) or display.fault(run))
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
