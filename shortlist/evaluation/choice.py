"""Choice of the best of several candidates that pass every gate: by value, then on rows that none has learnt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shortlist.evaluation.gates.value import describe_lead
from shortlist.evaluation.metrics.intervals import Resampled, paired_differences, resample
from shortlist.evaluation.metrics.measure import scores_file
from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.evaluation.metrics.records import TITLES, Metric, MetricDifference, Record
from shortlist.evaluation.metrics.scores import read_scores
from shortlist.evaluation.value.evaluation import compare_slates
from shortlist.spec.gates import Gates


class CandidateChoice(Record):
    """Candidates compared by the deciding metric on the validation days."""

    metric: Metric
    values: dict[str, float]
    """Value of the metric by candidate."""
    best: str
    """Name of the candidate with the highest value."""
    leads: dict[str, MetricDifference]
    """Lead of the best over each of the others: paired, on the same rows of the same resampled users."""

    @property
    def tied(self) -> frozenset[str]:
        """The best candidate and those tied with it: the interval of the lead over them includes 0."""
        return frozenset((self.best, *(name for name, lead in self.leads.items() if _lead_lower_bound(lead) <= 0)))

    def describe_lead(self, candidate: str) -> str:
        """Return the lead over another candidate in words.

        >>> lead = MetricDifference(metric="gauc", candidate=0.62, reference=0.61, value=0.01, low=0, error=0, rows=9)
        >>> lead = lead.model_copy(update={"interval": (-0.001, 0.021)})
        >>> choice = CandidateChoice(metric="gauc", values={"a": 0.62, "b": 0.61}, best="a", leads={"b": lead})
        >>> choice.describe_lead("b")
        'GAUC on the validation days 0.6200 against 0.6100, a lead of +0.0100 [-0.0010, +0.0210]'
        """
        lead = self.leads[candidate]
        low, high = lead.interval or (lead.low, lead.value)
        return (
            f"{TITLES[self.metric]} on the validation days {lead.candidate:.4f} against {lead.reference:.4f}, a lead of"
            f" {lead.value:+.4f} [{low:+.4f}, {high:+.4f}]"
        )


def choose_candidate(scores: Mapping[str, Path], metric: Metric, limits: Gates, seed: int) -> CandidateChoice | None:
    """Return the comparison of candidates; None when they cannot be compared by the deciding metric.

    That is when there are fewer than two, when one of them has learnt the validation days and left no earlier scores,
    or when the metric cannot be measured there.

    Args:
        scores: Scores of the candidates that pass, as their training steps wrote them, by name.
        metric: The deciding metric.
        limits: Confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    if len(scores) < 2:
        return None
    try:
        resampled_by_candidate = _resample_candidates(scores, metric, limits, seed)
    except UnmeasurableError:
        return None
    if any(metric not in resampled for resampled in resampled_by_candidate.values()):
        return None
    values = {name: resampled[metric].value for name, resampled in resampled_by_candidate.items()}
    best = max(values, key=lambda name: (values[name], name))
    other_candidates = [name for name in resampled_by_candidate if name != best]
    leads = {
        name: paired_differences(resampled_by_candidate[best], resampled_by_candidate[name], limits.confidence, 0)[
            metric
        ]
        for name in other_candidates
    }
    return CandidateChoice(metric=metric, values=values, best=best, leads=leads)


def find_lower_earners(slates: Mapping[str, Path]) -> dict[str, str]:
    """Return the candidates whose slates are shown to earn less than those of another one, with the reason.

    Args:
        slates: Folders of the evaluated slates of the candidates that pass, by name.
    """
    reasons = {}
    for name, folder in slates.items():
        leads = {other: compare_slates(slates[other], folder) for other in slates if other != name}
        shown = {other: lead for other, lead in leads.items() if lead is not None and lead.low is not None}
        best = max(shown, key=lambda other: shown[other].low or 0.0, default=None)
        if best is not None and (shown[best].low or 0.0) > 0:
            reasons[name] = f"its slates are shown to earn less than those of '{best}', by {describe_lead(shown[best])}"
    return reasons


def _resample_candidates(
    scores: Mapping[str, Path], metric: Metric, limits: Gates, seed: int
) -> dict[str, Mapping[Metric, Resampled]]:
    resampled: dict[str, Mapping[Metric, Resampled]] = {}
    digests = set()
    for name, path in scores.items():  # one after another: the rows of all would take as many times the memory
        rows = read_scores(scores_file(path), "validation")
        digests.add(rows.digest)
        if rows.learnt or len(digests) > 1:
            reason = "has learnt the validation days" if rows.learnt else "was not scored on the rows of the others"
            raise UnmeasurableError(f"candidate '{name}' {reason}")
        rows = rows.without_impressions()
        resampled[name] = resample(rows, limits.bootstrap_rounds, seed)
        del rows  # before the next ones are read
    return resampled


def _lead_lower_bound(lead: MetricDifference) -> float:
    return lead.interval[0] if lead.interval else lead.low
