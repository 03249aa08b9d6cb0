"""One trial: a training in a separate process, measured on the validation days.

A crash, lack of memory or a hang of the process is reported to the search and does not end it.
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

from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.evaluation.metrics.measure import FEWEST_RANKED_USERS
from shortlist.evaluation.metrics.ranking import auc_per_group, gauc
from shortlist.ranking.inputs import split_of
from shortlist.ranking.saved_models import ranker_class
from shortlist.ranking.validation import validation_metrics
from shortlist.spec.runtime import Runtime
from shortlist.spec.tune import Metric
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable
from shortlist.system.progress import EVENTS_VARIABLE

_JOB_FILE: Final = "trial.json"
_MESSAGES_FILE: Final = "said.jsonl"
_LOG_FILE: Final = "log"
_POLL_SECONDS: Final = 0.05
_COMMAND: Final = (sys.executable, "-m", "shortlist.training.tuning.trial")

OnLoss = Callable[[int, float], bool]
"""on_loss(epoch or tree, validation log loss) returns whether the training continues."""


class TrialFailure(Exception):  # noqa: N818 - the trial has failed, not the search
    """A trial without metrics, with the reason in one line."""


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
    """Metric that trials are compared by."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the job in a file."""
        return cls.model_validate(read_json(path))


def run_trial(
    job: TrialJob, on_loss: OnLoss, deadline: float | None = None, command: Sequence[str] = _COMMAND
) -> dict[str, float] | None:
    """Train in a separate process; return the metrics, None when it was stopped early.

    Args:
        job: The job.
        on_loss: Called after every epoch or tree.
        deadline: `time.monotonic()` at which the trial is stopped; None: never.
        command: Command of the process; the folder of the job is appended.

    Returns:
        `auc` and `log_loss` of the validation days, and `gauc` where it can be measured.

    Raises:
        TrialFailure: The training raised an error, crashed, or was killed.
    """
    with TemporaryDirectory(prefix="shortlist-trial-") as scratch:
        folder = Path(scratch)
        write_json(folder / _JOB_FILE, json.loads(job.model_dump_json()))
        (folder / _MESSAGES_FILE).touch()
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "TMPDIR": scratch}
        environment.pop(EVENTS_VARIABLE, None)  # the search reports progress, its trials do not
        with (folder / _LOG_FILE).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, scratch], stdout=log, stderr=log, env=environment, start_new_session=True
            )
            try:
                messages = _TrialMessages(folder / _MESSAGES_FILE)
                while process.poll() is None:
                    is_late = deadline is not None and time.monotonic() >= deadline
                    if is_late or not all(on_loss(step, loss) for step, loss in messages.read_losses()):
                        return None
                    time.sleep(_POLL_SECONDS)
            finally:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        for step, loss in messages.read_losses():
            on_loss(step, loss)
        if messages.measured is None or process.returncode:
            raise TrialFailure(messages.problem or _exit_reason(process.returncode, folder / _LOG_FILE))
        return messages.measured


class _TrialMessages:
    """Messages that a trial has written so far."""

    def __init__(self, path: Path) -> None:
        self.measured: dict[str, float] | None = None
        self.problem = ""
        self._path = path
        self._offset = 0

    def read_losses(self) -> list[tuple[int, float]]:
        """Return new epochs or trees, and their losses."""
        new_losses = []
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._offset)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break  # an incomplete line
                self._offset = file.tell()
                message = json.loads(line)
                if "loss" in message:
                    new_losses.append((message["step"], message["loss"]))
                self.measured = message.get("measured", self.measured)
                self.problem = message.get("problem", self.problem)
        return new_losses


def _exit_reason(code: int, log: Path) -> str:
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, most often for want of memory"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"ended with exit code {code}: {lines[-1].strip() if lines else 'without a word'}"


def measure(job: TrialJob, on_epoch: Callable[[dict[str, Any]], None]) -> dict[str, float]:
    """Train a job's model in this process, and measure it on the validation days; test days are never read.

    Args:
        job: The job.
        on_epoch: Called with the metrics of every epoch or tree.

    Returns:
        `auc`, `log_loss`, and `gauc` where users have rows of both classes.

    Raises:
        ShortlistError: Table and section are incompatible, training diverged, or the job's metric cannot be measured.
    """
    ranker_type = ranker_class(job.kind)
    ranker = ranker_type(ranker_type.section_type.model_validate(job.section), job.name)
    table = DayTable.open(Path(job.table), Files.TABLE)
    ranker.fit(table, job.runtime, on_epoch)
    days = set(split_of(table).validation)
    labels, users = _labels_and_users(table)
    scores = np.concatenate([ranker.predict(frame) for _, frame in table.frames(days)])
    metrics = validation_metrics(labels, scores)
    if metrics["validation_auc"] is None:
        raise ShortlistError("the validation days have labels of one class; declare more of them")
    metrics["validation_gauc"] = None if users is None else gauc(labels, scores.astype(np.float64), users)
    if metrics.get(f"validation_{job.metric}") is None:
        raise ShortlistError(
            f"tune.metric: {job.metric}: no user has clicks and other rows on the validation days; declare metric: auc"
        )
    return {name.removeprefix("validation_"): float(value) for name, value in metrics.items() if value is not None}


def deciding_metric(table: DayTable) -> Metric:
    """Return the default metric of a search: the one that gates would choose, on the validation days."""
    labels, users = _labels_and_users(table)
    if users is None:
        return "auc"
    ranked = auc_per_group(labels, np.zeros(len(labels)), users).groups.size
    return "gauc" if ranked >= FEWEST_RANKED_USERS else "auc"


def _labels_and_users(table: DayTable) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the label and the user's number of every validation row, -1 for none; None where the log has no users."""
    rows = pl.scan_parquet(table.paths(set(split_of(table).validation)), hive_partitioning=False)
    columns = [name for name in (Columns.LABEL, Columns.USER) if name in rows.collect_schema().names()]
    validation_rows = rows.select(columns).collect()
    users = (
        validation_rows[Columns.USER].rank("dense").cast(pl.Int64).fill_null(0).to_numpy() - 1
        if len(columns) > 1
        else None
    )
    return validation_rows[Columns.LABEL].to_numpy().astype(np.float64), users


def main() -> None:
    """Run `python -m shortlist.training.tuning.trial FOLDER`; a mistake of the user is a message and exit code 1."""
    folder, parent = Path(sys.argv[1]), os.getppid()
    with suppress(OSError):  # when memory runs out, the kernel kills this process and not the search
        Path("/proc/self/oom_score_adj").write_text("1000")
    with (folder / _MESSAGES_FILE).open("a", encoding="utf-8") as file:

        def send(**fields: Any) -> None:
            file.write(json.dumps(fields) + "\n")
            file.flush()

        def on_epoch(epoch_metrics: dict[str, Any]) -> None:
            if os.getppid() != parent:
                raise SystemExit(1)  # the search has ended
            loss = epoch_metrics.get("validation_log_loss")
            if loss is not None and np.isfinite(loss):
                send(step=epoch_metrics.get("epoch", epoch_metrics.get("round")), loss=float(loss))

        try:
            send(measured=measure(TrialJob.read(folder / _JOB_FILE), on_epoch))
        except ShortlistError as error:
            send(problem=str(error))
            raise SystemExit(1) from None


if __name__ == "__main__":
    main()
