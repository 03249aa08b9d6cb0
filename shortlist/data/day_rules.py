"""The rules that compare the days of a log: each is a function that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from itertools import pairwise
from math import hypot, log, sqrt
from statistics import median

from shortlist.data.log_facts import LogFacts, Problems, grouped
from shortlist.data.profile import DayProfile
from shortlist.spec.data import Data

_SHOWN = 5
_GAP_ADVICE = (
    ". When a few wrong times stretch the log, narrow clock.earliest and latest; when days without rows are right, set"
    " min_volume_ratio: 0"
)
# Two-sided 1 in 1 000: a day further off than this is not chance.
_CHANCE_Z = 3.29
_MAD_TO_SIGMA = 1.4826
_FEWEST_STEPS = 7
"""From one day to the next, before they tell what is usual: a single odd day makes two of them."""


def enough_days(facts: LogFacts, data: Data) -> Problems:
    """The days suffice for the split."""
    split, days = data.split, len(facts.days)
    wanted = split.warmup_days + 1 + split.validation_days + split.test_days
    if 0 < days < wanted:
        yield (
            f"the log has {days} day(s), the split needs {wanted}: {split.warmup_days} to warm up, at least 1 to train,"
            f" {split.validation_days} to validate, {split.test_days} to test; give more days or change data.split"
        )


def null_share(facts: LogFacts, data: Data) -> Problems:
    """No column lacks more values on a day than declared."""
    for column in data.columns:
        limit = column.max_null_share
        shares = [(day, profile.nulls[column.name] / profile.rows) for day, profile in facts.days]
        found = [(day, share) for day, share in shares if share > limit]
        if found:
            shown = _listed(f"{share:.1%} on {day}" for day, share in found)
            yield f"column '{column.name}' is null in {shown}; its max_null_share is {limit:.1%}"


def volume(facts: LogFacts, data: Data) -> Problems:
    """No day has far fewer or far more rows than those before it; a day without any rows counts as a day.

    A sparse log has days of few rows by chance, and a log of bursts has long had them: only what lies beyond both is a
    problem.

    A day that is cut short because no later row may be read can have too many rows, but not too few.
    """
    low, high, found = data.rules.min_volume_ratio, data.rules.max_volume_ratio, []
    counts = _with_gaps(facts.days)
    spread = _spread([log(rows + 0.5) for _, rows in counts])
    for place, (day, rows) in enumerate(counts[1:], 1):
        usual = median([n for _, n in counts[:place] if n])
        # The first day may have begun at noon or late at night, so alone it is no measure of too much.
        off = (rows < low * usual and day != facts.cut_day) or (rows > high * usual and place > 1)
        if off and _is_unusual(rows, usual, spread):
            found.append(f"{grouped(rows)} rows on {day} ({rows / usual:.2g} times the median {grouped(usual)} before)")
    if found:
        advice = "" if all(rows for _, rows in counts) else _GAP_ADVICE
        yield f"volume: {_listed(found)}; rules.min_volume_ratio is {low:g}, max_volume_ratio {high:g}{advice}"


def label_rate(facts: LogFacts, data: Data) -> Problems:
    """No day's label rate is far from those before it, beyond chance and beyond how much these differ themselves."""
    limit, found = data.rules.max_label_rate_change, []
    spread = _spread([profile.rate for _, profile in facts.days])
    for place, (day, profile) in enumerate(facts.days[1:], 1):
        before = [past for _, past in facts.days[:place]]
        usual = median(past.rate for past in before)
        rows = sum(past.rows for past in before)
        if abs(profile.rate - usual) > limit * usual and _beyond_chance(profile, usual, rows, spread):
            found.append(f"{profile.rate:.4f} on {day} (median {usual:.4f} before)")
    if found:
        yield f"label rate: {_listed(found)}; rules.max_label_rate_change is {limit:.0%}"


def _listed(texts: Iterable[str]) -> str:
    every = list(texts)
    return ", ".join(every[:_SHOWN]) + (f" and on {len(every) - _SHOWN} more days" if len(every) > _SHOWN else "")


def _with_gaps(days: list[tuple[date, DayProfile]]) -> list[tuple[date, int]]:
    """Return the rows of every calendar day from the first to the last."""
    rows = {day: profile.rows for day, profile in days}
    span = range((max(rows) - min(rows)).days + 1) if rows else range(0)
    every = [min(rows) + timedelta(days=place) for place in span]
    return [(day, rows.get(day, 0)) for day in every]


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation of days that always differ; a step from one level to another leaves it near 0."""
    steps = [abs(later - earlier) for earlier, later in pairwise(values)]
    return _MAD_TO_SIGMA / sqrt(2) * median(steps) if len(steps) >= _FEWEST_STEPS else 0.0


def _is_unusual(rows: int, usual: float, spread: float) -> bool:
    """Whether a count is further from the usual one than chance, and than the logarithms of counts are from day to day.

    Of a Poisson count, twice the square root has a standard deviation near 1 (Anscombe, 1948).
    """
    by_chance = 2 * abs(sqrt(rows + 3 / 8) - sqrt(usual + 3 / 8)) <= _CHANCE_Z
    return not by_chance and abs(log((rows + 0.5) / (usual + 0.5))) > _CHANCE_Z * spread


def _beyond_chance(day: DayProfile, usual: float, rows_before: int, spread: float) -> bool:
    chance = sqrt(max(usual * (1 - usual), 1 / rows_before / 4) * (1 / day.rows + 1 / rows_before))
    return abs(day.rate - usual) > _CHANCE_Z * hypot(chance, spread)
