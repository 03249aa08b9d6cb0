"""One trial: a training in a process of its own, measured on the validation days.

What it does to its process (a crash, all memory, a hang) is reported to the search and ends nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict

from models.inputs import split_of
from models.ranker import Ranker
from models.registry import kind_of
from models.validation import quality
from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.evaluation.measure import FEWEST_RANKED_USERS
from shortlist.evaluation.ranking import auc_per_group, gauc
from shortlist.spec.runtime import Runtime
from shortlist.spec.tune import Metric
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable
from shortlist.system.progress import EVENTS_VARIABLE

_JOB: Final = "trial.json"
_SAID: Final = "said.jsonl"
_LOG: Final = "log"
_POLL_SECONDS: Final = 0.05
_COMMAND: Final = (sys.executable, "-m", "shortlist.training.tuning.trial")

OnLoss = Callable[[int, float], bool]
"""on_loss(epoch or tree, validation log loss) says whether the training goes on."""


class TrialFailure(Exception):  # noqa: N818 - the trial has failed, not the search
    """A trial that left no measurement; says why in one line."""


class TrialJob(BaseModel):
    """Input of a trial."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    name: str
    section: dict[str, Any]
    """The model's section with the trial's changes."""
    runtime: Runtime
    table: str
    """Folder of the feature table."""
    metric: Metric = "auc"
    """What is compared."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the job in a file."""
        return cls.model_validate(read_json(path))


def run_trial(
    job: TrialJob, on_loss: OnLoss, deadline: float | None = None, command: Sequence[str] = _COMMAND
) -> dict[str, float] | None:
    """Train in a process of its own; return what was measured, None when it was stopped early.

    Args:
        job: What to train.
        on_loss: Asked after every epoch or tree.
        deadline: `time.monotonic()` at which it is stopped; None: never.
        command: What the process runs; the folder of the job is added.

    Returns:
        `auc` and `log_loss` of the validation days, and `gauc` where it can be measured.

    Raises:
        TrialFailure: The training refused, crashed, or was killed.
    """
    with TemporaryDirectory(prefix="shortlist-trial-") as scratch:
        folder = Path(scratch)
        write_json(folder / _JOB, json.loads(job.model_dump_json()))
        (folder / _SAID).touch()
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "TMPDIR": scratch}
        environment.pop(EVENTS_VARIABLE, None)  # the search shows progress, its trials do not
        with (folder / _LOG).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, scratch], stdout=log, stderr=log, env=environment, start_new_session=True
            )
            try:
                said = _Said(folder / _SAID)
                while process.poll() is None:
                    late = deadline is not None and time.monotonic() >= deadline
                    if late or not all(on_loss(step, loss) for step, loss in said.losses()):
                        return None
                    time.sleep(_POLL_SECONDS)
            finally:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        for step, loss in said.losses():
            on_loss(step, loss)
        if said.measured is None or process.returncode:
            raise TrialFailure(said.problem or _why(process.returncode, folder / _LOG))
        return said.measured


class _Said:
    """Lines that a trial has printed so far."""

    def __init__(self, path: Path) -> None:
        self.measured: dict[str, float] | None = None
        self.problem = ""
        self._path = path
        self._offset = 0

    def losses(self) -> list[tuple[int, float]]:
        """Return the epochs, or trees, and losses that are new."""
        new = []
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._offset)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break  # half a line: its writer is not done
                self._offset = file.tell()
                said = json.loads(line)
                if "loss" in said:
                    new.append((said["step"], said["loss"]))
                self.measured = said.get("measured", self.measured)
                self.problem = said.get("problem", self.problem)
        return new


def _why(code: int, log: Path) -> str:
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, most often for want of memory"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"ended with exit code {code}: {lines[-1].strip() if lines else 'without a word'}"


def measure(job: TrialJob, on_line: Callable[[dict[str, Any]], None]) -> dict[str, float]:
    """Train a job's model here, and measure it on the validation days; test days are never opened.

    Args:
        job: What to train.
        on_line: Called with the history's line after every epoch or tree.

    Returns:
        `auc`, `log_loss`, and `gauc` where users have rows of both classes.

    Raises:
        ShortlistError: The table and the section do not go together, training diverged, or the job's metric cannot
            be measured.
    """
    kind = kind_of(job.kind)
    section = kind.section.model_validate(job.section)
    ranker: Ranker[Any] = kind.load("ranker")(section, job.name)
    table = DayTable.open(Path(job.table), Files.TABLE)
    ranker.fit(table, job.runtime, on_line)
    days = set(split_of(table).validation)
    labels, users = _labels_and_users(table)
    scores = np.concatenate([ranker.predict(frame) for _, frame in table.frames(days)])
    found = quality(labels, scores)
    if found["validation_auc"] is None:
        raise ShortlistError("the validation days have labels of one class; declare more of them")
    found["validation_gauc"] = None if users is None else gauc(labels, scores.astype(np.float64), users)
    if found.get(f"validation_{job.metric}") is None:
        raise ShortlistError(
            f"tune.metric: {job.metric}: no user has clicks and other rows on the validation days; declare metric: auc"
        )
    return {name.removeprefix("validation_"): float(value) for name, value in found.items() if value is not None}


def deciding_metric(table: DayTable) -> Metric:
    """Return what a search compares where the spec says nothing: as the gates choose it, but on the validation days."""
    labels, users = _labels_and_users(table)
    if users is None:
        return "auc"
    ranked = auc_per_group(labels, np.zeros(len(labels)), users).groups.size
    return "gauc" if ranked >= FEWEST_RANKED_USERS else "auc"


def _labels_and_users(table: DayTable) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the label of every validation row, and its user's number, -1 for none; None where the log names none."""
    rows = pl.scan_parquet(table.paths(set(split_of(table).validation)), hive_partitioning=False)
    named = [name for name in (Columns.LABEL, Columns.USER) if name in rows.collect_schema().names()]
    read = rows.select(named).collect()
    users = read[Columns.USER].rank("dense").cast(pl.Int64).fill_null(0).to_numpy() - 1 if len(named) > 1 else None
    return read[Columns.LABEL].to_numpy().astype(np.float64), users


def main() -> None:
    """Run `python -m shortlist.training.tuning.trial FOLDER`; a user's mistake is a line and an exit code."""
    folder, parent = Path(sys.argv[1]), os.getppid()
    with suppress(OSError):  # where memory runs out, the kernel ends this process and not the search
        Path("/proc/self/oom_score_adj").write_text("1000")
    with (folder / _SAID).open("a", encoding="utf-8") as file:

        def say(**what: Any) -> None:
            file.write(json.dumps(what) + "\n")
            file.flush()

        def on_line(line: dict[str, Any]) -> None:
            if os.getppid() != parent:
                raise SystemExit(1)  # nobody waits any more
            loss = line.get("validation_log_loss")
            if loss is not None and np.isfinite(loss):
                say(step=line.get("epoch", line.get("round")), loss=float(loss))

        try:
            say(measured=measure(TrialJob.read(folder / _JOB), on_line))
        except ShortlistError as error:
            say(problem=str(error))
            raise SystemExit(1) from None


if __name__ == "__main__":
    main()
