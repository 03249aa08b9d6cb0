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
_GIVEN: Final = "MLFLOW_RUN_ID"
"""Environment variable in which Kubeflow's MLflow plugin hands on the run it has opened; ours belong below it."""
_PROCESS_VARIABLE: Final = "SHORTLIST_RUN_PROCESS"
PIPELINE: Final = "shortlist.pipeline"
"""Tag with the name of the pipeline's run, of it and of the trainings below it."""
_PROCESS: Final = "shortlist.process"
"""Tag of a pipeline's run on one machine: host and number of the process that ends it."""

FAILURE: Final = "failure"
"""Tag of a pipeline's run that failed: the step and its message."""
_LONGEST_TAG: Final = 5_000
"""Characters of a tag that every MLflow store keeps."""

PARENT: Final = "mlflow.parentRunId"
SOURCE: Final = {"mlflow.source.name": "pipelines/training.py", "mlflow.source.type": "PROJECT"}
"""Tags from which MLflow shows where a run comes from."""


def pipeline_name() -> str:
    """Return what names the pipeline's run that this process is a step of; empty outside of one."""
    return os.environ.get(RUN_VARIABLE) or os.environ.get(RUN_ID_VARIABLE) or ""


class PipelineRuns:
    """The runs of a spec's pipelines in its experiment."""

    def __init__(self, client: Any, experiment: str) -> None:
        self._client = client
        self._experiment = experiment

    def begin(self, tags: Mapping[str, str], started: datetime) -> str:
        """Return the id of the run of this step's pipeline, begun unless it is there; empty outside of a pipeline.

        Runs of pipelines on this machine whose process has died are marked as killed.
        """
        found = self.current()
        if found or not pipeline_name():
            return found
        for run in self._client.search_runs([self._experiment], "attributes.status = 'RUNNING'"):
            if _is_dead(run.data.tags.get(_PROCESS, "")):
                self._client.set_terminated(run.info.run_id, "KILLED")
        own = {**SOURCE, **tags, PIPELINE: pipeline_name(), "kind": "pipeline"}
        if pid := os.environ.get(_PROCESS_VARIABLE):
            own[_PROCESS] = f"{socket.gethostname()} {pid}"
        name = pipeline_name().partition(".")[0]
        moment = round(started.timestamp() * 1_000)
        return str(self._client.create_run(self._experiment, moment, own, name).info.run_id)

    def current(self) -> str:
        """Return the id of the run of this step's pipeline; empty when there is none."""
        if given := os.environ.get(_GIVEN):
            return given
        if not (name := pipeline_name()):
            return ""
        found = f"tags.`{PIPELINE}` = '{name}' and tags.kind = 'pipeline'"
        runs = self._client.search_runs([self._experiment], found, max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def end(self, failure: str = "") -> None:
        """End the run of this step's pipeline, with the reason if it failed; Kubeflow ends the one that it opened."""
        run = self.current()
        if not run:
            return
        if failure:
            self._client.set_tag(run, FAILURE, _cut(failure))
        if not os.environ.get(_GIVEN):
            self._client.set_terminated(run, "FAILED" if failure else "FINISHED")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TAG else f"{text[: _LONGEST_TAG - 1]}\N{HORIZONTAL ELLIPSIS}"


def _is_dead(process: str) -> bool:
    """Return whether a process of this machine has ended; nothing is known of those elsewhere."""
    host, _, pid = process.rpartition(" ")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    with suppress(PermissionError):  # there is one, of another user
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
    return False
