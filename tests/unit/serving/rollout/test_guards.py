"""A canary whose KPI is as good or better goes back when a guarded label falls too far, and only then."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shortlist.rollout.checks.analysis import StepAnalysis, analyze_step
from shortlist.rollout.checks.analysis_observer import make_observation
from shortlist.rollout.checks.health import CheckResult, Health
from shortlist.rollout.checks.kpi import guard_interval, kpi_interval
from shortlist.rollout.evidence.latency import Latencies
from shortlist.rollout.evidence.reader import EvidenceReader
from shortlist.rollout.evidence.rollout_evidence import RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.evidence.sequential_difference import (
    NO_DIFFERENCE,
    Bools,
    Floats,
    TrackDifference,
    UserValues,
    difference,
)
from shortlist.serving.log.logs import outcome_columns, outcome_schema, prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.serving import Canary, Guard
from tests.served_log import append_rows

WELL = Health(ready=True)
USERS = 2_000
"""Of each track."""


def policy(**guards: Mapping[str, float]) -> Canary:
    return Canary.model_validate(
        {"steps": [50, 100], "interval_seconds": 1, "min_requests": 100, "min_users": 100, "deadline_seconds": 100}
        | {"guards": guards}
    )


LIKES = policy(like={"max_drop": 0.02})
LIKES_BY_A_FIFTH = policy(like={"max_relative_drop": 0.2})


def rates(stable: float, canary: float, users: int = USERS) -> TrackDifference:
    """What is known when so large a share of either track's users had an outcome."""
    positive = np.concatenate([np.arange(users) < round(rate * users) for rate in (stable, canary)]).astype(float)
    on_canary = np.arange(2 * users) >= users
    return difference(UserValues(np.ones((2 * users, 1)), positive[:, None], on_canary[:, None]))


def track(users: int = USERS) -> TrackEvidence:
    """A healthy one."""
    counts = dict.fromkeys(("requests", "answered", "to_log", "logged", "rankable", "users", "settled_users"), users)
    scores: dict[str, Any] = {"scores": np.linspace(0, 1, 200), "score_users": users}
    return TrackEvidence(**counts, latencies=Latencies.from_milliseconds(np.full(users, 10.0)), **scores)


def evidence(kpi: TrackDifference, **guards: TrackDifference) -> RolloutEvidence:
    step = StepEvidence(track(), track())
    last = StepEvidence(TrackEvidence(), track())
    return RolloutEvidence("r1", (step, last), step, kpi, guards=guards)


def analyze(evidence_seen: RolloutEvidence, declared: Canary, step: int = 0, seconds: float = 10) -> StepAnalysis:
    return analyze_step(evidence_seen, declared, step, seconds, WELL)


def check(judgement: StepAnalysis, name: str = "guard like") -> CheckResult:
    return next(check_result for check_result in judgement.checks if check_result.name == name)


BETTER = rates(0.30, 0.36)
FALLEN = rates(0.20, 0.12)


@pytest.mark.parametrize("declared", [LIKES, LIKES_BY_A_FIFTH])
@pytest.mark.parametrize("step", [0, 1])
def test_a_better_kpi_does_not_excuse_a_label_that_falls_too_far(declared: Canary, step: int) -> None:
    evidence_seen = evidence(BETTER, like=FALLEN)
    judgement = analyze(evidence_seen, declared, step)
    assert judgement.decision == "roll_back"
    assert {check_result.name for check_result in judgement.checks if check_result.status != "ok"} == {"guard like"}
    assert kpi_interval(BETTER, declared).low > 0
    assert "like difference -" in judgement.reason and "it falls by more than " in judgement.reason


def test_without_the_guard_the_same_canary_is_promoted() -> None:
    evidence_seen, unguarded_policy = evidence(BETTER, like=FALLEN), policy()
    assert [analyze(evidence_seen, unguarded_policy, step).decision for step in (0, 1)] == ["proceed", "promote"]
    assert [check_result.name for check_result in analyze(evidence_seen, unguarded_policy).checks][-1] == "kpi"


@pytest.mark.parametrize("declared", [LIKES, LIKES_BY_A_FIFTH])
def test_a_label_that_is_as_good_or_falls_within_the_limit_is_promoted(declared: Canary) -> None:
    user_count = 80_000
    for canary in (0.20, 0.19):  # a drop of 0.01, a twentieth
        evidence_seen = evidence(BETTER, like=rates(0.20, canary, user_count))
        assert analyze(evidence_seen, declared, 1).decision == "promote"


