"""The old recommender of a generated world: what users click stays as planted, and every propensity is exact."""

from __future__ import annotations

import hashlib
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from shortlist.contracts import Columns
from shortlist.data.world.click_model import ClickModel
from shortlist.data.world.generate import build_items_table, build_users_table, generate_log
from shortlist.data.world.old_recommender import OldRecommender
from shortlist.data.world.place_probabilities import PlaceProbabilities
from shortlist.data.world.random_streams import Floats
from shortlist.data.world.synthetic_world import build_world
from shortlist.data.world.traffic import SLOTS, draw_impressions, plan_parts
from shortlist.spec.data import GeneratedSource
from shortlist.spec.load import load_spec

DEMO = Path(__file__).parents[3] / "pipelines/specs/demo.yaml"
OTHER_WORLDS: tuple[dict[str, Any], ...] = (
    {"rows": 30_000, "users": 700, "items": 300, "days": 5, "seed": 11, "recommender": {"noise": 2.0}},
    {"rows": 12_000, "users": 2_000, "items": 900, "days": 3, "seed": 5, "taste": 4.0,
     "recommender": {"noise": 0.0, "taste": 1.0, "randomized": 0.5}},
)  # fmt: skip


def test_the_demo_keeps_its_click_function_catalogue_and_size() -> None:
    source = load_spec(DEMO).data.source
    assert isinstance(source, GeneratedSource) and source.recommender is not None
    world, parts = build_world(source), plan_parts(source)
    clicks = ClickModel.calibrate(source, world)
    probability = clicks.expected_clicks(np.arange(0, 5_000, 10), np.full(500, -1), np.array([-1.0, 0.5]), 13)
    visits = draw_impressions(source, world, parts[3])
    visit_arrays = (visits.time_us, visits.user, visits.surface, visits.device, visits.position)
    assert sum(part.rows for part in parts) == 200_000
    assert hash_of(np.round(probability, 6).tobytes()) == "070788dfaff3ff3f"
    assert hash_of(build_users_table(source, world).write_ndjson().encode()) == "8c711554f111286f"
    assert hash_of(build_items_table(source, world).write_ndjson().encode()) == "34601add85bf5d47"
    assert hash_of(b"".join(np.ascontiguousarray(array).tobytes() for array in visit_arrays)) == "50f2c8e1708065f4"


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@pytest.mark.parametrize("options", OTHER_WORLDS)
def test_a_world_of_another_size_and_noise_has_slates_with_exact_propensities(
    options: dict[str, Any], tmp_path: Path
) -> None:
    source = GeneratedSource.model_validate({"kind": "generated", **options})
    generate_log(source, tmp_path / "log")
    log = pl.read_parquet(tmp_path / "log" / "impressions" / "*.parquet")
    assert log.height == source.rows
    assert log.select("request_id", "item_id").is_unique().all()
    assert log.group_by("request_id").agg(pl.col("user_id", "randomized").n_unique(), pl.len())[
        ["user_id", "randomized", "len"]
    ].max().row(0) == (1, 1, SLOTS)
    # Seen down to a depth: every request has all places from the first one to its last one.
    depth = log.group_by("request_id").agg(pl.col("position").max(), pl.len())
    assert (depth["position"] == depth["len"]).all()
    declared = source.recommender
    assert declared is not None
    share = log.group_by("request_id").agg(pl.col("randomized").first())["randomized"].mean()
    assert share == pytest.approx(declared.randomized, abs=0.03)
    # The expected number of rows with an item, from the propensities alone, against the rows that there are: the mean
    # of 1 / propensity over the rows at a place is the number of published items.
    world = build_world(source)
    for place in (1, 5):
        rows = log.filter((pl.col("position") == place) & (pl.col(Columns.TIME).dt.date() == source.start))
        inverse = (1.0 / rows["propensity"]).to_numpy()
        published = int((world.items.published <= 0).sum())
        assert inverse.mean() == pytest.approx(published, abs=4 * inverse.std() / np.sqrt(inverse.size))
    clicked, probability = log["is_click"].to_numpy(), log[Columns.BEST].to_numpy()
    deviation = float(np.sqrt((probability * (1 - probability)).sum()))
    assert abs(clicked.sum() - probability.sum()) < 4 * deviation


