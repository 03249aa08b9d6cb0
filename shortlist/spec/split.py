"""The split of a log's days into warm-up, training, validation and test."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

from shortlist.contracts import DataError
from shortlist.spec.data import Data, Rules


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


def split_days(rows_by_day: Mapping[date, int], declaration: Data) -> SplitDays:
    """Return the split of a log's days: the last ones are for test, those before for validation, the first for warm-up.

    A part of n days whose rows are fewer than those of n days of `rules.min_volume_ratio` of the median day takes
    earlier days too, as long as one is left to train on: a few rows of a newest day say nothing of a candidate.

    Args:
        rows_by_day: Rows of every day of the log.
        declaration: The log's declaration.

    Raises:
        DataError: No day is left to train on.
    """
    split, days = declaration.split, tuple(sorted(rows_by_day))
    min_days = split.warmup_days + 1 + split.validation_days + split.test_days
    if len(days) < min_days:
        raise DataError(
            f"the log has {len(days)} day(s); {split.warmup_days} to warm up, {split.validation_days} to tune and"
            f" {split.test_days} to test need at least {min_days}, so that one is left to train on."
            " Give a longer log, or declare fewer days in data.split."
        )
    rows = [rows_by_day[day] for day in days]
    least_rows = fewest_rows_of_day(rows, declaration.rules)
    first_validation_day = split.warmup_days + 1
    test = _find_start(rows, len(days), split.test_days, least_rows, first_validation_day + split.validation_days)
    validation = _find_start(rows, test, split.validation_days, least_rows, first_validation_day)
    return SplitDays(
        warmup=days[: split.warmup_days],
        train=days[split.warmup_days : validation],
        validation=days[validation:test],
        test=days[test:],
    )


def fewest_rows_of_day(rows: Collection[int], rules: Rules) -> float:
    """Return the rows below which a day is too small to be a part of the split alone, given those of all days."""
    return rules.min_volume_ratio * median(rows)


def _find_start(rows: Sequence[int], end: int, days: int, least_rows: float, earliest: int) -> int:
    """Return the place of the first day of a part that ends before `end`, no earlier than at `earliest`."""
    start = end - days
    while start > earliest and sum(rows[start:end]) < days * least_rows:
        start -= 1
    return start