@pytest.mark.parametrize("declared", [LIKES, LIKES_BY_A_FIFTH])
def test_a_guarded_label_is_not_compared_with_that_of_a_retired_version(declared: Canary) -> None:
    retirement = "version 1 was retired: it reads dwell"
    judgement = analyze_step(evidence(BETTER, like=FALLEN), declared, 1, 10, WELL, retirement=retirement)
    assert (judgement.decision, check(judgement).status) == ("promote", "skipped")
    assert check(judgement).reason == f"not compared: {retirement}"
    few_likes = evidence(BETTER, like=rates(0.20, 0.12, 50))
    waiting = analyze_step(few_likes, declared, 1, 10, WELL, retirement=retirement)
    assert (waiting.decision, waiting.reason) == (
        "hold", "at 100 %: like: 50 users of the canary have outcomes, 100 are needed",
    )  # fmt: skip


def test_reasons_carry_their_numbers() -> None:
    evidence_seen = evidence(BETTER, like=FALLEN)
    absolute, relative = analyze(evidence_seen, LIKES).reason, analyze(evidence_seen, LIKES_BY_A_FIFTH).reason
    assert absolute.startswith("at 50 %: like difference -0.0800 in [-0.1")
    assert absolute.endswith("(99.5% at every look; 2,000 and 2,000 users): it falls by more than 0.02")
    assert relative.startswith("at 50 %: like difference -40.0% in [-5")  # 0.12 / 0.20 - 1
    assert relative.endswith("it falls by more than 20% of the stable track's")
    numbers = check(analyze(evidence_seen, LIKES_BY_A_FIFTH)).numbers
    assert (numbers["allowed"], numbers["relative"], numbers["stable"]) == (0.2, True, 0.2)
    json.dumps(numbers, allow_nan=False)


@pytest.mark.parametrize("declared", [LIKES, LIKES_BY_A_FIFTH])
def test_a_drop_that_is_not_ruled_out_holds_and_at_the_deadline_goes_back(declared: Canary) -> None:
    evidence_seen = evidence(BETTER, like=rates(0.20, 0.19, 500))
    early, late = analyze(evidence_seen, declared), analyze(evidence_seen, declared, seconds=100)
    assert (early.decision, late.decision) == ("hold", "roll_back")
    assert "like difference -" in early.reason and "is not ruled out yet" in early.reason
    assert "undecided after 100 s" in late.reason


@pytest.mark.parametrize("declared", [LIKES, LIKES_BY_A_FIFTH])
def test_at_100_percent_only_an_estimated_drop_above_the_limit_waits(declared: Canary) -> None:
    small_drop, large_drop = (evidence(BETTER, like=rates(0.20, canary, 500)) for canary in (0.19, 0.15))
    assert [analyze(evidence_seen, declared, step=1).decision for evidence_seen in (small_drop, large_drop)] == [
        "promote",
        "hold",
    ]
    late = analyze(large_drop, declared, step=1, seconds=100)
    assert late.decision == "roll_back" and "is not ruled out yet" in late.reason


@pytest.mark.parametrize("declared", [LIKES, LIKES_BY_A_FIFTH])
@pytest.mark.parametrize(
    ("difference_seen", "reason"),
    [
        (NO_DIFFERENCE, "like: no outcome of the canary has arrived"),
        (rates(0.2, 0.2, 50), "like: 50 users of the canary have outcomes, 100 are needed"),
        (rates(0.0, 0.0), "like: every outcome is 0 on both tracks, so they cannot be compared"),
    ],
)
def test_a_label_of_which_too_little_is_known_holds(
    declared: Canary, difference_seen: TrackDifference, reason: str
) -> None:
    judgement = analyze(evidence(BETTER, like=difference_seen), declared, 1)
    assert (judgement.decision, judgement.reason) == ("hold", f"at 100 %: {reason}")
    observation = make_observation(evidence(BETTER, like=difference_seen), declared, 1, judgement)
    json.loads(observation.model_dump_json())  # without NaN


def test_evidence_of_a_reader_that_knows_no_such_label_holds() -> None:
    assert analyze(evidence(BETTER), LIKES).decision == "hold"


