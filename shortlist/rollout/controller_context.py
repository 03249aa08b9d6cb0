"""The dependencies of a controller."""

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

PrepareDeployment = Callable[[Models, int, Path | StorageConfig | None, Path | None], Deployment]
"""prepare(registry, version, Feast's store, folder for fetched files) -> deployment."""


@dataclass(frozen=True)
class ControllerContext:
    """Servers, registry, load test, canary analysis and clock of a controller."""

    fleet: Fleet
    models: Models
    observe: Callable[[RolloutRecord], Observer]
    """Returns the observer of a rollout; called once by each controller."""
    load_test: LoadTester
    answer_failures: LoadTester = lambda _: ()
    """Returns the reasons why a version's servers do not answer now; asked often, so it sends one request only."""
    notices: LoadTester = lambda _: ()
    """Returns what should be known of a version before users get it; its servers run."""
    unpublished_features: LoadTester = lambda _: ()
    """Returns which features a version looks up that are not published; no server of it needs to run."""
    keep_former_seconds: float = 0.0
    """How long the former servers run on after a promotion, while the candidate's answers are checked."""
    store: Path | StorageConfig | None = None
    """Folder of the spec's Feast store, or its storage configuration."""
    on_change: Callable[[RolloutRecord], None] = lambda _: None
    """Called with the record after each time it is saved."""
    poll_seconds: float = 1.0
    """Time between two canary analyses."""
    patience_seconds: float = 0.2
    """Wait before the first retry of a failed call; doubled each time."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic clock, in seconds."""
    sleep: Callable[[float], None] = time.sleep
    interruption: Callable[[], Interruption] = Interruption
    """Returns the signal handling of a controller."""
    prepare_blessed: PrepareDeployment = blessed_version
    """Returns the deployment of a candidate, after verifying its blessing."""
    prepare_registered: PrepareDeployment = registered_version
    """Returns the deployment of a version that has served before."""
