"""Runs a spec's training pipeline on this machine and shows how it goes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.compile import COMPILED
from pipelines.display import Display
from pipelines.state import State
from shortlist.artefacts import write_json
from shortlist.config.data import GeneratedSource
from shortlist.config.load import canonical_json
from shortlist.config.spec import Spec
from shortlist.contracts import Files, ShortlistError
from shortlist.progress import EVENTS_VARIABLE


def training_arguments(spec: Spec, location: str, stores: str) -> dict[str, Any]:
    """Return the training pipeline's parameters: one per section, so that a changed section re-runs only what reads it.

    Args:
        spec: The declaration.
        location: Path of the user's data; empty for a generated log.
        stores: Where MLflow and Feast keep their files (see `State.reference`).

    Raises:
        ShortlistError: The data are not there.
    """
    from shortlist.data.digest import input_digest
    from shortlist.tracking.lineage import code_version

    now = datetime.now(UTC) if spec.data.rules.max_age_hours is not None else None
    return {
        "name": spec.name,
        "data": canonical_json(spec.data),
        "features": canonical_json(spec.features),
        "xgboost": canonical_json(spec.models.xgboost) if spec.models.xgboost else "",
        "dlrm": canonical_json(spec.models.dlrm) if spec.models.dlrm else "",
        "logistic": canonical_json(spec.models.logistic_baseline),
        "gates": canonical_json(spec.gates),
        "slices": list(spec.gates.slices),
        "skew_rows": spec.gates.skew_rows,
        "serving": canonical_json(spec.serving),
        "runtime": canonical_json(spec.runtime),
        "location": location,
        "input_digest": input_digest(spec.data, Path(location)),
        "stores": stores,
        "code": code_version(),
        "now": now.isoformat(timespec="seconds") if now else "",
    }


def run_here(spec: Spec, data: Path | None, runs: Path) -> int:
    """Run the training pipeline with kfp.local; return the exit code.

    The run's folder, `<runs>/latest`, ends with the page, the summary, the log and the arguments.

    Raises:
        ShortlistError: The data are not given, or not there.
    """
    location = _location(spec, data)
    state = State.open(runs)
    arguments = training_arguments(spec, location, state.reference)
    run = state.new_run(spec.name)
    write_json(run / "arguments.json", arguments)
    started = datetime.now(UTC)
    with Display(run / "events.jsonl", COMPILED / "training.yaml") as display:
        code = _run_child(run, state, display)
    if "report" in display.finished:
        shutil.copyfile(display.paths["page"], run / Files.REPORT)
        shutil.copyfile(display.paths["summary"], run / Files.SUMMARY)
    else:
        from pipelines.failure import write_failure

        write_failure(spec.name, run, display, started)
    state.point_latest_at(run)
    display.conclude(run, code, relative_to=runs)
    return code


def _location(spec: Spec, data: Path | None) -> str:
    if isinstance(spec.data.source, GeneratedSource):
        return ""
    if data is None:
        raise ShortlistError(
            f"spec '{spec.name}' reads files: say where they are, e.g. make run SPEC={spec.name} DATA=path"
        )
    return str(data.resolve())


def _run_child(run: Path, state: State, display: Display) -> int:
    command = [sys.executable, "-m", "pipelines.runner", str(COMPILED / "training.yaml"), str(run / "arguments.json")]
    # kfp.local leaves a folder per task behind; in a folder of our own they go with the run.
    with TemporaryDirectory(prefix="shortlist-") as scratch, (run / "pipeline.log").open("w") as log:
        # Threads that spin at barriers steal the cores of whoever shares them: 20 times slower on a busy machine.
        calm = {"OMP_WAIT_POLICY": "PASSIVE"}
        environment = {**calm, **os.environ, EVENTS_VARIABLE: str(run / "events.jsonl"), "TMPDIR": scratch}
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
