"""A short loop, lived for real: sound releases earn more than the old ones, and a broken one is seen to earn less."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from monitoring.reference.reference import Reference
from shortlist.contracts import Columns, Files
from shortlist.data.collected import CollectedLog
from shortlist.data.world.answering_world import AnsweringWorld
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.loop.in_process_release import InProcessRelease
from shortlist.loop.loop import LivedLoop, run_loop
from shortlist.loop.loop_record import Loop
from shortlist.loop.policies import POLICIES
from shortlist.slates.recommender import Slate, SlateRequest
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json
from shortlist.storage.storage_config import StorageConfig
from tests.simulation.slate_windows import SlateWindows

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]

SHIPPED = Path(__file__).parents[2] / "pipelines/specs/loop.yaml"
SLATES = 400


def small(value: str = "score", days: int = 11) -> Spec:
    """The shipped loop in a small world, live from its eighth day; on the last but one the tastes of all users change.

    The log has as many rows a day, however many days there are.
    """
    spec: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    tastes = {"kind": "changed_tastes", "from_day": days - 2, "strength": 1.0}
    sizes = {"rows": 2_000 * days, "users": 300, "items": 120, "days": days, "taste": 3.0}
    spec["data"]["source"] |= sizes | {"drifts": [tastes]}
    spec["data"]["rules"] = {"min_volume_ratio": 0}
    del spec["retrieval"]["sources"]["towers"]
    spec["retrieval"] |= {"candidates": 80, "simulated_requests": 50}
    spec["models"]["logistic"] |= {"bins": [0], "l2": [1e-5], "refit": False, "epochs": 3}
    spec["ordering"]["value"] = value
    spec["gates"] |= {"min_test_rows": 500, "max_calibration_error": 0.2, "max_rate_error": 0.5, "max_auc_drop": 0.1}
    spec["gates"]["infra"] |= {"max_p50_ms": 5_000, "max_p99_ms": 10_000}
    spec["gates"]["infra"] |= {"max_slate_p50_ms": 5_000, "max_slate_p99_ms": 10_000}
    spec["schedule"] = {"refresh": "0 1 * * *", "retrain": "0 2 * * *"}
    return parse_spec(yaml.safe_dump(spec))


def test_a_loop_learns_from_what_its_users_click(tmp_path: Path) -> None:
    lived = run_loop(small(), tmp_path / "runs", SLATES)
    written = read_json(tmp_path / "runs" / "latest" / "loop.json")
    assert [day["policy"] for day in written["days"][:5]] == list(POLICIES)
    assert written == lived.model_dump(mode="json")
    assert len(lived.rewards("loop")) == 3
    for best, loop, chance in zip(
        *(lived.rewards(policy) for policy in ("best_possible", "loop", "chance")), strict=True
    ):
        assert chance < loop <= best
    assert lived.rewards("loop")[0] == lived.rewards("frozen")[0]  # the same release
    assert lived.rewards("loop")[-1] > lived.rewards("frozen")[-1]  # which does not know the new tastes
    assert [event.kind for event in lived.events].count("refreshed") == 2
    assert any(event.kind == "changed_tastes" for event in lived.events)
    assert 0 <= lived.exploration_cost < 0.05


def test_a_broken_release_is_seen_to_earn_less(tmp_path: Path) -> None:
    """No gate of this spec reads the value of slates, so that the worst order is promoted; its reward shows it."""
    loop = LivedLoop(small(days=12), tmp_path, SLATES)
    loop.begin()
    loop.live(8)
    _check_batches_equal_single_requests(loop)
    _check_windows(loop)
    batch = CollectedLog.open(loop.context.stores, "loop").batches()[-1]
    assert batch.counts.requests == loop.summary().days[0].slates
    loop.spec = small("-score", days=12)
    loop.pass_night(8)
    loop.live(9)
    sound, broken = (_day(loop.summary(), number) for number in (8, 9))
    promoted = [event for event in loop.summary().events if event.kind == "promoted"]
    assert [event.version for event in promoted] == [2]
    assert sound["loop"] == sound["frozen"] > sound["chance"]
    assert broken["loop"] < 0.7 * broken["chance"] < broken["frozen"]


def _check_windows(loop: LivedLoop) -> None:
    """Check that windows of the sound release are quiet, and that one which ranks at random alarms."""
    registry = loop.context.tracker.registry
    version = registry.fetch(1)
    reference = Reference.load(registry.reference_of(1))  # type: ignore[arg-type]
    assert set(reference.shown) == {"logistic"}
    assert reference.shown["logistic"].mean_score > reference.models["logistic"].mean_score  # the best of many
    location = spec_feast_store_location(StorageConfig.parse(loop.context.stores), "loop")
    world = AnsweringWorld(loop.source.model_copy(update={"drifts": ()}), SLATES, 8)
    preprocessing = Preprocessing.load(version.folder / Files.PREPROCESSING)
    log = Path(location.require_announcement()["log"])
    windows = SlateWindows(loop.spec, world, log, reference, "logistic", preprocessing)
    release = InProcessRelease.open(loop.context, 1, loop.spec.data)
    verdicts = [
        windows.add(day + 1.0, release, lambda requests: [answer.slate for answer in release.answer(requests)]).verdict
        for day in range(8, 14)
    ]
    assert verdicts == ["healthy"] * 6
    random = np.random.default_rng(0)

    def show_at_random(requests: Sequence[SlateRequest]) -> list[Slate]:
        found = release.stages.find_all(requests)
        return [
            release.stages.slate(request, candidates, random.random(len(candidates.items)))
            for request, candidates in zip(requests, found, strict=True)
        ]

    broken = windows.add(15.0, release, show_at_random)
    assert (broken.verdict, {"score", "log_loss"} <= set(broken.columns)) == ("degraded", True)


def _day(loop: Loop, number: int) -> dict[str, float]:
    return {policy: loop.rewards(policy)[number - 8] for policy in POLICIES}


def _check_batches_equal_single_requests(loop: LivedLoop) -> None:
    served = InProcessRelease.open(loop.context, 1, loop.spec.data)
    sent = AnsweringWorld(loop.source, SLATES, 8).ask(8.5).frame(loop.source).head(20)
    requests = [
        SlateRequest(str(row["request_id"]), row["user_id"], 10, row[Columns.TIME], _context(served, row))
        for row in sent.iter_rows(named=True)
    ]
    together = served.answer(requests)
    for request, answer in zip(requests, together, strict=True):
        (alone,) = served.answer([request])
        assert answer.slate.items.equals(alone.slate.items)
        np.testing.assert_allclose(answer.slate.scores, alone.slate.scores, rtol=1e-5)
    assert pl.concat([answer.slate.items for answer in together]).n_unique() > 10


def _context(served: InProcessRelease, row: dict[str, Any]) -> dict[str, Any]:
    context = served.stages.find_user_context(row["user_id"])
    return {**context, "user_id": row["user_id"], "surface": row["surface"], "device": row["device"]}
