"""Simulated rollouts with known faults of the canary, to measure how often and how soon the analysis is right."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.rollout.checks.analysis import StepAnalysis, analyze_step
from shortlist.rollout.checks.health import Health
from shortlist.rollout.checks.observations import Decision
from shortlist.rollout.evidence.latency import BUCKETS, Latencies, bucket_numbers
from shortlist.rollout.evidence.rollout_evidence import Floats, RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.evidence.sender_admission import SenderAdmission, is_backend
from shortlist.rollout.evidence.sequential_difference import Bools, UserValues, difference
from shortlist.rollout.evidence.track_counter import MAX_SAMPLED_SCORES
from shortlist.spec.serving import BACKEND, Canary


@dataclass(frozen=True)
class SimulatedTraffic:
    """Users, traffic and the present model."""

    users: int = 4_000
    requests_per_second: float = 120
    kpi: float = 0.3
    """Mean rate over users."""
    taste: float = 0.1
    """Standard deviation of users' own rates around it."""
    kpi_drift: float = 0.0
    """Change of all users' rates from one step to the next, on both tracks."""
    latency_ms: float = 5.0
    """Median latency; the 99th percentile is 2.5 times as long."""
    hang_ups: float = 0.01
    """Share of requests whose client disconnects before the answer."""
    mistaken_users: float = 0.0
    """Share of users half of whose requests are client errors, on both tracks."""
    further: float = 0.1
    """Mean over users of every label that the policy guards; a user's own rate is in proportion to that of the KPI."""


@dataclass(frozen=True)
class Faults:
    """How the canary differs from the stable track; the default is equally good."""

    kpi_drop: float = 0.0
    further_drop: float = 0.0
    """Absolute drop of every guarded label."""
    error_rate: float = 0.0
    nan_rate: float = 0.0
    slowdown: float = 1.0
    score_shift: float = 0.0
    """In standard deviations of the scores."""
    constant: bool = False
    hang_ups: float = 0.0
    """Additional share of the canary's requests whose client disconnects."""
    refusals: float = 0.0
    """Share of the canary's requests that it refuses, besides client errors."""
    empty_slates: float = 0.0
    """Share of its slates without any item."""
    lost_users: float = 0.0
    """Share of the canary's users that never arrive."""


@dataclass(frozen=True)
class Attacker:
    """A client that invents users of one track, from one address."""

    event: Literal["answered", "refused", "disconnected", "empty_slate", "shifted_scores", "slow"]
    """What happens to each of its requests."""
    on_canary: bool = True
    requests_per_second: float = 200
    users: int | None = None
    """Number of users that it invents; None: another one for each request."""
    vouches: bool = False
    """Whether it is an authenticated backend: then everything that it says of its users is believed."""


@dataclass(frozen=True)
class SimulatedRollout:
    """Outcome of a simulated rollout."""

    decision: Decision
    check: str
    """The check that ended it; empty after a promotion and at a deadline."""
    reason: str
    seconds: float
    step: int
    analyses: int


class _TrackCounter:
    """Counts of one track at one step."""

    def __init__(self) -> None:
        self.requests = self.failed = self.bad = self.disconnected = self.refused = 0
        self.latencies = np.zeros(BUCKETS, dtype=np.int64)
        self.scores: Floats = np.zeros(0)
        self.scored: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """Users of the scores."""

    def evidence(self, users: _UserTotals) -> TrackEvidence:
        logged = self.requests - self.failed + self.bad
        scores_per_user = np.bincount(self.scored).astype(np.float64)
        return TrackEvidence(
            requests=self.requests + self.disconnected + self.refused,
            failed=self.failed,
            client_errors=self.refused,
            disconnected=self.disconnected,
            answered=self.requests - self.failed,
            users=users.active,
            settled_users=users.active,
            disconnected_users=users.disconnected,
            refused_users=users.refused,
            slate_users=users.active,
            empty_slate_users=users.empty,
            latencies=Latencies(self.latencies),
            to_log=self.requests - self.failed,
            logged=logged,
            bad=self.bad,
            rankable=logged - self.bad,
            flat=logged - self.bad if self.scores.size and np.ptp(self.scores) == 0 else 0,
            scores=np.sort(self.scores),
            score_users=float(self.scores.size**2 / max((scores_per_user**2).sum(), 1)),
        )


class _UserTotals(NamedTuple):
    """Numbers of users of a track: with requests, with a disconnect, with a refusal, with an empty slate."""

    active: int
    disconnected: int
    refused: int
    empty: int

    def plus(self, invented: Counter[str]) -> _UserTotals:
        """Return the totals with invented users, who are counted by their event."""
        names = ("answered", "disconnected", "refused", "empty_slate")
        return _UserTotals(*(count + invented[name] for count, name in zip(self, names, strict=True)))


