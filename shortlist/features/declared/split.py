"""The split of a log's days into warm-up, training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from shortlist.contracts import DataError
from shortlist.spec.data import Split


@dataclass(frozen=True)
class SplitDays:
    """The days of each part of a split, in time order."""

    warmup: tuple[date, ...]
    train: tuple[date, ...]
    validation: tuple[date, ...]
    test: tuple[date, ...]

    @property
    def fitted_on(self) -> tuple[date, ...]:
        """Days that vocabularies and moments are fitted on: all before validation."""
        return (*self.warmup, *self.train)

    def notes(self) -> dict[str, list[str]]:
        """Return the days of each part as ISO dates."""
        parts = {"warmup": self.warmup, "train": self.train, "validation": self.validation, "test": self.test}
        return {name: [day.isoformat() for day in days] for name, days in parts.items()}


def split_days(days: Sequence[date], split: Split) -> SplitDays:
    """Return the split of a log's days: the last ones are for test, those before for validation, the first for warm-up.

    Raises:
        DataError: No day is left to train on.
    """
    ordered = tuple(sorted(days))
    min_days = split.warmup_days + 1 + split.validation_days + split.test_days
    if len(ordered) < min_days:
        raise DataError(
            f"the log has {len(ordered)} day(s); {split.warmup_days} to warm up, {split.validation_days} to tune and"
            f" {split.test_days} to test need at least {min_days}, so that one is left to train on."
            " Give a longer log, or declare fewer days in data.split."
        )
    test = len(ordered) - split.test_days
    validation = test - split.validation_days
    return SplitDays(
        warmup=ordered[: split.warmup_days],
        train=ordered[split.warmup_days : validation],
        validation=ordered[validation:test],
        test=ordered[test:],
    )
