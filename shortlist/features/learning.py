"""What a kind of feature may learn from, beyond what is counted: the log, and which of its days are for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from shortlist.features.columns import DeclaredColumns
from shortlist.features.split import SplitDays
from shortlist.storage.tables import DayTable

LEARNT: Final = "learnt"
"""Folder of a fit, and of a model's preprocessing, with a folder per operation that trains something."""


@dataclass(frozen=True)
class LearningLog:
    """The log of a fit."""

    log: DayTable
    declared: DeclaredColumns
    delay: timedelta
    """Time after an impression until its outcome is known."""
    split: SplitDays
    digests: Mapping[date, str]
    """Of the rows of every day."""
    seed: int
    earlier: Path | None
    """What an earlier fit learnt for the same operation; None: there is none."""
