"""Users who answer: what they click is as planted, they see slates down to a depth, and come back when served well."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from shortlist.contracts import Columns, DataError
from shortlist.data.world.answering_world import NO_ITEM, AnsweringWorld, Requests, examination
from shortlist.data.world.generate import FIRST_ITEM, FIRST_USER
from shortlist.data.world.random_streams import Ints
from shortlist.spec.data import Drift, GeneratedSource

SOURCE = GeneratedSource(kind="generated", rows=10_000, users=800, items=200, days=14)


def play_days(world: AnsweringWorld, days: range, slates_of: str) -> tuple[pl.DataFrame, list[float], int]:
    """Play days; return the events, the expected reward of each slate, and the number of slates."""
    random, events, rewards = np.random.default_rng(0), [], []
    for day in days:
        for quarter in range(4):
            while (requests := world.ask(day + (quarter + 1) / 4)).user.size:
                slates = {"best": best_slates, "chance": random_slates}[slates_of](world, requests, day, random)
                rewards += world.expected_rewards(requests, slates).tolist()
                events.append(world.answer(requests, slates))
    return pl.concat(events), rewards, len(rewards)


def best_slates(world: AnsweringWorld, requests: Requests, day: int, random: np.random.Generator) -> Ints:
    return world.best_slates(requests)


def random_slates(world: AnsweringWorld, requests: Requests, day: int, random: np.random.Generator) -> Ints:
    return np.stack([random.choice(world.published(day), 10, replace=False) for _ in requests.user])


def test_users_click_as_planted_and_only_seen_items() -> None:
    world = AnsweringWorld(SOURCE, 1_000, first_day=10)
    events, rewards, slates = play_days(world, range(10, 13), "chance")
    seen = events.filter("seen")
    assert slates == pytest.approx(3_000, rel=0.1)
    assert events.filter(~pl.col("seen"))["is_click"].null_count() == events.height - seen.height
    probability = seen[Columns.BEST].to_numpy()
    deviation = float(np.sqrt((probability * (1 - probability)).sum()))
    assert abs(seen["is_click"].sum() - probability.sum()) < 4 * deviation
    assert seen["is_click"].sum() / slates == pytest.approx(np.mean(rewards), rel=0.05)
    shares = events.group_by("position").agg(pl.col("seen").mean()).sort("position")["seen"].to_numpy()
    np.testing.assert_allclose(shares, examination(10), atol=0.04)
    asked = events.select("user_id", "item_id", "surface", "device", "position", Columns.TIME)
    np.testing.assert_array_equal(world.click_probability(asked), events[Columns.BEST].to_numpy())


def test_the_best_slates_have_the_highest_reward_and_bring_users_back_sooner() -> None:
    _, best_rewards, best_count = play_days(AnsweringWorld(SOURCE, 1_000, first_day=10), range(10, 13), "best")
    _, chance_rewards, chance_count = play_days(AnsweringWorld(SOURCE, 1_000, first_day=10), range(10, 13), "chance")
    assert np.mean(best_rewards) > 1.3 * np.mean(chance_rewards)
    assert best_count > 1.08 * chance_count


def test_no_slate_has_a_higher_reward_than_the_best_slate() -> None:
    world, random = AnsweringWorld(SOURCE, 500, first_day=10), np.random.default_rng(3)
    requests = world.ask(10.3)
    best = world.expected_rewards(requests, world.best_slates(requests))
    for _ in range(20):
        assert (world.expected_rewards(requests, random_slates(world, requests, 10, random)) <= best).all()


def test_a_user_asks_again_only_after_an_answer() -> None:
    world = AnsweringWorld(SOURCE, 1_000, first_day=10)
    first = world.ask(11.0)
    assert world.ask(11.0).user.size == 0
    world.answer(first, np.full((first.user.size, 10), NO_ITEM))
    assert world.ask(11.0).user.size > 0
    assert first.frame(SOURCE)[Columns.TIME].is_sorted()


def test_fewer_users_ask_while_the_volume_collapses() -> None:
    source = SOURCE.model_copy(
        update={"drifts": (Drift(kind="volume_collapse", from_day=11, until_day=12, strength=0.8),)}
    )
    events, _, _ = play_days(AnsweringWorld(source, 1_000, first_day=10), range(10, 13), "chance")
    first_times = events.group_by("request_id").agg(pl.col(Columns.TIME).min())[Columns.TIME]
    counts = first_times.dt.date().value_counts().sort(Columns.TIME)["count"].to_list()
    assert counts[1] < 0.35 * counts[0] and counts[2] > 0.7 * counts[0]


def test_a_slate_longer_than_a_page_is_refused() -> None:
    world = AnsweringWorld(SOURCE, 1_000)
    requests = world.ask(0.5)
    with pytest.raises(DataError, match="slates of 12 places; pages of the generated world have 10"):
        world.answer(requests, np.full((requests.user.size, 12), NO_ITEM))


PLANTED_DIGEST = "eb23cec92f7027b1fc1348b9773d003b22feaf6783e7389fe9925968e0df9811"
"""Digest of the planted probabilities of clicks in the shipped demo, in millionths."""


def test_the_planted_function_of_the_demo_keeps_its_digest() -> None:
    spec = yaml.safe_load((Path(__file__).parents[3] / "pipelines/specs/demo.yaml").read_text())
    source = GeneratedSource.model_validate(spec["data"]["source"])
    random, count = np.random.default_rng(0), 20_000
    columns = {
        "user_id": FIRST_USER + random.integers(0, source.users, count),
        "item_id": FIRST_ITEM + random.integers(0, source.items, count),
        "surface": random.choice(["home", "related", "search", "notification"], count),
        "device": random.choice(["android", "iphone", "web", "tv"], count),
        "position": random.integers(1, 11, count),
        Columns.TIME: 1_767_571_200_000_000 + 1_000_000 * random.integers(0, 14 * 86_400, count),  # from 2026-01-05
    }
    rows = pl.DataFrame(columns).cast({Columns.TIME: pl.Datetime("us", "UTC")})
    probability = AnsweringWorld(source, 1_000).click_probability(rows)
    digest = sha256(np.round(probability * 1e6).astype(np.int64).tobytes()).hexdigest()
    assert (source.rows, source.users, source.items, source.days) == (200_000, 5_000, 2_000, 14)
    assert digest == PLANTED_DIGEST


@pytest.mark.parametrize(("users", "items", "seed", "taste"), [(300, 90, 11, 2.5), (2_500, 700, 3, 0.6)])
def test_worlds_of_other_sizes_and_noise_answer_as_planted(users: int, items: int, seed: int, taste: float) -> None:
    source = GeneratedSource(kind="generated", rows=5_000, users=users, items=items, days=14, seed=seed, taste=taste)
    world, random = AnsweringWorld(source, 600, first_day=10), np.random.default_rng(seed)
    requests = world.ask(11.0)
    best = world.expected_rewards(requests, world.best_slates(requests))
    slates = random_slates(world, requests, 10, random)
    assert (world.expected_rewards(requests, slates) <= best).all()
    seen = world.answer(requests, slates).filter("seen")
    probability = seen[Columns.BEST].to_numpy()
    deviation = float(np.sqrt((probability * (1 - probability)).sum()))
    assert abs(seen["is_click"].sum() - probability.sum()) < 4 * deviation
