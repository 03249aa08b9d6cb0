"""Identities of the processes that claimed work, and whether they are still alive."""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from monitoring.store import record_files
from shortlist.serving.processes.program import process_birth
from shortlist.storage.records.store import RecordStore
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE, RUN_PROCESS_VARIABLE

START_TIMEOUT: Final = timedelta(minutes=10)
"""Claimed work that has not started within this time may be claimed again."""
RUN_TIMEOUT: Final = timedelta(hours=24)
"""Work of a process on another machine, which cannot be observed from here, is given up after this time."""


class ProcessIdentity(BaseModel):
    """A process on a machine, or a step of a Kubeflow run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: str
    """Machine and process namespace in which `pid` is valid."""
    pid: int
    born: str
    """Start time of the process, which distinguishes it from a later one with the same pid."""
    since: datetime
    """When it claimed the work."""
    run: str = Field(default="", exclude_if=lambda run: not run)
    """Kubeflow's id of its run; empty outside a cluster."""

    @classmethod
    def this_process(cls, since: datetime) -> ProcessIdentity:
        """Return the calling process; within a step of a local pipeline, the process that runs the pipeline."""
        pid = int(os.environ.get(RUN_PROCESS_VARIABLE) or os.getpid())
        run = os.environ.get(RUN_ID_VARIABLE, "")
        return cls(place=_machine_and_namespace(), pid=pid, born=process_birth(pid) or "", since=since, run=run)

    @property
    def is_local(self) -> bool:
        """Whether it is observable from here: in the same process namespace, and no step of a Kubeflow run."""
        return self.place == _machine_and_namespace() and not self.run

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended; False for a process that is not local."""
        return self.is_local and process_birth(self.pid) != self.born

    def is_same_run(self, identity: ProcessIdentity) -> bool:
        """Return whether both belong to the same run of a pipeline, or are the same process."""
        if self.run or identity.run:
            return self.run == identity.run
        return (self.place, self.pid, self.born) == (identity.place, identity.pid, identity.born)

    def __str__(self) -> str:
        return f"Kubeflow run {self.run}" if self.run else f"process {self.pid} on {self.place.split()[0]}"

    def is_claim_expired(self, now: datetime) -> bool:
        """Return whether work that it claimed and did not start may be claimed by others."""
        return self.is_dead or now - self.since > START_TIMEOUT

    def lost_reason(self, now: datetime) -> str:
        """Return the reason why work that it started is lost; empty while it may still end."""
        if self.is_dead:
            return f"{self} ran it and died"
        if not self.is_local and now - self.since > RUN_TIMEOUT:
            hours = RUN_TIMEOUT.total_seconds() / 3600
            return f"{self} ran it, and has not reported for {hours:g} h"
        return ""


class WorkClaims:
    """Claims of work: one record per piece of work, with the process that owns it.

    Args:
        state: The record store; the records are below `owners/`.
    """

    def __init__(self, state: RecordStore) -> None:
        self._state = state

    def take(self, work: str, now: datetime) -> None:
        """Make this process the owner."""
        record_files.replace(self._state, f"owners/{work}.json", ProcessIdentity.this_process(now))

    def owner(self, work: str) -> ProcessIdentity | None:
        """Return the owner; None when the process died before it wrote its claim."""
        return record_files.read(self._state, f"owners/{work}.json", ProcessIdentity, "the owner of a decision")


def _machine_and_namespace() -> str:
    # Containers may share a hostname and a boot id, and still have process namespaces of their own.
    return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
