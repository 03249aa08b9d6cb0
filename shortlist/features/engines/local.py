"""Features in the process of the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from shortlist.spec.runtime import FeatureEngine
from shortlist.system.partitions import InProcess, PartitionEngine


class LocalEngine(FeatureEngine):
    """Features in the process of the step, as a stream, in bounded memory."""

    engine: Literal["local"] = "local"
    """No other process."""

    @contextmanager
    def open(self) -> Iterator[PartitionEngine]:
        """Return the engine of this process."""
        yield InProcess()
