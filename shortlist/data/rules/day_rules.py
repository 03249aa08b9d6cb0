"""Rules that compare the days of a log: each is a function that yields problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from itertools import pairwise
from math import hypot, log, sqrt
from statistics import median

from shortlist.data.rules.log_facts import LogFacts, Problems, format_count
from shortlist.data.rules.profile import DayProfile
from shortlist.spec.data import Data

_MAX_DAYS_SHOWN = 5
_GAP_ADVICE = (
    ". When a few wrong times stretch the log, narrow clock.earliest and latest; when days without rows are right, set"
    " data.rules.min_volume_ratio: 0"
)
# Two-sided 1 in 1 000: a day further off than this is not chance.
_CHANCE_Z = 3.29
_MAD_TO_SIGMA = 1.4826
_MIN_STEPS = 7
"""Fewest differences between consecutive days for an estimate of their spread; one outlying day makes two of them."""


def enough_days(facts: LogFacts, data: Data) -> Problems:
    """The days suffice for the split."""
    split, days = data.split, len(facts.days)
    min_days = split.warmup_days + 1 + split.validation_days + split.test_days
    if 0 < days < min_days:
        yield (
            f"the log has {days} day(s), the split needs {min_days}: {split.warmup_days} to warm up, at least 1 to"
            f" train, {split.validation_days} to validate, {split.test_days} to test; give more days or change"
            " data.split"
        )


def null_share(facts: LogFacts, data: Data) -> Problems:
    """No column has a larger share of nulls on a day than declared."""
    for column in data.columns:
        limit = column.max_null_share
        shares = [(day, profile.nulls[column.name] / profile.rows) for day, profile in facts.days]
        exceeding = [(day, share) for day, share in shares if share > limit]
        if exceeding:
            day_list = _join_days(f"{share:.1%} on {day}" for day, share in exceeding)
            yield f"column '{column.name}' is null in {day_list}; its max_null_share is {limit:.1%}"


def volume(facts: LogFacts, data: Data) -> Problems:
    """No day has far fewer or far more rows than the days before it; days without rows count.

    The rule allows for chance, which makes days of a sparse log differ, for the usual spread of a log with bursts, and
    for the week: a day may be as the log's other days of its weekday are.

    A day that is cut short because later rows may not be read can have too many rows, but not too few.
    """
    unusual = unusual_volumes(facts, data)
    if unusual:
        low, high = data.rules.min_volume_ratio, data.rules.max_volume_ratio
        advice = "" if all(rows for _, rows in fill_missing_days(facts.days)) else _GAP_ADVICE
        exceeding = _join_days(unusual.values())
        yield f"volume: {exceeding}; data.rules.min_volume_ratio is {low:g}, max_volume_ratio {high:g}{advice}"


def unusual_volumes(facts: LogFacts, data: Data) -> dict[date, str]:
    """Return the days that break the rule `volume`, each with its rows and those of the days before."""
    low, high, unusual = data.rules.min_volume_ratio, data.rules.max_volume_ratio, {}
    counts = fill_missing_days(facts.days)
    spread = _daily_deviation([log(rows + 0.5) for _, rows in counts])
    for place, (day, rows) in enumerate(counts[1:], 1):
        median_rows = median([n for _, n in counts[:place] if n])
        # The first day may be partial, so that the second is never compared with it for too many rows.
        is_outside = (rows < low * median_rows and day != facts.cut_day) or (rows > high * median_rows and place > 1)
        weekday_rows = _weekday_median(day, [(other, float(n)) for other, n in counts if n])
        is_usual_weekday = weekday_rows is not None and rows > 0 and low <= rows / weekday_rows <= high
        if is_outside and not is_usual_weekday and _is_unusual(rows, median_rows, spread):
            ratio = f"{rows / median_rows:.2g} times the median {format_count(median_rows)} before"
            unusual[day] = f"{format_count(rows)} rows on {day} ({ratio})"
    return unusual


def label_rate(facts: LogFacts, data: Data) -> Problems:
    """No day's label rate is far from those of the days before it.

    The rule allows for chance, for the usual spread, and for the rates of the log's other days of its weekday.
    """
    unusual = unusual_label_rates(facts, data)
    if unusual:
        limit = data.rules.max_label_rate_change
        yield f"label rate: {_join_days(unusual.values())}; data.rules.max_label_rate_change is {limit:.0%}"


def unusual_label_rates(facts: LogFacts, data: Data) -> dict[date, str]:
    """Return the days that break the rule `label_rate`, each with its rate and that of the days before."""
    limit, unusual = data.rules.max_label_rate_change, {}
    spread = _daily_deviation([profile.rate for _, profile in facts.days])
    for place, (day, profile) in enumerate(facts.days[1:], 1):
        earlier_profiles = [past for _, past in facts.days[:place]]
        median_rate = median(past.rate for past in earlier_profiles)
        rows = sum(past.rows for past in earlier_profiles)
        weekday_rate = _weekday_median(day, [(other, other_profile.rate) for other, other_profile in facts.days])
        if weekday_rate and profile.positives and abs(profile.rate - weekday_rate) <= limit * weekday_rate:
            continue
        if abs(profile.rate - median_rate) > limit * median_rate and _beyond_chance(profile, median_rate, rows, spread):
            unusual[day] = f"{profile.rate:.4f} on {day} (median {median_rate:.4f} before)"
    return unusual


def _weekday_median(day: date, values: Iterable[tuple[date, float]]) -> float | None:
    """Return the median of the other days of a weekday; None without any."""
    others = [value for other, value in values if other != day and other.weekday() == day.weekday()]
    return median(others) if others else None


def _join_days(texts: Iterable[str]) -> str:
    day_texts = list(texts)
    return ", ".join(day_texts[:_MAX_DAYS_SHOWN]) + (
        f" and on {len(day_texts) - _MAX_DAYS_SHOWN} more days" if len(day_texts) > _MAX_DAYS_SHOWN else ""
    )


def fill_missing_days(days: list[tuple[date, DayProfile]]) -> list[tuple[date, int]]:
    """Return the rows of every calendar day from the first to the last."""
    rows = {day: profile.rows for day, profile in days}
    span = range((max(rows) - min(rows)).days + 1) if rows else range(0)
    calendar_days = [min(rows) + timedelta(days=place) for place in span]
    return [(day, rows.get(day, 0)) for day in calendar_days]


def _daily_deviation(values: Sequence[float]) -> float:
    """Return a robust standard deviation of daily values, from their differences; one change of level has no effect."""
    steps = [abs(next_value - value) for value, next_value in pairwise(values)]
    return _MAD_TO_SIGMA / sqrt(2) * median(steps) if len(steps) >= _MIN_STEPS else 0.0


def _is_unusual(rows: int, median_rows: float, log_deviation: float) -> bool:
    """Whether a count differs from the median by more than chance, and by more than the usual spread of log counts.

    Twice the square root of a Poisson count has a standard deviation near 1 (Anscombe, 1948).
    """
    is_chance = 2 * abs(sqrt(rows + 3 / 8) - sqrt(median_rows + 3 / 8)) <= _CHANCE_Z
    return not is_chance and abs(log((rows + 0.5) / (median_rows + 0.5))) > _CHANCE_Z * log_deviation


def _beyond_chance(day: DayProfile, median_rate: float, rows_before: int, rate_deviation: float) -> bool:
    standard_error = sqrt(max(median_rate * (1 - median_rate), 1 / rows_before / 4) * (1 / day.rows + 1 / rows_before))
    return abs(day.rate - median_rate) > _CHANCE_Z * hypot(standard_error, rate_deviation)