def test_propensities_are_the_shares_of_many_draws() -> None:
    source = GeneratedSource.model_validate({"kind": "generated", **OTHER_WORLDS[0]})
    world = build_world(source)
    recommender = OldRecommender.on_day(source, world, 2)
    draws = 20_000
    slates = recommender.draw(np.full(draws, 3), np.random.default_rng(1))
    for place in (0, 4, 9):
        items, first, counts = np.unique(slates.items[:, place], return_index=True, return_counts=True)
        expected = draws * slates.propensities[first, place]
        frequent = expected > 50
        assert frequent.sum() > 10
        deviations = (counts - expected)[frequent] / np.sqrt(expected[frequent])
        assert np.abs(deviations).max() < 4.5
        assert items.size > 100
    random_items = slates.items[slates.randomized]
    assert world.items.published[random_items].max() <= 2
    assert np.bincount(random_items[:, 0], minlength=300).max() < 5 * random_items.shape[0] / 250


def test_users_of_segments_are_shown_what_their_segment_likes() -> None:
    source = GeneratedSource.model_validate({"kind": "generated", **OTHER_WORLDS[1]})
    world = build_world(source)
    without_taste = source.model_copy(update={"recommender": source.recommender.model_copy(update={"taste": 0.0})})  # type: ignore[union-attr]
    clicks, users = ClickModel.calibrate(source, world), np.arange(0, 2_000, 10)
    appeal = clicks.expected_clicks(users, np.full(users.size, -1), np.zeros(1), 1)
    value = []
    for declared in (source, without_taste):
        slates = OldRecommender.on_day(declared, world, 1).draw(users, np.random.default_rng(0))
        value.append(np.take_along_axis(appeal, slates.items, 1).mean())
    assert value[0] > value[1] + 0.01


def enumerate_places(weights: Floats, places: int) -> Floats:
    probabilities = np.zeros((weights.size, places))
    for slate in permutations(range(weights.size), places):
        remaining, probability = weights.sum(), 1.0
        for item in slate:
            probability *= weights[item] / remaining
            remaining -= weights[item]
        for place, item in enumerate(slate):
            probabilities[item, place] += probability
    return probabilities


def test_place_probabilities_are_those_of_all_slates() -> None:
    weights = np.array([[3.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.4], [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]])
    prepared = PlaceProbabilities.prepare(weights, 3)
    item, place = np.divmod(np.arange(21), 3)
    for vector in (0, 1):
        probabilities = prepared.of_rows(np.full(21, vector), item, place).reshape(7, 3)
        np.testing.assert_allclose(probabilities, enumerate_places(weights[vector], 3), atol=1e-6)


def test_place_probabilities_of_many_items_sum_up() -> None:
    random = np.random.default_rng(2)
    weights = (random.permutation(1_000) + 6.0) ** -1.1 * random.lognormal(0, 0.5, (3, 1_000))
    prepared = PlaceProbabilities.prepare(weights, SLOTS)
    item, place = np.divmod(np.arange(10_000), SLOTS)
    for vector in range(3):
        by_place = prepared.of_rows(np.full(item.size, vector), item, place).reshape(-1, SLOTS)
        np.testing.assert_allclose(by_place.sum(axis=0), 1.0, atol=1e-8)
        np.testing.assert_allclose(by_place[:, 0], weights[vector] / weights[vector].sum(), rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position_bias": {}}, "recommender: position_bias chooses the shown items too; leave one out"),
        ({"chapters": {}}, "recommender: chapters chooses the shown items too"),
        ({"items": 49}, "recommender: needs at least 50 items to fill slates; got 49"),
        ({"recommender": {"randomized": 1.5}}, "less than or equal to 1"),
    ],
)
def test_a_recommender_that_cannot_be_drawn_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GeneratedSource.model_validate({"kind": "generated", "recommender": {}, **options})


def test_without_a_recommender_the_log_has_no_propensities(tmp_path: Path) -> None:
    generate_log(GeneratedSource(kind="generated", rows=1_000, users=50, items=60, days=3), tmp_path / "log")
    columns = pl.read_parquet_schema(next((tmp_path / "log" / "impressions").iterdir()))
    assert not {"request_id", "propensity", "policy", "randomized"} & set(columns)
