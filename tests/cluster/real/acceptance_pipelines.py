"""Kubeflow Pipelines for the rows of `acceptance.py`: the product's own submissions and schedules."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acceptance import RowFailedError, TrainingRun

from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.cluster_compile import CompiledGraphs
from shortlist.kubeflow.schedule import apply_schedule, declared_recurring_runs
from shortlist.kubeflow.training_runs import prepare_training, submit_run
from shortlist.spec.spec import Spec

_ENDED = ("SUCCEEDED", "SKIPPED", "FAILED", "CANCELED")
EVERY_MINUTE = "* * * * *"


@dataclass
class KubeflowPipelines:
    """The pipelines of one spec in an experiment of its own."""

    kubeflow: KubeflowClient
    spec_with: Callable[[str], Spec]
    """Returns the spec with a change, such as `models.xgboost.rounds=21`; empty: unchanged."""
    folder: Path
    """Folder for compiled graphs."""
    wait_seconds: float = 3_600
    look_seconds: float = 5.0

    def train(self, attempt: int, change: str = "") -> TrainingRun:
        """Submit a training and return it when it has ended."""
        spec = self.spec_with(change)
        submission = prepare_training(spec, "", self.folder, attempt=attempt)
        submit_run(submission, spec, self.kubeflow)
        for _ in self._looks(f"the end of run {submission.name}"):
            run = self.kubeflow.find_run(self._experiment(spec), submission.name)
            if run is not None and run.state in _ENDED:
                return TrainingRun(str(run.state), (run.finished_at - run.created_at).total_seconds())
        raise AssertionError

    def scheduled_runs(self) -> int:
        """Start a recurring run that is due each minute, wait for its first run, delete it; return its runs."""
        spec = self.spec_with(f"schedule.retrain='{EVERY_MINUTE}'")
        compiled = CompiledGraphs.compile(spec, self.folder)
        apply_schedule(spec, declared_recurring_runs(spec, "", compiled), compiled, self.kubeflow)
        experiment = self._experiment(spec)
        try:
            for _ in self._looks("a run of the schedule"):
                if started := [run for run in self._list("runs", experiment_id=experiment) if run.recurring_run_id]:
                    return len(started)
        finally:
            for recurring_run in self.kubeflow.recurring_runs(experiment):
                self.kubeflow.delete(recurring_run.recurring_run_id)
        raise AssertionError

    def run_ids(self) -> set[str]:
        """Return the ids of all runs of the spec."""
        return {str(run.run_id) for run in self._list("runs", experiment_id=self._experiment(self.spec_with("")))}

    def clean_up(self) -> None:
        """Delete the runs, the pipelines and the experiment."""
        spec, client, calls = self.spec_with(""), self.kubeflow._client, self.kubeflow._calls
        experiment = self._experiment(spec)
        for run in self._list("runs", experiment_id=experiment):
            calls.delete_if_exists(client.runs.run_service_delete_run, run.run_id)
        for pipeline in self._list("pipelines", **self.kubeflow._namespace):
            if str(pipeline.display_name).startswith(f"{spec.name}-"):
                calls.delete_if_exists(
                    _cascading(client.pipelines.pipeline_service_delete_pipeline), pipeline.pipeline_id
                )
        calls.delete_if_exists(client.experiments.experiment_service_delete_experiment, experiment)

    def _experiment(self, spec: Spec) -> str:
        return self.kubeflow.ensure_experiment(spec.runtime.cluster.kfp_experiment)

    def _list(self, kind: str, **filters: str) -> list[Any]:
        api = getattr(self.kubeflow._client, kind)
        return list(self.kubeflow._calls.list_all(getattr(api, f"{kind[:-1]}_service_list_{kind}"), kind, **filters))

    def _looks(self, what: str) -> Iterator[None]:
        deadline = time.monotonic() + self.wait_seconds
        while time.monotonic() < deadline:
            yield
            time.sleep(self.look_seconds)
        raise RowFailedError(f"{what}: not within {self.wait_seconds:g} s")


def _cascading(delete: Callable[..., Any]) -> Callable[..., Any]:
    """Return a deletion of a pipeline with its versions."""
    return lambda pipeline_id, **options: delete(pipeline_id, cascade=True, **options)
