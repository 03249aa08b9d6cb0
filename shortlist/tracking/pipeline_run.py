"""One MLflow run per run of a pipeline, above the runs of its trainings."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

RUN_VARIABLE: Final = "SHORTLIST_RUN"
"""Environment variable with the name of the run that a step on this machine belongs to."""
RUN_ID_VARIABLE: Final = "KFP_RUN_ID"
"""Environment variable with the id of the Kubeflow run that a step belongs to; the step's pod sets it."""
_PLUGIN_RUN_VARIABLE: Final = "MLFLOW_RUN_ID"
"""Environment variable with the run that Kubeflow's MLflow plugin has opened; our runs are its children."""
RUN_PROCESS_VARIABLE: Final = "SHORTLIST_RUN_PROCESS"
"""Environment variable with the id of the process that runs a pipeline on this machine."""
PIPELINE: Final = "shortlist.pipeline"
"""Tag with the name of the pipeline's run, on that run and on the runs of its trainings."""
_PROCESS: Final = "shortlist.process"
"""Tag of a pipeline's run on one machine: host and id of the process that ends it."""

FAILURE: Final = "failure"
"""Tag of a pipeline's run that failed: the step and its message."""
_LONGEST_TAG: Final = 5_000
"""Longest tag, in characters, that every MLflow store accepts."""

PARENT: Final = "mlflow.parentRunId"
SOURCE: Final = {"mlflow.source.name": "pipelines/training.py", "mlflow.source.type": "PROJECT"}
"""Tags from which MLflow shows the source of a run."""


def pipeline_name() -> str:
    """Return the name of the pipeline's run that this process is a step of; empty outside of a pipeline."""
    return os.environ.get(RUN_VARIABLE) or os.environ.get(RUN_ID_VARIABLE) or ""


class PipelineRuns:
    """The runs of a spec's pipelines in its experiment."""

    def __init__(self, client: Any, experiment: str) -> None:
        self._client = client
        self._experiment = experiment

    def begin(self, tags: Mapping[str, str], started: datetime) -> str:
        """Return the id of the run of this step's pipeline, which is created when missing; empty outside of a pipeline.

        Runs of pipelines on this machine whose process has died are marked as killed.
        """
        run_id = self.current()
        if run_id or not pipeline_name():
            return run_id
        for run in self._client.search_runs([self._experiment], "attributes.status = 'RUNNING'"):
            if _is_dead(run.data.tags.get(_PROCESS, "")):
                self._client.set_terminated(run.info.run_id, "KILLED")
        run_tags = {**SOURCE, **tags, PIPELINE: pipeline_name(), "kind": "pipeline"}
        if pid := os.environ.get(RUN_PROCESS_VARIABLE):
            run_tags[_PROCESS] = f"{socket.gethostname()} {pid}"
        name = pipeline_name().partition(".")[0]
        moment = round(started.timestamp() * 1_000)
        return str(self._client.create_run(self._experiment, moment, run_tags, name).info.run_id)

    def current(self) -> str:
        """Return the id of the run of this step's pipeline; empty when there is none."""
        if plugin_run := os.environ.get(_PLUGIN_RUN_VARIABLE):
            return plugin_run
        if not (name := pipeline_name()):
            return ""
        run_filter = f"tags.`{PIPELINE}` = '{name}' and tags.kind = 'pipeline'"
        runs = self._client.search_runs([self._experiment], run_filter, max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def end(self, failure: str = "") -> None:
        """End the run of this step's pipeline, with the reason if it failed; Kubeflow ends a run that it opened."""
        run = self.current()
        if not run:
            return
        if failure:
            self._client.set_tag(run, FAILURE, _shorten(failure))
        if not os.environ.get(_PLUGIN_RUN_VARIABLE):
            self._client.set_terminated(run, "FAILED" if failure else "FINISHED")


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_TAG else f"{text[: _LONGEST_TAG - 1]}\N{HORIZONTAL ELLIPSIS}"


def _is_dead(process: str) -> bool:
    """Whether a process of this machine has ended; False for processes of other machines."""
    host, _, pid = process.rpartition(" ")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    with suppress(PermissionError):  # it runs, as another user
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
    return False
