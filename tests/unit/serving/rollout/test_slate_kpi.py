"""A canary with worse slates is rolled back for it, though its best-scored items are as good; an equal one stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shortlist.rollout.checks.analysis import StepAnalysis, analyze_step
from shortlist.rollout.checks.analysis_observer import make_observation
from shortlist.rollout.checks.health import Health
from shortlist.rollout.checks.kpi import kpi_interval
from shortlist.rollout.evidence.reader import EvidenceReader
from shortlist.rollout.evidence.rollout_evidence import RolloutEvidence
from shortlist.rollout.evidence.sequential_difference import UserValues, difference
from shortlist.serving.log.logs import outcome_schema, prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.serving import Canary
from tests.served_log import append_rows

BEGAN = datetime(2026, 11, 21, 3, 34, tzinfo=UTC)
DATA = Data.model_validate(
    {
        "source": {"kind": "generated"},
        "columns": [{"name": "item_id", "type": "integer"}, {"name": "is_click", "type": "integer"}],
        "label": "is_click",
        "item": "item_id",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
    }
)
MAX_DROP = {"hits": 0.15, "clicks": 0.5}
"""Clicks of three items vary more than whether there is one."""
USERS = 500
GOOD = (0.3, 0.3, 0.3)
"""Chance of a click on the item of every place; the second item has the best score."""
ALONE = (0.0, 0.3, 0.0)
"""An order that puts beside that item what nobody wants."""


@dataclass(frozen=True)
class Slate:
    """What a user was shown at a step, and did."""

    user: int
    step: int
    canary: bool
    clicks: Sequence[bool]

    @property
    def id(self) -> str:
        return f"{self.user}-{self.step}"

    @property
    def track(self) -> str:
        return "canary" if self.canary else "stable"


def policy(slate: str) -> Canary:
    kpi = {"slate": slate, "max_drop": MAX_DROP[slate]}
    return Canary.model_validate(
        {"steps": [50, 100], "interval_seconds": 1, "min_requests": 100, "min_users": 100, "kpi": kpi}
    )


def played(stable: Sequence[float], canary: Sequence[float], step: int, seed: int) -> list[Slate]:
    """Every user of a step asks once; at the first step every other one gets the canary."""
    random = np.random.default_rng(seed)
    slate_list = []
    for user in range(USERS):
        on_canary = step == 1 or user % 2 == 0
        clicks = random.random(3) < np.array(canary if on_canary else stable)
        slate_list.append(Slate(user, step, on_canary, clicks.tolist()))
    return slate_list


def write(paths: ServingPaths, slates: Sequence[Slate]) -> None:
    """Write what Envoy, the servers and the users tell of slates."""
    random = np.random.default_rng(len(slates))
    lines, answers, outcomes = [], [], []
    for place, slate in enumerate(slates):
        at = BEGAN + timedelta(seconds=100 * slate.step, milliseconds=place)
        fields = {"sender": "backend", "track": slate.track, "rollout": "r1", "version": 4 if slate.canary else 3}
        lines.append(
            fields | {"time": at.isoformat(), "id": slate.id, "user": f"u{slate.user}", "step": str(slate.step),
                    "us": 5_000, "path": "/v2/models/demo.recommend/infer", "status": 200, "grpc": None}
        )  # fmt: skip
        low, high, middle = np.sort(random.random(3)).astype(np.float32)[[0, 2, 1]].tolist()
        answers.append(
            fields | {"time": at, "request_id": slate.id, "user": f"u{slate.user}", "routed_by_user": True,
                    "step": slate.step, "status": 200, "degraded": False, "items": [7, 8, 9],
                    "scores": [low, high, middle],
                    "slate:asked": 3}
        )  # fmt: skip
        outcomes += [
            {"time": at, "request_id": slate.id, "item": 7 + row, "row": row, "label": int(label)}
            for row, label in enumerate(slate.clicks)
        ]
    paths.logs.mkdir(parents=True)
    (paths.logs / "envoy-a.access.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    append_rows(paths.predictions, prediction_schema(DATA), answers)
    append_rows(paths.outcomes, outcome_schema(pa.int64()), outcomes)


def judged(
    folder: Path, slates: Sequence[Slate], step: int, declared: Canary
) -> tuple[StepAnalysis, RolloutEvidence]:  # fmt: skip
    """Return what the analysis says, and the evidence."""
    paths = ServingPaths.for_spec(folder, "demo")
    write(paths, slates)
    reader = EvidenceReader(paths, "r1", len(declared.steps), declared.kpi)
    reader.poll()
    evidence = reader.snapshot()
    return analyze_step(evidence, declared, step, 10.0, Health(ready=True)), evidence


@pytest.mark.parametrize("slate", ["hits", "clicks"])
def test_a_canary_with_worse_slates_is_rolled_back(tmp_path: Path, slate: str) -> None:
    analysis, evidence = judged(tmp_path, played(GOOD, ALONE, 0, 1), 0, policy(slate))
    assert analysis.decision == "roll_back", analysis.reason
    assert "the canary is worse" in analysis.reason and "KPI difference -" in analysis.reason
    observation = make_observation(evidence, policy(slate), 0, analysis)
    assert (observation.stable.slates, observation.canary.slates) == (USERS // 2, USERS // 2)
    # One less than a miss of all three, and three and one times the chance of a click.
    assert observation.stable.hit_rate == pytest.approx(1 - 0.7**3, abs=0.1)
    assert observation.canary.hit_rate == pytest.approx(0.3, abs=0.1)
    assert observation.stable.clicks_per_slate == pytest.approx(0.9, abs=0.15)
    assert observation.canary.clicks_per_slate == pytest.approx(0.3, abs=0.1)


def test_the_best_scored_item_alone_shows_no_difference(tmp_path: Path) -> None:
    slates = played(GOOD, ALONE, 0, 1)
    best = {
        canary: np.mean([slate.clicks[1] for slate in slates if slate.canary == canary]) for canary in (False, True)
    }
    assert abs(best[True] - best[False]) < 0.05


@pytest.mark.parametrize("slate", ["hits", "clicks"])
def test_a_canary_whose_slates_are_as_good_is_promoted(tmp_path: Path, slate: str) -> None:
    first = played(GOOD, GOOD, 0, 2)
    analysis, evidence = judged(tmp_path / "first", first, 0, policy(slate))
    assert analysis.decision == "proceed", analysis.reason
    assert evidence.kpi.canary_users == USERS // 2
    analysis, _ = judged(tmp_path / "last", [*first, *played(GOOD, GOOD, 1, 3)], 1, policy(slate))
    assert analysis.decision == "promote", analysis.reason


def is_rolled_back(slate: str, effect: float, seed: int) -> bool:
    """Play a rollout in which users come one after another, and look 20 times; `effect` is the canary's loss."""
    random = np.random.default_rng(seed)
    users, canary = 1_000, np.arange(1_000) % 2 == 0
    chance = 0.4 * random.beta(2, 8, users) * (1 - effect * canary)
    clicks = random.binomial(10, np.repeat(chance[:, None], 5, axis=1))
    has_request = np.arange(5) < random.integers(1, 6, (users, 1))
    slate_values = np.where(has_request, clicks > 0 if slate == "hits" else clicks, 0)
    order = random.permutation(users)
    for users_so_far in range(50, users + 1, 50):
        first_users = order[:users_so_far]
        shown_items, positive = (
            part[first_users].sum(axis=1, keepdims=True).astype(float) for part in (has_request, slate_values)
        )
        if (
            kpi_interval(
                difference(UserValues(shown_items, positive, canary[first_users][:, None])), policy(slate)
            ).high
            < 0
        ):
            return True
    return False


@pytest.mark.parametrize("slate", ["hits", "clicks"])
def test_repeated_analysis_rolls_few_equal_canaries_back_and_most_bad(slate: str) -> None:
    assert sum(is_rolled_back(slate, 0.0, seed) for seed in range(100)) <= 3  # alpha is 0.01
    assert sum(is_rolled_back(slate, 0.4, seed) for seed in range(30)) >= 27