class _SimulatedRequests:
    def __init__(
        self, policy: Canary, world: SimulatedTraffic, faults: Faults, seed: int, attacker: Attacker | None = None
    ) -> None:
        self.attacker, self.admission, self.invented_users = attacker, SenderAdmission(is_backend), 0
        self.attacker_random = np.random.default_rng([seed, 3])
        self.attacked = [(Counter[str](), Counter[str]()) for _ in policy.steps]
        """Numbers of invented users that are evidence, by step, track and event."""
        self.random = np.random.default_rng(seed)
        self.policy, self.world, self.faults = policy, world, faults
        steps = len(policy.steps)
        self.rate = np.clip(world.kpi + world.taste * self.random.normal(size=world.users), 0, 1)
        self.activity = np.cumsum(self.random.gamma(1.0, size=world.users))
        position = self.random.random(world.users)
        self.canary: Bools = position[:, None] < np.array(policy.steps) / 100
        self.never_arrives = self.random.random(world.users) < faults.lost_users
        self.shown_counts, self.positive_counts = np.zeros((world.users, steps)), np.zeros((world.users, steps))
        self.has_asked: Bools = np.zeros((world.users, steps), dtype=np.bool_)
        self.has_disconnected, self.was_refused, self.had_empty_slate = (
            np.zeros((world.users, steps), dtype=np.bool_) for _ in range(3)
        )
        self.sends_mistakes = np.random.default_rng([seed, 1]).random(world.users) < world.mistaken_users
        self.tracks = [(_TrackCounter(), _TrackCounter()) for _ in policy.steps]
        self.label_random = np.random.default_rng([seed, 2])
        self.guard_positives = {label: np.zeros((world.users, steps)) for label in policy.guards}
        """Positives of every label, shape (users, steps)."""

    def play_requests(self, step: int, seconds: float) -> None:
        """Simulate the requests of some seconds."""
        request_count = self.random.poisson(self.world.requests_per_second * seconds)
        user = np.searchsorted(self.activity, self.random.random(request_count) * self.activity[-1])
        user = user[~(self.never_arrives[user] & self.canary[user, step])]
        self.has_asked[user, step] = True
        gives_up = self.world.hang_ups + self.faults.hang_ups * self.canary[user, step]
        disconnects = self.random.random(user.size) < gives_up
        self.has_disconnected[user[disconnects], step] = True
        for canary, counts in enumerate(self.tracks[step]):
            counts.disconnected += int((self.canary[user[disconnects], step] == bool(canary)).sum())
        user = self._answered(user[~disconnects], step)
        on_canary = self.canary[user, step]
        good = np.ones(user.size, dtype=np.bool_)
        for canary, counts in enumerate(self.tracks[step]):
            on_track = on_canary == bool(canary)
            good[on_track] = self._serve(counts, user[on_track], self.faults if canary else Faults())
        rate = self.rate[user] + self.world.kpi_drift * step - self.faults.kpi_drop * on_canary
        clicked = self.random.random(user.size) < rate
        self.shown_counts[:, step] += np.bincount(user[good], minlength=self.world.users)
        self.positive_counts[:, step] += np.bincount(user[good & clicked], minlength=self.world.users)
        for positive in self.guard_positives.values():
            chance = self.rate[user] / self.world.kpi * self.world.further - self.faults.further_drop * on_canary
            clicked_label = self.label_random.random(user.size) < chance
            positive[:, step] += np.bincount(user[good & clicked_label], minlength=self.world.users)
        if self.attacker is not None:
            self._admit(step, on_canary, np.arange(user.size), BACKEND)
            self._attack(self.attacker, step, seconds)

    def _attack(self, attacker: Attacker, step: int, seconds: float) -> None:
        count = self.attacker_random.poisson(attacker.requests_per_second * seconds)
        users = self.world.users + (self.invented_users + np.arange(count)) % (attacker.users or sys.maxsize)
        self.invented_users += count
        sender = BACKEND if attacker.vouches else "203.0.113.7"
        admitted = self._admit(step, np.full(count, attacker.on_canary), users, sender)
        track, events = self.tracks[step][attacker.on_canary], self.attacked[step][attacker.on_canary]
        for event in {"answered", attacker.event}:
            events[event] = min(events[event] + admitted, attacker.users or sys.maxsize)
        if attacker.event in {"refused", "disconnected"}:
            setattr(track, attacker.event, getattr(track, attacker.event) + admitted)
        else:
            faults = Faults(
                slowdown=100 if attacker.event == "slow" else 1,
                score_shift=20 if attacker.event == "shifted_scores" else 0,
            )
            self._serve(track, self.attacker_random.integers(0, self.world.users, admitted), faults)

    def _admit(self, step: int, on_canary: Bools, users: npt.NDArray[np.int64], sender: str) -> int:
        """Return how many requests are evidence."""
        columns = {"canary": on_canary, "user": users.astype(np.uint64)}
        requests = pl.DataFrame(columns).with_columns(sender=pl.lit(sender), step=pl.lit(step, pl.Int32))
        return int(self.admission.admit(requests).sum())

    def _answered(self, user: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.int64]:
        """Return the users of requests that are not refused; note who was refused, and whose slates are empty."""
        world, faults, on_canary = self.world, self.faults, self.canary[user, step]
        refused = np.zeros(user.size, dtype=np.bool_)
        if world.mistaken_users or faults.refusals:
            refusal_rate = 0.5 * self.sends_mistakes[user] + faults.refusals * on_canary
            refused = self.random.random(user.size) < refusal_rate
            self.was_refused[user[refused], step] = True
            for canary, counts in enumerate(self.tracks[step]):
                counts.refused += int((on_canary[refused] == bool(canary)).sum())
        if faults.empty_slates:
            empty = on_canary & ~refused & (self.random.random(user.size) < faults.empty_slates)
            self.had_empty_slate[user[empty], step] = True
        return user[~refused]

    def _serve(self, counts: _TrackCounter, user: npt.NDArray[np.int64], faults: Faults) -> Bools:
        request_count, draw = user.size, self.random.random(user.size)
        nan = draw < faults.nan_rate
        failed = draw < max(faults.nan_rate, faults.error_rate)
        counts.requests += request_count
        counts.bad += int(nan.sum())
        counts.failed += int(failed.sum())
        latencies_ms = self.world.latency_ms * faults.slowdown * np.exp(0.4 * self.random.normal(size=request_count))
        counts.latencies += np.bincount(
            bucket_numbers((1000 * latencies_ms[~failed]).astype(np.int64)), minlength=BUCKETS
        )
        if counts.scores.size < MAX_SAMPLED_SCORES:
            # Scores of one user are similar: most of their variance is between users.
            liking = (self.rate[user] - self.world.kpi) / max(self.world.taste, 1e-9)
            fresh = (liking + faults.score_shift + 0.5 * self.random.normal(size=request_count))[~failed]
            counts.scores = np.concatenate([counts.scores, np.zeros_like(fresh) if faults.constant else fresh])
            counts.scored = np.concatenate([counts.scored, user[~failed]])
        return ~failed

    def _count_users(self, step: int, on_track: Bools) -> _UserTotals:
        return _UserTotals(*(int((cells[:, step] & on_track).sum()) for cells in self._user_events))

    @property
    def _user_events(self) -> tuple[Bools, Bools, Bools, Bools]:
        return self.has_asked, self.has_disconnected, self.was_refused, self.had_empty_slate

    def evidence(self) -> RolloutEvidence:
        """Return the evidence as a reader of the logs would."""
        steps = []
        for number, counts in enumerate(self.tracks):
            on_canary = self.canary[:, number]
            stable, canary = (
                counts[side].evidence(self._count_users(number, on_canary == side).plus(self.attacked[number][side]))
                for side in (False, True)
            )
            steps.append(StepEvidence(stable, canary))
        users = _UserTotals(*(int((cells & ~self.canary).any(axis=1).sum()) for cells in self._user_events))
        users = users.plus(sum((stable for stable, _ in self.attacked), Counter[str]()))
        whole = StepEvidence(
            replace(
                _whole([step.stable for step in steps]),
                users=users.active,
                disconnected_users=users.disconnected,
                refused_users=users.refused,
                slate_users=users.active,
                empty_slate_users=users.empty,
            ),
            _whole([step.canary for step in steps]),
        )
        kpi = difference(UserValues(self.shown_counts, self.positive_counts, self.canary))
        guards = {
            label: difference(UserValues(self.shown_counts, positive, self.canary))
            for label, positive in self.guard_positives.items()
        }
        return RolloutEvidence("simulated", tuple(steps), whole, kpi, guards=guards)


