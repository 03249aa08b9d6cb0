"""Which process took on a piece of work, and whether it is still there to do it."""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from monitoring.store import record_files
from shortlist.serving.processes.program import born
from shortlist.storage.records.store import RecordStore
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE

START_TIMEOUT: Final = timedelta(minutes=10)
"""Within this time claimed work begins; then anybody may claim it again."""
RUN_TIMEOUT: Final = timedelta(hours=24)
"""Work on another machine, whose process nobody here can see, is given up after this time."""

RUN_PROCESS_VARIABLE: Final = "SHORTLIST_RUN_PROCESS"
"""Environment variable with the process that runs a pipeline on this machine."""


class ProcessIdentity(BaseModel):
    """A process on some machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: str
    """Machine and process namespace: only there does the number mean this process."""
    pid: int
    born: str
    """Tells it from a later process of the same number."""
    since: datetime
    """When it took the work on."""
    run: str = Field(default="", exclude_if=lambda run: not run)
    """Kubeflow's id of the run that it belongs to; empty outside a cluster."""

    @classmethod
    def this_process(cls, since: datetime) -> ProcessIdentity:
        """Return the process that asks; for a step of a pipeline, the one that runs the pipeline and outlives it."""
        pid = int(os.environ.get(RUN_PROCESS_VARIABLE) or os.getpid())
        run = os.environ.get(RUN_ID_VARIABLE, "")
        return cls(place=_place(), pid=pid, born=born(pid) or "", since=since, run=run)

    @property
    def is_here(self) -> bool:
        """Whether this process can tell whether that one lives; a step of a Kubeflow run says nothing by its death."""
        return self.place == _place() and not self.run

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended; nothing is known of a process elsewhere."""
        return self.is_here and born(self.pid) != self.born

    def is_same_run(self, other: ProcessIdentity) -> bool:
        """Whether both belong to one run of a pipeline, or are one process."""
        if self.run or other.run:
            return self.run == other.run
        return (self.place, self.pid, self.born) == (other.place, other.pid, other.born)

    def __str__(self) -> str:
        return f"Kubeflow run {self.run}" if self.run else f"process {self.pid} on {self.place.split()[0]}"

    def is_claim_expired(self, now: datetime) -> bool:
        """Whether work that it claimed and did not begin may be claimed by others."""
        return self.is_dead or now - self.since > START_TIMEOUT

    def lost_reason(self, now: datetime) -> str:
        """Return why work that it began will never end; empty while it may."""
        if self.is_dead:
            return f"{self} ran it and died"
        if not self.is_here and now - self.since > RUN_TIMEOUT:
            hours = RUN_TIMEOUT.total_seconds() / 3600
            return f"{self} ran it, and has not reported for {hours:g} h"
        return ""


class WorkClaims:
    """Who answers for which piece of work: one small record each.

    Args:
        state: Where they are kept, below `owners/`.
    """

    def __init__(self, state: RecordStore) -> None:
        self._state = state

    def take(self, work: str, now: datetime) -> None:
        """Make this process the owner."""
        record_files.replace(self._state, f"owners/{work}.json", ProcessIdentity.this_process(now))

    def of(self, work: str) -> ProcessIdentity | None:
        """Return the owner; None when the process died before it could sign."""
        return record_files.read(self._state, f"owners/{work}.json", ProcessIdentity, "the owner of a decision")


def _place() -> str:
    # Containers may share a name and a boot, and still number their processes each on its own.
    return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
