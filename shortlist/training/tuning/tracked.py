"""A search in MLflow: one run, with a nested run per trial."""

from __future__ import annotations

from typing import Final

from shortlist.spec.models import ModelSection
from shortlist.tracking.flat import flatten
from shortlist.tracking.mlflow_store import Tracker
from shortlist.training.tuning.search import SearchOutcome, Trial

_STATUS: Final = {"finished": "FINISHED", "stopped early": "KILLED", "failed": "FAILED"}


class TrackedSearch:
    """Logs trials to MLflow as they end.

    Args:
        tracker: The spec's store.
        model: Name of the model.
        section: The declared section.
        study: Key of the study; a resumed search adds to its run.
        run: MLflow run of the search; empty: it is looked up by the study, or created.
    """

    def __init__(self, tracker: Tracker, model: str, section: ModelSection, study: str, run: str = "") -> None:
        self._tracker = tracker
        self._section = section
        self._tags = {"model": model, "kind": section.kind, "tuning": study}
        self.run = run or tracker.open_run(f"tune {model}", self._tags)

    def log(self, trial: Trial) -> None:
        """Log a trial: its section, metrics and final state."""
        params = flatten({**self._section.model_dump(mode="json"), **trial.changes})
        tags = {**self._tags, "trial": str(trial.number), "shipped": str(trial.shipped).lower()}
        if trial.reason:
            tags["reason"] = trial.reason
        numbers = {f"validation_{name}": value for name, value in trial.measured.items()} | {"seconds": trial.seconds}
        name = "as shipped" if trial.shipped else f"trial {trial.number}"
        self._tracker.log_nested(self.run, name, params, numbers, tags, _STATUS[trial.state])

    def close(self, outcome: SearchOutcome) -> None:
        """Log the best trial's metrics to the search's run, and end it."""
        best = outcome.best
        measured = {} if best is None else best.measured
        numbers = {f"best_validation_{name}": value for name, value in measured.items()}
        self._tracker.close_run(self.run, {**numbers, "trials": len(outcome.trials)})
