"""A step's job on Kubernetes: created once however often the step runs, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from shortlist.contracts import ShortlistError
from shortlist.system.kubernetes_api import ClusterError, ConflictError, KubernetesAPI, Object, ResourceKind
from shortlist.system.progress import emit

_POLL_SECONDS: Final = 5.0


class JobState(NamedTuple):
    """What the status of a job says."""

    outcome: Literal["running", "complete", "failed"]
    text: str
    """Its progress, or why it failed."""


class StepJob(NamedTuple):
    """A job that a step creates; its name contains a digest of all inputs, so that a repeated step finds it."""

    kubernetes: KubernetesAPI
    kind: ResourceKind
    manifest: Object
    read_state: Callable[[Object], JobState]
    sleep: Callable[[float], None] = time.sleep

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.manifest["metadata"]["name"])

    def start(self, prepare: Callable[[], object] = lambda: None) -> None:
        """Create the job unless it exists and has not failed; a failed one is deleted first.

        Args:
            prepare: Called before the job is created.
        """
        existing_job = self.kubernetes.get(self.kind, self.name)
        if existing_job is not None and self.read_state(existing_job).outcome == "failed":
            self.kubernetes.delete(self.kind, existing_job)
            while self.kubernetes.get(self.kind, self.name) is not None:
                self.sleep(_POLL_SECONDS)
            existing_job = None
        if existing_job is None:
            prepare()
            try:
                self.kubernetes.create(self.kind, self.manifest)
            except ConflictError:  # an earlier attempt, or the same step elsewhere, created it
                return

    def wait(self, most_seconds: float = float("inf")) -> JobState:
        """Return the state in which the job ended, or its last one where it has not ended in time; report its progress.

        Raises:
            ShortlistError: Somebody deleted it.
        """
        last_text, deadline = "", time.monotonic() + most_seconds
        while time.monotonic() < deadline:
            job = self.kubernetes.get(self.kind, self.name)
            if job is None:
                raise ShortlistError(
                    f"{self.kind.name} {self.name}: somebody deleted it before it ended; run the step again"
                )
            state = self.read_state(job)
            if state.outcome != "running":
                return state
            if state.text != last_text:
                label = f"{self.kind.name} {self.name}"
                emit({"event": "progress", "label": label, "done": 0, "total": None, "unit": "", "text": state.text})
                last_text = state.text
            self.sleep(_POLL_SECONDS)
        return JobState("running", last_text)

    def delete(self) -> None:
        """Delete the job and its pods, where it still exists."""
        job = self.kubernetes.get(self.kind, self.name)
        if job is not None:
            self.kubernetes.delete(self.kind, job)

    def recent_events(self) -> str:
        """Return the latest events of the job, a line each; empty where this account may not read them."""
        try:
            events = self.kubernetes.events(self.name)[-3:]
        except ClusterError:
            return ""
        return "".join(f"\n  {event.get('reason')}: {event.get('message')}" for event in events)
