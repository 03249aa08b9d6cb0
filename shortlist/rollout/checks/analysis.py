"""The canary analysis: a pure function from a rollout's evidence to the next decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from shortlist.rollout.checks.declared import run_declared_check
from shortlist.rollout.checks.health import (
    CheckResult,
    Health,
    degraded,
    distribution,
    errors,
    latency,
    not_compared,
    readiness,
    scores,
)
from shortlist.rollout.checks.kpi import guards, kpi
from shortlist.rollout.checks.observations import Decision
from shortlist.rollout.checks.users import disconnects, refusals, slates
from shortlist.rollout.evidence.rollout_evidence import RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.evidence.sequential import lower_bound, split_evidence
from shortlist.serving.server.requests.headers import USER_HEADER
from shortlist.spec.serving import Canary, Guardrails
from shortlist.system.registry import Registry


@dataclass(frozen=True)
class CheckInputs:
    """The inputs of a canary check."""

    evidence: RolloutEvidence
    policy: Canary
    """The declared rollout."""
    step: int
    """Number of the step, from 0."""
    health: Health
    """Health of the canary's servers."""
    spec: str = ""
    """Name of the spec, for commands in messages."""
    retirement: str = ""
    """Which version of the stable track was retired, and why; empty when it was not. Its scores and outcomes are then
    no evidence against the canary."""

    @property
    def step_evidence(self) -> StepEvidence:
        """Evidence of the step."""
        return self.evidence.at_step(self.step)

    @property
    def whole(self) -> StepEvidence:
        """Evidence of the whole rollout."""
        return self.evidence.whole

    @property
    def limits(self) -> Guardrails:
        """Limits of the declared rollout."""
        return self.policy.guardrails


CanaryCheck = Callable[[CheckInputs], CheckResult | tuple[CheckResult, ...]]
"""check(inputs): the result, or one result per label that is checked."""


@dataclass(frozen=True)
class StepAnalysis:
    """The decision of one canary analysis, with its reason."""

    decision: Decision
    reason: str
    """One sentence."""
    checks: tuple[CheckResult, ...]
    """All results, in order of precedence: the first breach gives the reason."""


def analyze_step(
    evidence: RolloutEvidence,
    policy: Canary,
    step: int,
    at_step_seconds: float,
    health: Health,
    extra_checks: Sequence[CheckResult] = (),
    spec: str = "",
    retirement: str = "",
) -> StepAnalysis:
    """Return whether a rollout holds, proceeds, is promoted or is rolled back.

    Any breach rolls back at once, however little traffic there was. Otherwise missing evidence holds, and a hold at the
    deadline rolls back: no traffic and no outcomes are never a success. The rollout proceeds only when no check waits
    and the step lasted long enough; after the last step it is promoted.

    Args:
        evidence: Evidence of the rollout so far.
        policy: The declared rollout.
        step: Number of the step, from 0.
        at_step_seconds: Time spent at the step, by a monotonic clock.
        health: Health of the canary's servers.
        extra_checks: Results of further checks, for example of a gateway's own metrics.
        spec: Name of the spec, for commands in messages.
        retirement: Which version of the stable track was retired, and why; empty when it was not.
    """
    checks = (*_run_checks(CheckInputs(evidence, policy, step, health, spec, retirement)), *extra_checks)
    step_text = f"at {policy.steps[step]} %"
    if breach_reasons := _reasons_with_status(checks, "breach"):
        return StepAnalysis("roll_back", f"{step_text}: {breach_reasons[0]}", checks)
    wait_reasons = _reasons_with_status(checks, "wait")
    if wait_reasons and at_step_seconds >= policy.deadline_seconds:
        overdue_text = f"undecided after {at_step_seconds:.0f} s (deadline {policy.deadline_seconds:g} s)"
        return StepAnalysis("roll_back", f"{step_text}: {overdue_text}: {'; '.join(wait_reasons)}", checks)
    if wait_reasons:
        return StepAnalysis("hold", f"{step_text}: {'; '.join(wait_reasons)}", checks)
    if at_step_seconds < policy.interval_seconds:
        elapsed_text = f"{at_step_seconds:.0f} of {policy.interval_seconds:g} s at this step"
        return StepAnalysis("hold", f"{step_text}: nothing is wrong after {elapsed_text}", checks)
    kpi_reason = next(check.reason for check in checks if check.name == "kpi")
    is_last_step = step == len(policy.steps) - 1
    return StepAnalysis("promote" if is_last_step else "proceed", f"{step_text}: all checks pass; {kpi_reason}", checks)


def _run_checks(inputs: CheckInputs) -> Iterator[CheckResult]:
    for name, check in CANARY_CHECKS.complete().items():
        check_results = _run_added(name, check, inputs) if name in CANARY_CHECKS.added else check(inputs)
        yield from check_results if isinstance(check_results, tuple) else (check_results,)


