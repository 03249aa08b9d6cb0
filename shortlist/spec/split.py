"""The split of a log's days into warm-up, training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    A part whose declared days have fewer rows than `fewest_rows_of_day` of each in all takes earlier days too, as long
    as one is left to train on: a few rows of a newest day say nothing of a candidate.

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
    fewest = [fewest_rows_of_day(day, rows_by_day, declaration.rules) for day in days]
    first_validation_day = split.warmup_days + 1
    test = _find_start(rows, fewest, len(days), split.test_days, first_validation_day + split.validation_days)
    validation = _find_start(rows, fewest, test, split.validation_days, first_validation_day)
    return SplitDays(
        warmup=days[: split.warmup_days],
        train=days[split.warmup_days : validation],
        validation=days[validation:test],
        test=days[test:],
    )


def fewest_rows_of_day(day: date, rows_by_day: Mapping[date, int], rules: Rules) -> float:
    """Return the rows below which a day is too small to be a part of the split alone.

    It is `rules.min_volume_ratio` of the median day, or of the other days of its weekday where these are smaller.
    """
    usual_rows = median(rows_by_day.values())
    same_weekday = [
        rows for logged_day, rows in rows_by_day.items() if logged_day != day and logged_day.weekday() == day.weekday()
    ]
    return rules.min_volume_ratio * min(usual_rows, median(same_weekday or [usual_rows]))


def _find_start(rows: Sequence[int], fewest: Sequence[float], end: int, days: int, earliest: int) -> int:
    """Return the place of the first day of a part of some declared days before `end`; no earlier than `earliest`."""
    start, min_rows = end - days, sum(fewest[end - days : end])
    while start > earliest and sum(rows[start:end]) < min_rows:
        start -= 1
    return start
