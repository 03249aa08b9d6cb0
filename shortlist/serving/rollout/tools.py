"""What a controller works with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shortlist.serving.rollout.fleet import Fleet, Models, Observer, Prover
from shortlist.serving.rollout.record import RolloutRecord
from shortlist.stores import Stores


@dataclass(frozen=True)
class Tools:
    """Servers, registry, proof, judge; and a clock."""

    fleet: Fleet
    models: Models
    observe: Callable[[RolloutRecord], Observer]
    """Gives the judge of a rollout; called once by each controller."""
    prove: Prover
    store: Path | Stores | None = None
    """Folder of the spec's Feast store, or the stores it is in."""
    on_change: Callable[[RolloutRecord], None] = lambda _: None
    """Told of everything that is written down, right after."""
    poll_seconds: float = 1.0
    """Time between two looks of the judge."""
    patience_seconds: float = 0.2
    """Wait before a call that failed is made again; doubled each time."""
    clock: Callable[[], float] = time.monotonic
    """Seconds; never jumps."""
    sleep: Callable[[float], None] = time.sleep