def _run_added(name: str, check: CanaryCheck, inputs: CheckInputs) -> CheckResult | tuple[CheckResult, ...]:
    """Return the results of a check that is not built in; it waits when it fails, as without evidence."""
    try:
        check_results = check(inputs)
        if not isinstance(check_results, tuple | CheckResult):
            raise TypeError(f"it returned {type(check_results).__name__}, wanted CheckResult")
    except Exception as error:  # whatever the user's code raises
        reason = f"{name}: the check itself failed ({CANARY_CHECKS.added[name]}): {type(error).__name__}: {error}"
        return CheckResult(name, "wait", reason)
    return check_results


def _reasons_with_status(checks: Sequence[CheckResult], status: str) -> list[str]:
    return [check.reason for check in checks if check.status == status]


MIN_LOGGED_SHARE: Final = 0.5
"""Smallest share of the answers that must be in the prediction log, which lags behind by a flush."""
NAMED_SENDERS: Final = 3
"""Most senders that a reason names."""


def traffic(evidence: RolloutEvidence, policy: Canary, step: int) -> CheckResult:
    """Wait until each track has answered `min_requests` at this step; at 100 % the stable track did so earlier."""
    step_evidence, min_requests = evidence.at_step(step), policy.min_requests
    numbers = {
        "stable": step_evidence.stable.judged_requests,
        "canary": step_evidence.canary.judged_requests,
        "min_requests": min_requests,
    }
    if step_evidence.canary.judged_requests < min_requests:
        return CheckResult(
            "traffic", "wait", f"{_too_few_requests('canary', step_evidence.canary, min_requests)}", numbers
        )
    if policy.steps[step] < 100:
        if step_evidence.stable.judged_requests < min_requests:
            return CheckResult(
                "traffic", "wait", f"{_too_few_requests('stable track', step_evidence.stable, min_requests)}", numbers
            )
        canary_requests, stable_requests = step_evidence.canary.judged_requests, step_evidence.stable.judged_requests
        reason = f"{canary_requests:,} requests of the canary and {stable_requests:,} of the stable track"
        return CheckResult("traffic", "ok", reason, numbers)
    latest_stable = evidence.latest_stable(step, min_requests)
    if latest_stable is None:
        reason = f"no step had {min_requests:,} requests of the stable track to compare with"
        return CheckResult("traffic", "wait", reason, numbers)
    stable_step, stable = latest_stable
    reason = (
        f"{step_evidence.canary.judged_requests:,} requests of the canary; the stable track gets none any more, so its"
        f" {stable.judged_requests:,} at {policy.steps[stable_step]} % are compared"
    )
    return CheckResult("traffic", "ok", reason, numbers)


def split(step_evidence: StepEvidence, policy: Canary, step: int) -> CheckResult:
    """Breach when the users are not split as declared: then the two tracks are not comparable.

    Requests do not end in the order in which they began, and end later on a slow track. A wrong split among all users
    seen so far therefore only waits; a wrong split among settled users, who have no request in flight, is a breach.
    """
    canary_users, users = step_evidence.canary.users, step_evidence.canary.users + step_evidence.stable.users
    declared_share = policy.steps[step] / 100
    numbers = {
        "canary": canary_users,
        "users": users,
        "declared": declared_share,
        "flapped": step_evidence.users_on_both_tracks,
    }
    alpha = 1 - policy.guardrails.confidence
    if lower_bound(step_evidence.users_on_both_tracks, max(users, 1), 1 - alpha) > 0.01:
        return CheckResult(
            "split",
            "breach",
            f"{step_evidence.users_on_both_tracks:,} of {users:,} users were sent to both tracks",
            numbers,
        )
    if not users:
        return CheckResult("split", "wait", "no users", numbers)
    measured_share = canary_users / users
    split_text = (
        f"{canary_users:,} of {users:,} users ({measured_share:.2%}) are on the canary, declared {declared_share:.0%}"
    )
    if anonymous := step_evidence.canary.anonymous + step_evidence.stable.anonymous:
        numbers["anonymous"] = anonymous
        split_text = f"{split_text}; {anonymous:,} requests without {USER_HEADER} count as a user each"
    if declared_share == 1:
        # Requests of the step before may still be under way, never many.
        is_misrouted = lower_bound(users - canary_users, users, 1 - alpha) > 0.01
        return CheckResult("split", "breach" if is_misrouted else "ok", split_text, numbers)
    odds_against_split = split_evidence(canary_users, users, declared_share)
    settled = (
        step_evidence.canary.settled_users,
        step_evidence.canary.settled_users + step_evidence.stable.settled_users,
    )
    settled_odds = split_evidence(*settled, declared_share)
    numbers |= {
        "odds": odds_against_split,
        "settled_canary": settled[0],
        "settled_users": settled[1],
        "settled_odds": settled_odds,
    }
    if settled_odds > 1 / alpha:
        settled_text = f"{settled[0]:,} of {settled[1]:,} users ({settled[0] / settled[1]:.2%}) are on the canary"
        return CheckResult(
            "split",
            "breach",
            f"{settled_text}, declared {declared_share:.0%}; {settled_odds:,.0f} to 1 against it",
            numbers,
        )
    if odds_against_split > 1 / alpha:
        return CheckResult("split", "wait", f"{split_text}; others may still wait for an answer", numbers)
    odds_text = (
        f"{odds_against_split:,.0f} to 1 against that split" if odds_against_split >= 1 else "which is as it should be"
    )
    return CheckResult("split", "ok", f"{split_text}; {odds_text}", numbers)


