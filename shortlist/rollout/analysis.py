"""The judge: a pure function from what a rollout has shown to what happens next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shortlist.rollout.checks import (
    Check,
    Health,
    degraded,
    distribution,
    errors,
    latency,
    readiness,
    scores,
)
from shortlist.rollout.checks_kpi import kpi
from shortlist.rollout.checks_traffic import logging, split, traffic
from shortlist.rollout.checks_users import disconnects, refusals, slates
from shortlist.rollout.events import Decision
from shortlist.rollout.evidence import RolloutEvidence
from shortlist.spec.serving import Canary


@dataclass(frozen=True)
class StepAnalysis:
    """What happens next, and why."""

    decision: Decision
    reason: str
    """One sentence."""
    checks: tuple[Check, ...]
    """All of them, in the order in which they count."""


def analyze_step(
    evidence: RolloutEvidence,
    policy: Canary,
    step: int,
    at_step_seconds: float,
    health: Health,
    more: Sequence[Check] = (),
) -> StepAnalysis:
    """Return whether a rollout stays, goes on, ends well or goes back.

    Any breach rolls back, at once and however little traffic there was. Otherwise anything that is missing holds, and a
    hold at the deadline rolls back: no traffic and no outcomes are never a success. Only when nothing is missing and
    the step was long enough does the rollout go on; after the last step it is promoted.

    Args:
        evidence: What is known now.
        policy: The declared rollout.
        step: Number of the step, from 0.
        at_step_seconds: Time at it, of a clock that never jumps.
        health: Of the canary's servers.
        more: What else was asked, of a gateway's own numbers say.
    """
    checks = (*_checks(evidence, policy, step, health), *more)
    where = f"at {policy.steps[step]} %"
    if breaches := _reasons(checks, "breach"):
        return StepAnalysis("roll_back", f"{where}: {breaches[0]}", checks)
    waits = _reasons(checks, "wait")
    if waits and at_step_seconds >= policy.deadline_seconds:
        late = f"undecided after {at_step_seconds:.0f} s (deadline {policy.deadline_seconds:g} s)"
        return StepAnalysis("roll_back", f"{where}: {late}: {'; '.join(waits)}", checks)
    if waits:
        return StepAnalysis("hold", f"{where}: {'; '.join(waits)}", checks)
    if at_step_seconds < policy.interval_seconds:
        stay = f"{at_step_seconds:.0f} of {policy.interval_seconds:g} s at this step"
        return StepAnalysis("hold", f"{where}: nothing is wrong after {stay}", checks)
    shown = next(check.reason for check in checks if check.name == "kpi")
    last = step == len(policy.steps) - 1
    return StepAnalysis("promote" if last else "proceed", f"{where}: all checks pass; {shown}", checks)


def _checks(evidence: RolloutEvidence, policy: Canary, step: int, health: Health) -> tuple[Check, ...]:
    now, limits = evidence.at(step), policy.guardrails
    return (
        traffic(evidence, policy, step),
        split(now, policy, step),
        readiness(health),
        scores(now, limits),  # before errors: an answer without usable scores is an error too, but this says why
        errors(now, evidence.whole, limits),
        disconnects(now, evidence.whole, limits),
        refusals(now, evidence.whole, policy, step),
        slates(now, evidence.whole, policy, step),
        latency(evidence, policy, step),
        degraded(now, limits),
        logging(now, policy, step),
        distribution(evidence, policy, step),
        kpi(evidence, policy, step),
    )


def _reasons(checks: Sequence[Check], word: str) -> list[str]:
    return [check.reason for check in checks if check.word == word]