def test_a_lift_where_the_stable_track_had_nothing_is_no_drop_and_has_no_ratio() -> None:
    lifted = rates(0.0, 0.2)
    assert analyze(evidence(BETTER, like=lifted), LIKES).decision == "proceed"
    interval = guard_interval("like", lifted, LIKES_BY_A_FIFTH)
    assert (interval.low, interval.high) == (-1.0, np.inf)
    assert analyze(evidence(BETTER, like=lifted), LIKES_BY_A_FIFTH).decision == "hold"


def test_kpi_and_guards_share_alpha() -> None:
    alone, shared = policy(), policy(like={"max_drop": 0.02}, long_view={"max_drop": 0.02}, share={"max_drop": 0.02})
    assert (alone.alpha_per_test, shared.alpha_per_test) == (0.01, 0.01 / 4)
    difference_seen = rates(0.3, 0.3)
    assert kpi_interval(difference_seen, shared).high > kpi_interval(difference_seen, alone).high
    of_guard, of_kpi = guard_interval("like", difference_seen, shared), kpi_interval(difference_seen, shared)
    assert (of_guard.low, of_guard.high) == (of_kpi.low, of_kpi.high)


def test_a_scale_near_the_drop_decides_a_rare_label_sooner() -> None:
    def radius(**guard_settings: float) -> float:
        declared = policy(like={"max_drop": 0.002, **guard_settings})
        interval = guard_interval("like", rates(0.01, 0.01, 50_000), declared)
        return interval.high - interval.value

    assert radius(scale=0.002) < 0.9 * radius()  # found: 0.82


# False alarms.

LOOKS = 10
GUARDED = policy(like={"max_relative_drop": 0.2}, long_view={"max_drop": 0.05}).model_copy(
    update={"kpi": policy().kpi.model_copy(update={"alpha": 0.1})}
)
"""A rare label and a frequent one; alpha is large, so that a few hundred rollouts tell."""


@dataclass(frozen=True)
class Alarms:
    """Rollouts out of all in which a test said worse at any look."""

    kpi: float
    like: float
    long_view: float
    any: float
    any_by_z_tests: float


