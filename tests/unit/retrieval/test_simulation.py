"""Simulated requests detect broken rules of every stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
import pytest
from retrieval_log import Log, declared

from shortlist.evaluation.gates.slates import SimulatedRequests
from shortlist.slates import recommender as recommender_module
from shortlist.slates.filters.apply import FilteredCandidates, apply_filters
from shortlist.slates.filters.base import FilterRequest
from shortlist.slates.filters.rules import ConditionFilter, DenyFilter, SeenFilter
from shortlist.slates.ordering import order as ordering_loop
from shortlist.slates.ordering.order import OrderedSlate
from shortlist.slates.ordering.rules import Pin, _CapCounter
from shortlist.slates.recommender import Recommender, SlateCandidates, SlateRequest
from shortlist.slates.retrieval.retriever import Retriever, fit_retrieval
from shortlist.slates.simulation import simulate_requests
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval

NOW = datetime(2026, 3, 4, tzinfo=UTC)
ITEMS = range(10, 34)
SECTION = Retrieval.model_validate(
    {"candidates": 20, "sources": {"popular": {"kind": "popular"}, "together": {"kind": "co_visitation"}}}
)
FILTERS = {
    "rules": [
        {"kind": "deny", "path": "denied.txt"},
        {"kind": "seen", "window": "2d"},
        {"kind": "where", "keep": "price < 20"},
    ],
    "fallback": ["popular"],
}
ORDERING = {
    "rules": [{"kind": "cap", "column": "topic", "most": 2, "places": 6}, {"kind": "pin", "item": 12, "place": 3}],
    "diversity": {"kind": "mmr", "by": "tags"},
    "explore": {"kind": "gumbel", "temperature": 0.05, "share": 0.9},
}
LIKE = [SlateRequest("r", 1, 5, NOW + timedelta(hours=hour), {"surface": name}) for hour, name in enumerate("ab")]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("simulation"), np.random.default_rng(2)
    rows = [(user, int(item), 0, "home", 1) for user in range(30) for item in random.choice(ITEMS, 6)]
    items = {
        "item_id": list(ITEMS),
        "topic": [str(item % 4) for item in ITEMS],
        "tags": [[str(item % 3), str(item % 5)] for item in ITEMS],
        "price": [float(item) if item % 2 else 1.0 for item in ITEMS],
        "content": [None] * len(ITEMS),
    }
    table = Log(folder / "valid_log").write(rows, items=items)
    fit_retrieval(SECTION, declared(), table, frozenset([table.days[0].day]), folder / "release", 1)
    return folder / "release"


def opened(release: Path) -> Recommender:
    sections = Filters.model_validate(FILTERS), Ordering.model_validate(ORDERING)
    return Recommender(Retriever.open(release), *sections, lists={"deny": pl.Series([13, 14])})


@pytest.fixture(scope="module")
def stages(release: Path) -> Recommender:
    return opened(release)


def simulated(stages: Recommender, count: int = 120) -> SimulatedRequests:
    return simulate_requests(stages, LIKE, count, 1)


def test_no_simulated_request_breaks_a_rule(stages: Recommender) -> None:
    simulated_requests = simulated(stages)
    assert (simulated_requests.requests, simulated_requests.broken, simulated_requests.examples) == (120, 0, ())
    assert simulated_requests.empty < 12


def test_every_rule_applies_in_the_simulation(stages: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[SlateRequest, SlateCandidates]] = []
    find = Recommender.find

    def noted(stages: Recommender, request: SlateRequest) -> SlateCandidates:
        requests.append((request, find(stages, request)))
        return requests[-1][1]

    monkeypatch.setattr(Recommender, "find", noted)
    simulated(stages)
    fitted_users = set(stages.retriever.recent.users)
    users = [request.user for request, _ in requests]
    assert sum(user is None for user in users) > 15
    assert sum(user in fitted_users for user in users) > 30
    assert sum(user is not None and user not in fitted_users for user in users) > 15
    assert {1, 20} <= {request.k for request, _ in requests} <= set(range(1, 21))
    assert {request.context["surface"] for request, _ in requests} == {"a", "b", None}
    removed = [name for _, candidates in requests for name in candidates.removed.filters]
    assert {"deny", "seen", "where"} <= set(removed)
    assert any(candidates.fallback for _, candidates in requests)


def changed_slates(change: Callable[[OrderedSlate], OrderedSlate]) -> Callable[..., OrderedSlate]:
    return lambda *arguments: change(ordering_loop.order(*arguments))


def twice(slate: OrderedSlate) -> OrderedSlate:
    return replace(slate, rows=np.append(slate.rows[:-1], slate.rows[:1]))


def certain(slate: OrderedSlate) -> OrderedSlate:
    return replace(slate, propensities=np.ones(len(slate.rows)))


def is_allowed_with_higher_cap(counter: Any, place: int) -> np.ndarray:
    return (counter._placed <= counter._rule.most)[counter._codes] | (place > counter._rule.places)


def keeps_all(rule: Any, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
    return np.ones(len(candidates), np.bool_)


def keeps_after_half_the_window(rule: Any, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
    return SEEN_KEEPS(rule.model_copy(update={"window": "1d"}), candidates, request)


def all_but_the_first(
    candidates: pl.DataFrame, rules: Any, requests: Any, counts: Any, decided: Any = MappingProxyType({})
) -> FilteredCandidates:
    return apply_filters(candidates, rules[1:], requests, counts, decided)


def pinned_one_lower(rule: Any, candidates: pl.DataFrame) -> dict[int, int]:
    return {place + 1: row for place, row in PIN_PINNED(rule, candidates).items()}


def draw_uniformly(probabilities: np.ndarray, draws: np.random.Generator) -> int:
    return int(draws.integers(len(probabilities)))


SEEN_KEEPS, PIN_PINNED = SeenFilter.keeps, Pin.pinned
BUGS: dict[str, tuple[Any, str, Any, str]] = {
    "a cap that is off by one": (
        _CapCounter,
        "allowed",
        is_allowed_with_higher_cap,
        "a cap of 2 by topic is exceeded: 3 of",
    ),
    "a list that is not read": (DenyFilter, "keeps", keeps_all, "filter 'deny' removes"),
    "a condition that is not asked": (ConditionFilter, "keeps", keeps_all, "filter 'where' removes"),
    "a window of half the length": (SeenFilter, "keeps", keeps_after_half_the_window, "filter 'seen' removes"),
    "a filter that is left out": (recommender_module, "apply_filters", all_but_the_first, "filter 'deny' removes"),
    "a pin one place too low": (Pin, "pinned", pinned_one_lower, "pinned to place 3 is not there"),
    "an item that is shown twice": (recommender_module, "order", changed_slates(twice), "shown twice"),
    "propensities of 1": (recommender_module, "order", changed_slates(certain), "is not the probability"),
    "draws that ignore the probabilities": (ordering_loop, "_draw", draw_uniformly, "by the propensities"),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_simulation_detects_a_planted_bug(release: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    owner, name, replacement, message = BUGS[bug]
    monkeypatch.setattr(owner, name, replacement)
    simulated_requests = simulated(opened(release))
    assert any(message in example for example in simulated_requests.examples), simulated_requests
