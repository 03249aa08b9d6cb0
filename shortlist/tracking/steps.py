"""One step of a pipeline: its time, its peak memory, and its error messages."""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NoReturn

from shortlist.contracts import NotMeasuredError, ShortlistError, StoreUnavailableError
from shortlist.storage.artefacts import is_disk_full
from shortlist.system.execution import EXECUTION
from shortlist.system.progress import begin_step, emit, read_events


class RunningStep:
    """A step while it runs, and its record afterwards."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: int | None = None
        """Rows of the log or of its feature table that the step processes (and of no other table)."""
        self.champion: int | None = None
        """The spec's champion after a run; the process that started the run remembers it."""
        self.record: dict[str, Any] = {}

    @property
    def json(self) -> str:
        """The record as JSON, for a step without an artefact."""
        return json.dumps(self.record)

    def finish(self, started: datetime, seconds: float) -> None:
        """Fill `record`: name, started (ISO 8601 UTC), seconds, peak_mib of this process.

        Also rows, rows_per_s and champion if known, and engine, where the step declared one (see
        `shortlist.system.execution`).
        """
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.record = {
            "name": self.name,
            "started": started.isoformat(timespec="milliseconds"),
            "seconds": round(seconds, 3),
            "peak_mib": round(peak_mib, 1),
        }
        if self.rows is not None:
            self.record |= {"rows": self.rows, "rows_per_s": round(self.rows / max(seconds, 1e-9))}
        if self.champion is not None:
            self.record["champion"] = self.champion
        if (engine := EXECUTION.record()) is not None:
            self.record["engine"] = engine


@contextmanager
def step(name: str, **paths: str) -> Iterator[RunningStep]:
    """Run a block as a pipeline step.

    Args:
        name: Name of the step.
        paths: Paths of outputs that the parent process reads, even when the step fails.

    Yields:
        The step, with its record once the block has ended.

    A user's mistake (`ShortlistError`) and a full disk end the process with exit code 1 and their message only; any
    other exception is a bug and keeps its traceback. A failed measurement (`NotMeasuredError`) is marked as such in
    the event: its run has an exit code of its own. A store that cannot be reached (`StoreUnavailableError`) ends the
    process with exit code 75 (`os.EX_TEMPFAIL`), after which `components.pod` runs the step again.
    """
    running_step = RunningStep(name)
    EXECUTION.clear()
    atexit.register(_skip_final_garbage_collection)
    started, clock = datetime.now(UTC), time.perf_counter()
    begin_step(name, paths)
    try:
        yield running_step
    except NotMeasuredError as error:
        _stop(
            name,
            f"The step {name} could not measure: {error}\nNothing is judged. The next run measures again,"
            " and reuses the finished steps.",
            not_measured=True,
        )
    except StoreUnavailableError as error:
        _stop(name, str(error), exit_code=os.EX_TEMPFAIL)
    except ShortlistError as error:
        _stop(name, str(error))
    except Exception as error:
        if not is_disk_full(error):
            emit({"event": "fault", "step": name, "message": f"{type(error).__name__}: {error}"})
            raise
        filename = getattr(error, "filename", None) or "while writing"
        _stop(name, f"The disk is full ({filename}). Free some space and run again: finished steps are kept.")
    running_step.finish(started, time.perf_counter() - clock)
    emit({"event": "done", **running_step.record})


def note(text: str) -> None:
    """Emit a sentence that is printed below the run's results."""
    emit({"event": "note", "text": text})


def failure_of_run(stopped: str) -> str:
    """Return which step of this run failed, and its message.

    On one machine the messages of steps are in the run's events. On a cluster they are in the pods' logs, and only the
    name of the step from Kubeflow is known.

    Args:
        stopped: Name of the failed step from Kubeflow; may be empty.
    """
    failed = [event for event in read_events() if event["event"] in ("failed", "fault")]
    if not failed:
        return f"the step {stopped or 'unknown'} failed"
    return f"the step {failed[0]['step']} failed: {failed[0]['message']}"


def _stop(name: str, message: str, *, not_measured: bool = False, exit_code: int = 1) -> NoReturn:
    emit({"event": "failed", "step": name, "message": message, "not_measured": not_measured})
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    raise SystemExit(exit_code)


def _skip_final_garbage_collection() -> None:
    """Skip the garbage collection at exit: 0.15 s instead of 1.1 s where MLflow, torch and XGBoost were loaded."""
    if "duckdb" not in sys.modules:  # it reports objects that are not collected as leaks
        gc.freeze()