def logging(step_evidence: StepEvidence, policy: Canary, step: int) -> CheckResult:
    """Wait while most answers of a track are missing in the prediction log, which scores and KPI are read from."""
    tracks = {"canary": step_evidence.canary, "stable track": step_evidence.stable}
    numbers = {name: {"logged": track.logged, "to_log": track.to_log} for name, track in tracks.items()}
    for name, track in tracks.items():
        if name == "stable track" and policy.steps[step] == 100:
            continue
        if track.to_log and track.logged < MIN_LOGGED_SHARE * track.to_log:
            reason = f"only {track.logged:,} of {track.to_log:,} answers of the {name} are in the prediction log"
            if track.logged_left_out:
                reason = f"{reason} as evidence; {_describe_left_out(track.logged_left_out, track)}"
            return CheckResult("logging", "wait", reason, numbers)
    return CheckResult(
        "logging", "ok", f"{step_evidence.canary.logged:,} answers of the canary are in the prediction log", numbers
    )


def _too_few_requests(name: str, track: TrackEvidence, min_requests: int) -> str:
    shortage_text = f"{track.judged_requests:,} requests of the {name} at this step, {min_requests:,} are needed"
    return f"{shortage_text}; {_describe_left_out(track.left_out, track)}" if track.left_out else shortage_text


def _describe_left_out(count: int, track: TrackEvidence) -> str:
    """Return how many are no evidence, who sent them, and the two ways to make them evidence."""
    senders = [sender or "no address" for sender in track.left_out_senders[:NAMED_SENDERS]]
    rest = ["others"] * (len(track.left_out_senders) > NAMED_SENDERS)
    return (
        f"{count:,} more are no evidence, because their senders ({', '.join([*senders, *rest])}) do not vouch for"
        " their users: declare the application's servers in serving.backends, or let them present the backend_token of"
        " secrets.json (docs/trust.md)"
    )


CANARY_CHECKS: Final = Registry[CanaryCheck](
    "canary_checks",
    {
        "traffic": lambda inputs: traffic(inputs.evidence, inputs.policy, inputs.step),
        "split": lambda inputs: split(inputs.step_evidence, inputs.policy, inputs.step),
        "readiness": lambda inputs: readiness(inputs.health),
        # Before errors: an answer without usable scores is an error too, but this reason is more precise.
        "scores": lambda inputs: scores(inputs.step_evidence, inputs.whole, inputs.limits),
        "errors": lambda inputs: errors(inputs.step_evidence, inputs.whole, inputs.limits),
        "disconnects": lambda inputs: disconnects(inputs.step_evidence, inputs.whole, inputs.limits),
        "refusals": lambda inputs: refusals(inputs.step_evidence, inputs.whole, inputs.policy, inputs.step),
        "slates": lambda inputs: slates(inputs.step_evidence, inputs.whole, inputs.policy, inputs.step),
        "latency": lambda inputs: latency(inputs.evidence, inputs.policy, inputs.step),
        "features": lambda inputs: degraded(inputs.step_evidence, inputs.whole, inputs.limits),
        "logging": lambda inputs: logging(inputs.step_evidence, inputs.policy, inputs.step),
        "distribution": lambda inputs: (
            not_compared("distribution", inputs.retirement)
            if inputs.retirement
            else distribution(inputs.evidence, inputs.policy, inputs.step, inputs.spec)
        ),
        "kpi": lambda inputs: kpi(inputs.evidence, inputs.policy, inputs.step, inputs.retirement),
        "guards": lambda inputs: guards(inputs.evidence, inputs.policy, inputs.step, inputs.retirement),
        "declared": lambda inputs: tuple(
            run_declared_check(name, check, inputs.step_evidence, inputs.health.version, inputs.retirement)
            for name, check in inputs.policy.checks.items()
        ),
    },
    file_attribute="CHECK",
)
"""Canary checks by name, in order of precedence: the first breach gives the reason. Those of installed packages (entry
points of the group `shortlist.canary_checks`) and of the project's files (`pipelines/canary_checks/<name>.py`) come
last."""
