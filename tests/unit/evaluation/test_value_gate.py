"""The gate on the value of slates, the files that it reads, and the choice between candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shortlist.evaluation.choice import find_lower_earners
from shortlist.evaluation.gates.slates import SlateMeasures
from shortlist.evaluation.gates.value import ValueLimits, value_gate
from shortlist.evaluation.metrics.records import Champion
from shortlist.evaluation.value.estimate import LogExtent
from shortlist.evaluation.value.evaluation import (
    POPULAR,
    SLATES,
    ValueMeasures,
    measure_value,
    write_unknown_value,
    write_value,
)
from shortlist.evaluation.value.evidence import Floats
from shortlist.evaluation.value.lists import ItemLists, RandomLists, ShownRows, ValuedList, collect_evidence

ITEMS, PLACES, USERS = 20, 2, 300
FIRST = Champion(version="")
RATES = np.linspace(0.05, 0.9, ITEMS)
"""Planted probability of a click on each item; examination of the second place is a half."""


def draw_rows(seed: int = 1, requests: int = 6_000) -> ShownRows:
    """Return rows of slates of two random items; every request of a user sees both places."""
    random = np.random.default_rng(seed)
    items = np.stack([random.permutation(ITEMS)[:PLACES] for _ in range(requests)])
    probability = RATES[items] * np.array([1.0, 0.5])
    return ShownRows(
        request_R=np.repeat(np.arange(requests), PLACES),
        user_Q=np.sort(np.concatenate([np.arange(USERS), random.integers(0, USERS, requests - USERS)])),
        item_R=items.reshape(-1).astype(np.int64),
        place_R=np.tile(np.arange(PLACES), requests),
        propensity_R=np.full(items.size, 1 / ITEMS),
        reward_R=(random.random(items.shape) < probability).astype(float).reshape(-1),
    )


def list_of(*items: int) -> ItemLists:
    """Return the same list for every user; the only feature is the logarithm of the planted odds."""
    lists = np.tile(np.array(items), (USERS, 1))
    return ItemLists(lists, features_of(lists))


def features_of(items: np.ndarray) -> Floats:
    return np.log(RATES / (1 - RATES))[items][..., None]


def planted_value(*items: int) -> float:
    return float(RATES[items[0]] + 0.5 * RATES[items[1]])


LISTS: dict[str, ValuedList] = {
    SLATES: list_of(15, 16),
    POPULAR: list_of(8, 9),
    "best": list_of(19, 18),
    "chance": RandomLists(ITEMS, PLACES, features_of(np.tile(np.arange(ITEMS), (USERS, 1)))),
}


def write(folder: Path, slates: ItemLists | None = None, rows: ShownRows | None = None) -> Path:
    rows = draw_rows() if rows is None else rows
    lists = LISTS if slates is None else {**LISTS, SLATES: slates}
    folder.mkdir(parents=True)
    evidence = collect_evidence(rows, features_of(rows.item_R), lists)
    write_value(folder, "click", evidence, LogExtent(days=1, explored=rows.explored), {"best_possible": 1.3})
    return folder


def read(folder: Path, champion: Path | None = None) -> ValueMeasures:
    value = measure_value(folder, 0.95, champion)
    assert value is not None
    return value


def measures(value: ValueMeasures | None) -> SlateMeasures:
    return SlateMeasures.model_construct(evaluation=None, stages=(), value=value)


def judge(value: ValueMeasures | None, champion: Champion = FIRST, **limits: Any) -> Any:
    return value_gate(measures(value), ValueLimits.model_validate(limits), champion, 0.95)


def test_values_of_lists_are_near_the_planted_values_and_inside_their_intervals(tmp_path: Path) -> None:
    value = read(write(tmp_path / "value"))
    chance = float(RATES.mean() * 1.5)
    planted = {
        SLATES: planted_value(15, 16),
        POPULAR: planted_value(8, 9),
        "best": planted_value(19, 18),
        "chance": chance,
    }
    for name, truth in planted.items():
        estimate = value.find(name)
        assert estimate is not None and estimate.is_known and estimate.estimate == pytest.approx(truth, rel=0.08)
        assert estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high
    only_truth = value.find("best_possible")
    assert only_truth is not None and only_truth.truth == 1.3 and only_truth.estimate is None
    assert (value.requests, value.users) == (6_000, USERS)
    assert value.leads[POPULAR].value == pytest.approx(planted[SLATES] - planted[POPULAR], abs=0.1)


def test_slates_that_earn_less_than_popular_items_hold(tmp_path: Path) -> None:
    passing = judge(read(write(tmp_path / "good")))
    assert passing.passed and "slates earn 1." in passing.reason and "against the most popular items" in passing.reason
    failing = judge(read(write(tmp_path / "bad", list_of(1, 2))))
    assert not failing.passed
    assert "slates are shown to earn less than the most popular items: -0." in failing.reason


def test_slates_that_earn_less_than_the_champions_hold(tmp_path: Path) -> None:
    champion = Champion(version="3")
    good, best = write(tmp_path / "good"), write(tmp_path / "best", list_of(19, 18))
    assert judge(read(best, good), champion).passed
    behind = judge(read(good, best), champion)
    assert not behind.passed and "shown to earn less than the champion's slates" in behind.reason
    equal = read(good, write(tmp_path / "same"))
    assert equal.champion is not None and equal.champion.value == 0.0
    assert judge(equal, champion).passed
    declared = judge(equal, champion, min_lead=0.1)
    assert not declared.passed and "(min_lead; lower bound)" in declared.reason
    assert judge(equal, champion, min_lead=-0.5).passed


def test_a_champion_that_could_not_be_scored_holds(tmp_path: Path) -> None:
    broken = judge(read(write(tmp_path / "value")), Champion(version="3", problem="a file is missing"))
    assert "the champion's slates, version 3, were not made: a file is missing" in broken.reason
    assert not broken.passed


def test_an_unknown_value_passes_with_a_notice_unless_it_is_declared_to_hold(tmp_path: Path) -> None:
    (tmp_path / "value").mkdir()
    write_unknown_value(tmp_path / "value", "the log has no propensities; declare data.propensity")
    value = read(tmp_path / "value")
    notice = judge(value)
    assert notice.passed and "unknown, which holds nothing: the log has no propensities" in notice.reason
    held = judge(value, hold_unknown=True)
    assert not held.passed and "the value of the slates is unknown" in held.reason


def test_a_log_that_always_shows_the_same_says_nothing_of_other_slates(tmp_path: Path) -> None:
    rows = draw_rows()
    certain = ShownRows(
        rows.request_R, rows.user_Q, rows.place_R, rows.place_R, np.ones_like(rows.propensity_R), rows.reward_R
    )
    value = read(write(tmp_path / "value", rows=certain))
    slates = value.find(SLATES)
    assert slates is not None and slates.low is None and "declare ordering.explore" in slates.problem
    assert judge(value).passed and not judge(value, hold_unknown=True).passed


def test_a_value_that_was_not_estimated_holds(tmp_path: Path) -> None:
    assert measure_value(tmp_path, 0.95) is None
    assert not judge(None).passed
    assert not value_gate(None, ValueLimits(), FIRST, 0.95).passed


def test_evaluations_of_other_requests_are_not_compared(tmp_path: Path) -> None:
    other = write(tmp_path / "other", rows=draw_rows(2, 5_000))
    value = read(write(tmp_path / "value"), other)
    assert value.champion is not None and "not of the same requests" in value.champion.problem


def test_a_candidate_whose_slates_earn_less_is_not_blessed(tmp_path: Path) -> None:
    folders = {
        "good": write(tmp_path / "good"), "best": write(tmp_path / "best", list_of(19, 18)),
        "near": write(tmp_path / "near", list_of(18, 19)),
    }  # fmt: skip
    behind = find_lower_earners(folders)
    assert set(behind) == {"good"}  # whether the order of the two best matters is not shown
    assert behind["good"].startswith("its slates are shown to earn less than those of '")
    assert find_lower_earners({"unread": tmp_path / "nowhere", "good": folders["good"]}) == {}
