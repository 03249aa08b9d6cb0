"""Which of several candidates that pass every gate is best, by rows that none of them has learnt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shortlist.evaluation.intervals import Resampled, differences, resample
from shortlist.evaluation.measure import scores_file
from shortlist.evaluation.metrics import UnmeasurableError
from shortlist.evaluation.records import TITLES, Difference, Metric, Record
from shortlist.evaluation.scores import check_same_rows, read_scores
from shortlist.spec.gates import Gates


class Choice(Record):
    """The candidates by the deciding metric on the validation days."""

    metric: Metric
    values: dict[str, float]
    """By candidate."""
    best: str
    """The one with the highest value."""
    leads: dict[str, Difference]
    """By how much the best is above each of the others: paired, on the same rows of the same resampled users."""

    @property
    def tied(self) -> frozenset[str]:
        """The best and those that chance alone may have put behind it: the interval of the lead includes 0."""
        return frozenset((self.best, *(name for name, one in self.leads.items() if _low(one) <= 0)))

    def described(self, other: str) -> str:
        """Return the lead over another candidate in words.

        >>> lead = Difference(metric="gauc", candidate=0.62, reference=0.61, value=0.01, low=0, error=0, rows=9)
        >>> lead = lead.model_copy(update={"interval": (-0.001, 0.021)})
        >>> Choice(metric="gauc", values={"a": 0.62, "b": 0.61}, best="a", leads={"b": lead}).described("b")
        'GAUC on the validation days 0.6200 against 0.6100, a lead of +0.0100 [-0.0010, +0.0210]'
        """
        lead = self.leads[other]
        low, high = lead.interval or (lead.low, lead.value)
        return (
            f"{TITLES[self.metric]} on the validation days {lead.candidate:.4f} against {lead.reference:.4f}, a lead of"
            f" {lead.value:+.4f} [{low:+.4f}, {high:+.4f}]"
        )


def choose(scores: Mapping[str, Path], metric: Metric, limits: Gates, seed: int) -> Choice | None:
    """Return the candidates in comparison; None when they cannot be compared by the deciding metric.

    That is when there are fewer than two, when one of them has learnt the validation days and left no scores from
    before, or when the metric cannot be measured there.

    Args:
        scores: What the training steps of the candidates that pass wrote, by name.
        metric: What decides.
        limits: Confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    if len(scores) < 2:
        return None
    try:
        found = _resampled(scores, metric, limits, seed)
    except UnmeasurableError:
        return None
    if any(metric not in one for one in found.values()):
        return None
    values = {name: one[metric].value for name, one in found.items()}
    best = max(values, key=lambda name: (values[name], name))
    others = [name for name in found if name != best]
    leads = {name: differences(found[best], found[name], limits.confidence, 0)[metric] for name in others}
    return Choice(metric=metric, values=values, best=best, leads=leads)


def _resampled(
    scores: Mapping[str, Path], metric: Metric, limits: Gates, seed: int
) -> dict[str, Mapping[Metric, Resampled]]:
    rows = {name: read_scores(scores_file(path), "validation") for name, path in scores.items()}
    first, *others = rows.values()
    for other in others:
        check_same_rows(first, other)
    if any(one.learnt for one in rows.values()):
        raise UnmeasurableError("a candidate has learnt the validation days")
    return {name: resample(one, limits.bootstrap_rounds, seed) for name, one in rows.items()}


def _low(lead: Difference) -> float:
    return lead.interval[0] if lead.interval else lead.low
