"""The log that trained features learn from, with the split of its days."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from shortlist.features.values.columns import DeclaredColumns
from shortlist.spec.split import SplitDays
from shortlist.storage.tables import DayTable

LEARNT: Final = "learnt"
"""Folder of a fit, and of a model's preprocessing, with a folder per trained feature."""


@dataclass(frozen=True)
class TrainingLog:
    """The log of a fit, as a trained feature reads it."""

    log: DayTable
    declared: DeclaredColumns
    delay: timedelta
    """Time after an impression until its outcome is known."""
    split: SplitDays
    digests: Mapping[date, str]
    """Digest of the rows of every day."""
    seed: int
    previous_folder: Path | None
    """Models of the same feature in an earlier fit; None: there are none."""
