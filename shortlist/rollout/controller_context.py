"""What a controller works with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shortlist.rollout.candidates import blessed_version, registered_version
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet import Fleet, LoadTester, Models, Observer
from shortlist.rollout.interruption import Interruption
from shortlist.rollout.record import RolloutRecord
from shortlist.storage.storage_config import StorageConfig

Prepare = Callable[[Models, int, Path | StorageConfig | None, Path | None], Deployment]
"""From registry, version, Feast's stores and a folder for files to be fetched, to what can be deployed."""


@dataclass(frozen=True)
class ControllerContext:
    """Servers, registry, load test, canary analysis; and a clock."""

    fleet: Fleet
    models: Models
    observe: Callable[[RolloutRecord], Observer]
    """Gives the observer of a rollout; called once by each controller."""
    load_test: LoadTester
    store: Path | StorageConfig | None = None
    """Folder of the spec's Feast store, or the stores it is in."""
    on_change: Callable[[RolloutRecord], None] = lambda _: None
    """Told of everything that is written down, right after."""
    poll_seconds: float = 1.0
    """Time between two canary analyses."""
    patience_seconds: float = 0.2
    """Wait before a call that failed is made again; doubled each time."""
    clock: Callable[[], float] = time.monotonic
    """Seconds; never jumps."""
    sleep: Callable[[float], None] = time.sleep
    interruption: Callable[[], Interruption] = Interruption
    """Gives what hears signals, to each controller."""
    blessed: Prepare = blessed_version
    """Gives a candidate's deployment, if it may be deployed."""
    registered: Prepare = registered_version
    """Gives the deployment of a version that has served before."""
