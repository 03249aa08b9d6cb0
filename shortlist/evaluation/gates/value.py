"""The gate on what a candidate's slates would earn."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.slates import SlateMeasures
from shortlist.evaluation.metrics.records import Champion
from shortlist.evaluation.value.estimate import ValueDifference
from shortlist.evaluation.value.evaluation import POPULAR, SLATES, ValueMeasures
from shortlist.spec.base import Section


class ValueLimits(Section):
    """Limits of the value gate: `gates.custom.value` in a spec."""

    min_lead: float | None = Field(default=None, ge=-1e6, le=1e6)
    """Least lead of the slates over the champion's, in reward per request: the lower bound must be above it. null: they
    must not be shown to earn less (upper bound below 0)."""
    min_lead_over_popular: float | None = Field(default=None, ge=-1e6, le=1e6)
    """The same over a list of the most popular items."""
    hold_unknown: bool = False
    """Hold also where the log cannot tell; by default the gate then passes with a notice."""


def value_gate(
    measures: SlateMeasures | None, limits: ValueLimits, champion: Champion | None, confidence: float
) -> GateResult:
    """Hold when the slates are shown to earn less than the champion's, or than the most popular items.

    Differences are of the same requests. Where the log cannot tell, the value is unknown, which passes with a notice
    unless the spec says that it holds.

    Args:
        measures: Measures of the slates; None when they were not evaluated.
        limits: Limits of the gate.
        champion: The model that serves now; None: there is none, or it was not looked up (see `champion_gate`).
        confidence: Level of the intervals of values.
    """
    value = measures.value if measures is not None else None
    if value is None:
        return GateResult.from_failures("value", ["no value was estimated; retrieval is declared"], "")
    leads = {}
    if champion is not None and champion.version:
        if champion.problem:
            # A champion without slates has nothing to compare with, but one that could not be scored may serve slates.
            failure = f"the champion's slates, version {champion.version}, were not made: {champion.problem}"
            return GateResult.from_failures("value", [failure], "")
        if value.champion is not None:
            leads["the champion's slates"] = (value.champion, limits.min_lead, "min_lead")
    if POPULAR in value.leads:
        leads["the most popular items"] = (value.leads[POPULAR], limits.min_lead_over_popular, "min_lead_over_popular")
    failures = [
        failure
        for name, (lead, least, setting) in leads.items()
        for failure in _iter_failures(name, lead, least, setting, hold_unknown=limits.hold_unknown)
    ]
    if limits.hold_unknown and (problem := find_unknown(value)):
        failures.insert(0, f"the value of the slates is unknown: {problem} (hold_unknown)")
    sentences = [
        describe_value(value, confidence),
        *(f"{describe_lead(lead)} against {name}" for name, (lead, *_) in leads.items()),
    ]
    numbers = {
        "reward": value.reward,
        "lists": {listed.list: listed.model_dump(exclude={"list"}) for listed in value.lists},
        "leads": {name: lead.model_dump() for name, (lead, *_) in leads.items()},
    }
    return GateResult.from_failures("value", failures, "; ".join(sentences), **numbers, **limits.model_dump())


def find_unknown(value: ValueMeasures) -> str:
    """Return why the value of the slates is unknown; empty where it is known."""
    slates = value.find(SLATES)
    return value.problem or (slates.problem if slates is not None else "they were not valued")


def describe_value(value: ValueMeasures, confidence: float) -> str:
    """Return the value of the slates in words."""
    if problem := find_unknown(value):
        return f"the value of the slates is unknown, which holds nothing: {problem}"
    slates = value.find(SLATES)
    assert slates is not None and slates.estimate is not None
    return (
        f"slates earn {slates.estimate:.3f} a request [{slates.low:.3f}, {slates.high:.3f}] (reward {value.reward},"
        f" {confidence:.0%} interval, {value.requests} requests, {slates.effective_samples:.0f} effective samples)"
    )


def describe_lead(lead: ValueDifference) -> str:
    """Return a difference of values in words."""
    if lead.problem:
        return f"unknown ({lead.problem})"
    return f"{lead.value:+.3f} [{lead.low:+.3f}, {lead.high:+.3f}]"


def _iter_failures(
    name: str, lead: ValueDifference, least: float | None, setting: str, *, hold_unknown: bool
) -> Iterator[str]:
    if lead.low is None or lead.high is None:
        if hold_unknown:
            yield f"the difference to {name} is unknown: {lead.problem} (hold_unknown)"
    elif least is None and lead.high < 0:
        yield f"slates are shown to earn less than {name}: {describe_lead(lead)} a request (upper bound below 0)"
    elif least is not None and lead.low <= least:
        yield f"{describe_lead(lead)} a request against {name}: {lead.low:+.3f} <= {least:g} ({setting}; lower bound)"
