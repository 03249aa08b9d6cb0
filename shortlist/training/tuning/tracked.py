"""A search in MLflow: a run of its own, with a nested run per trial."""

from __future__ import annotations

from typing import Final

from shortlist.spec.models import ModelSection
from shortlist.tracking.flat import flat
from shortlist.tracking.mlflow_store import Tracker
from shortlist.training.tuning.search import Result, Trial

_STATUS: Final = {"finished": "FINISHED", "stopped early": "KILLED", "failed": "FAILED"}


class TrackedSearch:
    """Writes trials to MLflow as they end.

    Args:
        tracker: The spec's store.
        model: Name of the model.
        section: As it is declared.
        study: Key of the study: a search that goes on adds to the run that it began.
        run: Its run, where that is known; empty: it is looked for, and made where there is none.
    """

    def __init__(self, tracker: Tracker, model: str, section: ModelSection, study: str, run: str = "") -> None:
        self._tracker = tracker
        self._section = section
        self._tags = {"model": model, "kind": section.kind, "tuning": study}
        self.run = run or tracker.open_run(f"tune {model}", self._tags)

    def log(self, trial: Trial) -> None:
        """Write a trial: the section as it was tried, the measurements, and how it ended."""
        params = flat({**self._section.model_dump(mode="json"), **trial.changes})
        tags = {**self._tags, "trial": str(trial.number), "shipped": str(trial.shipped).lower()}
        if trial.reason:
            tags["reason"] = trial.reason
        numbers = {f"validation_{name}": value for name, value in trial.measured.items()} | {"seconds": trial.seconds}
        name = "as shipped" if trial.shipped else f"trial {trial.number}"
        self._tracker.log_nested(self.run, name, params, numbers, tags, _STATUS[trial.state])

    def close(self, result: Result) -> None:
        """Write the best trial's measurements to the search's own run, and end it."""
        best = result.best
        measured = {} if best is None else best.measured
        numbers = {f"best_validation_{name}": value for name, value in measured.items()}
        self._tracker.close_run(self.run, {**numbers, "trials": len(result.trials)})
