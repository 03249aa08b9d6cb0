"""The programs that bring a stack's logs to an object store."""

from __future__ import annotations

import sys
from typing import Final

from shortlist.rollout.local.record import StackRecord
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.program import Program

_KEEP_SECONDS: Final = 86_400
"""A rollout on this machine reads the logs on this disk; it lasts no longer."""


def shipping_programs(places: ServingPaths, record: StackRecord) -> dict[str, Program]:
    """Return a program for each log; none where logs stay on this disk."""
    if not record.log_objects:
        return {}
    folders = {"predictions": places.predictions, "outcomes": places.outcomes}
    return {
        f"shipper-{kind}": Program(
            name=f"shipper-{kind}",
            # What is left when it stops is shipped by the next one: the disk is the same.
            command=(
                sys.executable, "-m", "shortlist.serving.log.log_shipper", "--folder", str(folder), "--kind", kind,
                "--objects", record.log_objects, "--spec", record.model, "--keep-seconds", str(_KEEP_SECONDS),
                "--quiet-seconds", "0",
            ),
            environment={"PYTHONUNBUFFERED": "1"},
        )
        for kind, folder in folders.items()
    }  # fmt: skip