def played(like: float, long_view: float, rollouts: int, users: int = 800, share: float = 0.3) -> Alarms:
    """Play rollouts of a canary with these rates; the stable track has 0.3, 0.05 and 0.4."""
    random = np.random.default_rng(23)
    worse = np.zeros((rollouts, 4), dtype=bool)
    for rollout in range(rollouts):
        canary = random.random(users) < share
        chances = [np.where(canary, of_canary, of_stable) for of_canary, of_stable in _rates(like, long_view)]
        # What a user does differs from what others do, and goes together.
        taste = random.beta(3, 3, users) * 2
        requests_per_user = random.integers(1, 5, users)
        positives_by_label = [random.binomial(requests_per_user, np.clip(chance * taste, 0, 1)) for chance in chances]
        for users_so_far in range(users // LOOKS, users + 1, users // LOOKS):
            differences = [
                difference_of(requests_per_user[:users_so_far], label_difference[:users_so_far], canary[:users_so_far])
                for label_difference in positives_by_label
            ]
            labels = (
                guard_interval("like", differences[1], GUARDED),
                guard_interval("long_view", differences[2], GUARDED),
            )
            worse[rollout] |= [
                kpi_interval(differences[0], GUARDED).high < 0,
                labels[0].high < -0.2,
                labels[1].high < -0.05,
                any(
                    difference_seen.value + margin + 1.96 * difference_seen.variance**0.5 < 0
                    for difference_seen, margin in zip(differences, (0, 0.2 * 0.05, 0.05), strict=True)
                ),
            ]  # fmt: skip
    shares = worse.mean(axis=0)
    return Alarms(*shares[:3].tolist(), any=float(worse[:, :3].any(axis=1).mean()), any_by_z_tests=float(shares[3]))


def _rates(like: float, long_view: float) -> Sequence[tuple[float, float]]:
    return (0.3, 0.3), (like, 0.05), (long_view, 0.4)


def difference_of(requests_per_user: Any, positives: Any, canary: Bools) -> TrackDifference:
    shown_items: Floats = requests_per_user[:, None].astype(float)
    return difference(UserValues(shown_items, positives[:, None].astype(float), canary[:, None]))


def test_false_alarms_of_kpi_and_guards_together_stay_below_alpha() -> None:
    # A canary that falls by just what is allowed: no worse one may be kept, and no better one be sent back.
    alarms = played(like=0.04, long_view=0.35, rollouts=100)
    assert alarms.any <= 0.1  # found: none of 1 000, and none of 1 000 of a canary that is as good
    assert alarms.any_by_z_tests > 0.1  # what tests of one look would do at a level of 5 %; found: 16 %


def test_labels_that_fall_far_below_the_limit_are_rolled_back() -> None:
    alarms = played(like=0.005, long_view=0.2, rollouts=20)
    assert min(alarms.like, alarms.long_view) > 0.9
    assert alarms.kpi <= 0.1


# From the logs.

BEGAN = datetime(2026, 11, 21, 3, 34, tzinfo=UTC)
DATA = Data.model_validate(
    {
        "source": {"kind": "generated"},
        "columns": [
            {"name": "item_id", "type": "integer"},
            {"name": "is_click", "type": "integer"},
            {"name": "seconds", "type": "number", "known": "after"},
            {"name": "deed", "type": "string", "known": "after"},
        ],
        "label": "is_click",
        "labels": {
            "long_view": {"column": "seconds", "positive": {"at_least": 20}},
            "glance": {"column": "seconds", "positive": {"at_most": 2}},
            "shared": {"column": "deed", "positive": {"any_of": ["share"]}},
        },
        "item": "item_id",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
    }
)
ON_DISK = policy(long_view={"max_drop": 0.05}, glance={"max_drop": 0.5}, shared={"max_relative_drop": 0.9})


@dataclass(frozen=True)
class Visit:
    """What one user was shown, and did; the second item has the best score."""

    user: int
    canary: bool
    click: bool
    seconds: float | None
    deed: str | None
    slate: bool = False


def visits(canary_watches: float, slate: bool = False, seed: int = 3) -> list[Visit]:
    """Users of the canary click more; a share of them watches for long, of the stable track's a half."""
    random = np.random.default_rng(seed)
    visit_list = []
    for user in range(600):
        canary = user % 2 == 0
        click = bool(random.random() < (0.5 if canary else 0.3))
        seconds = 30.0 if random.random() < (canary_watches if canary else 0.5) else None if user % 3 else 1.0
        visit_list.append(Visit(user, canary, click, seconds, "share" if random.random() < 0.4 else None, slate))
    return visit_list


def write(paths: ServingPaths, visit_list: Sequence[Visit], with_columns: bool = True) -> None:
    """Write what Envoy, the servers and the users tell."""
    lines, answers, outcomes = [], [], []
    for place, visit in enumerate(visit_list):
        at, name = BEGAN + timedelta(milliseconds=place), f"request-{visit.user}"
        fields = {"track": "canary" if visit.canary else "stable", "rollout": "r1", "version": 4 if visit.canary else 3}
        fields["sender"] = "backend"
        lines.append(
            fields | {"time": at.isoformat(), "id": name, "user": f"u{visit.user}", "step": "0", "us": 5_000,
                    "path": "/v2/models/demo/infer", "status": 200, "grpc": None}
        )  # fmt: skip
        answers.append(
            fields | {"time": at, "request_id": name, "user": f"u{visit.user}", "routed_by_user": True, "step": 0,
                    "status": 200, "degraded": False, "items": [7, 8], "scores": [0.1 + place / 1e4, 0.5 + place / 1e4],
                    "slate:asked": 2 if visit.slate else None}
        )  # fmt: skip
        outcome = {"time": at, "request_id": name, "item": 8, "row": 1, "label": int(visit.click)}
        outcomes.append(outcome | {"seconds": visit.seconds, "deed": visit.deed})
        # The item below: of a slate it was shown as well, of a request that brought its candidates it was not.
        outcomes.append(outcome | {"item": 7, "row": 0, "label": 0, "seconds": 1.0, "deed": None})
    paths.logs.mkdir(parents=True)
    (paths.logs / "envoy-a.access.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    schema = outcome_schema(pa.int64(), outcome_columns(DATA) if with_columns else None)
    append_rows(paths.predictions, prediction_schema(DATA), answers)
    append_rows(paths.outcomes, schema, [{name: row.get(name) for name in schema.names} for row in outcomes])


def read(paths: ServingPaths, declared: Canary = ON_DISK) -> RolloutEvidence:
    guarded = {name: DATA.labels[name] for name in declared.guards}
    reader = EvidenceReader(paths, "r1", len(declared.steps), declared.kpi, guarded=guarded)
    reader.poll()
    return reader.snapshot()


@pytest.mark.parametrize("slate", [False, True])
def test_outcomes_of_every_guarded_label_are_joined_with_shown_items(tmp_path: Path, slate: bool) -> None:
    paths, visit_list = ServingPaths.for_spec(tmp_path, "demo"), visits(canary_watches=0.5, slate=slate)
    write(paths, visit_list)
    evidence_read = read(paths)
    for canary in (False, True):
        visits_of_track = [visit for visit in visit_list if visit.canary == canary]
        long = np.mean([visit.seconds == 30 for visit in visits_of_track])  # without a value: 0, as in training
        shared = np.mean([visit.deed == "share" for visit in visits_of_track])
        # Of a slate the other item counts too, at which everybody glanced.
        glance = 1.0 if slate else np.mean([visit.seconds == 1 for visit in visits_of_track])
        mean_by_label = {
            name: visit.canary_mean if canary else visit.stable_mean for name, visit in evidence_read.guards.items()
        }
        assert mean_by_label == pytest.approx({"long_view": long, "glance": glance, "shared": shared})
    assert (evidence_read.kpi.canary_users, evidence_read.guards["long_view"].canary_users) == (300, 300)
    json.dumps(evidence_read.summary(), allow_nan=False)
    assert set(evidence_read.summary()["guards"]) == {"long_view", "glance", "shared"}


def test_a_canary_with_more_clicks_and_fewer_long_views_is_rolled_back(tmp_path: Path) -> None:
    paths = ServingPaths.for_spec(tmp_path, "demo")
    write(paths, visits(canary_watches=0.1))
    evidence_read = read(paths)
    judgement = analyze(evidence_read, ON_DISK)
    assert judgement.decision == "roll_back"
    assert judgement.reason.startswith("at 50 %: long_view difference -")
    assert analyze(evidence_read, policy()).decision == "proceed"  # the clicks alone would have it go on
    guard_rates = make_observation(evidence_read, ON_DISK, 0, judgement).guards
    assert [(guard.label, guard.allowed, guard.relative) for guard in guard_rates] == [
        ("long_view", 0.05, False), ("glance", 0.5, False), ("shared", 0.9, True),
    ]  # fmt: skip
    first = guard_rates[0]
    assert first.difference is not None and first.stable is not None and first.canary is not None
    assert first.difference.value == pytest.approx(first.canary - first.stable)


def test_outcomes_without_the_labels_columns_hold_the_rollout(tmp_path: Path) -> None:
    paths = ServingPaths.for_spec(tmp_path, "demo")
    write(paths, visits(canary_watches=0.5), with_columns=False)
    evidence_read = read(paths)
    assert (
        evidence_read.kpi.canary_users,
        evidence_read.guards["shared"].canary_users,
        evidence_read.accounting.unreadable,
    ) == (300, 0, 0)
    judgement = analyze(evidence_read, ON_DISK, 1)
    assert judgement.decision == "hold"
    assert "shared: no outcome of the canary has arrived" in judgement.reason


def test_label_columns_without_any_value_are_no_evidence(tmp_path: Path) -> None:
    paths = ServingPaths.for_spec(tmp_path, "demo")
    write(paths, [replace(visit, deed=None) for visit in visits(canary_watches=0.5)])
    evidence_read = read(paths)
    assert (evidence_read.guards["shared"].canary_users, evidence_read.guards["long_view"].canary_users) == (0, 300)


def test_outcomes_with_and_without_the_columns_are_read_together(tmp_path: Path) -> None:
    paths, visit_list = ServingPaths.for_spec(tmp_path, "demo"), visits(canary_watches=0.5)
    write(paths, visit_list)
    at = BEGAN + timedelta(minutes=1)
    late = {"time": at, "request_id": "request-0", "item": 8, "row": 1, "label": 1}
    append_rows(paths.outcomes, outcome_schema(pa.int64()), [late])
    evidence_read = read(paths)
    assert evidence_read.accounting.unreadable == 0
    assert evidence_read.guards["long_view"].canary_users == 300


def test_a_guard_has_exactly_one_limit() -> None:
    assert (Guard(max_drop=0.01).allowed, Guard(max_relative_drop=0.1).allowed) == (0.01, 0.1)
    for wrong in ({}, {"max_drop": 0.1, "max_relative_drop": 0.1}):
        with pytest.raises(ValueError, match="wanted either max_drop or max_relative_drop"):
            Guard.model_validate(wrong)