def play(
    policy: Canary,
    world: SimulatedTraffic,
    faults: Faults,
    seed: int,
    analysis_seconds: float = 2.0,
    attacker: Attacker | None = None,
) -> SimulatedRollout:
    """Simulate a rollout to its end.

    Args:
        policy: The declared rollout.
        world: Users and traffic.
        faults: Faults of the canary.
        seed: Seed of all random draws.
        analysis_seconds: Time between two canary analyses.
        attacker: A client that tries to decide the rollout.
    """
    rollout, seconds, analyses = _SimulatedRequests(policy, world, faults, seed, attacker), 0.0, 0
    for step in range(len(policy.steps)):
        judgement, at_step = StepAnalysis("hold", "", ()), 0.0
        while judgement.decision == "hold":
            rollout.play_requests(step, analysis_seconds)
            at_step, seconds, analyses = at_step + analysis_seconds, seconds + analysis_seconds, analyses + 1
            judgement = analyze_step(rollout.evidence(), policy, step, at_step, Health(ready=True))
        if judgement.decision in {"promote", "roll_back"}:
            check = next((check.name for check in judgement.checks if check.status == "breach"), "")
            return SimulatedRollout(judgement.decision, check, judgement.reason, seconds, step, analyses)
    raise AssertionError("the last step ends in a promotion or a rollback")


def _whole(steps: list[TrackEvidence]) -> TrackEvidence:
    return TrackEvidence(
        requests=sum(track.requests for track in steps),
        failed=sum(track.failed for track in steps),
        answered=sum(track.answered for track in steps),
    )
