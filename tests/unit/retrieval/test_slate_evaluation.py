"""Slates of a candidate: their measures, the gate on them, and the check of their rules."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from retrieval_log import Log, declared

from shortlist.contracts import ShortlistError
from shortlist.evaluation.gates.retrieval import PER_USER
from shortlist.evaluation.gates.slates import (
    SLATES_FILE,
    ExplorationCost,
    SlateLimits,
    SlateMeasures,
    measure_slates,
    slates_gate,
)
from shortlist.serving.validation.exploration_cost import exploration_cost
from shortlist.slates.candidate_columns import check_slates
from shortlist.slates.ordering.order import PlacePropensities
from shortlist.slates.recommender import Recommender, RemovedCandidates, Slate, SlateRequest
from shortlist.slates.retrieval.retriever import Retriever, fit_retrieval
from shortlist.slates.slate_check import check_slate
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import write_json

NOW = datetime(2026, 3, 3, tzinfo=UTC)
SECTION = Retrieval.model_validate(
    {"candidates": 5, "sources": {"popular": {"kind": "popular"}, "near": {"kind": "item_vector", "column": "content"}}}
)


@pytest.fixture
def retriever(log: Log, tmp_path: Path) -> Retriever:
    # By clicks: 10, 20, 30, 40, 50.
    rows = [(user, item, 0, "home", 1) for item, users in zip((10, 20, 30, 40, 50), (5, 4, 3, 2, 1), strict=True)
            for user in range(users)]  # fmt: skip
    items = {
        "item_id": [10, 20, 30, 40, 50],
        "topic": ["x", "x", "x", "y", "y"],
        "tags": [["a"]] * 5,
        "price": [1.0, 2.0, 3.0, 4.0, None],
        "content": [[1.0, 0.0], [1.0, 0.1], [0.1, 1.0], [0.0, 1.0], [0.01, 1.0]],
    }
    fit_retrieval(SECTION, declared(), log.write(rows, items=items), frozenset([NOW.date().replace(day=1)]),
                  tmp_path / "release", 1)  # fmt: skip
    return Retriever.open(tmp_path / "release")


def stages(retriever: Retriever, filters: dict[str, Any] | None = None, **ordering: Any) -> Recommender:
    sections = Filters.model_validate(filters or {}), Ordering.model_validate(ordering)
    return Recommender(retriever, *sections, lists={"deny": pl.Series([10])})


def make_request(k: int = 3) -> SlateRequest:
    return SlateRequest("r", 0, k, NOW)


def slate(items: list[int], propensities: list[float] | None = None) -> Slate:
    unit_values = np.ones(len(items))
    slate_propensities = np.array(propensities) if propensities else unit_values
    return Slate(
        items=pl.Series(items), rows=np.arange(len(items)), scores=unit_values, values=unit_values,
        propensities=slate_propensities, sources=("popular",) * len(items), explored=False, without_value=0,
        removed=RemovedCandidates(pl.Series([], dtype=pl.Int64), ()),
        place_propensities=lambda: PlacePropensities(slate_propensities, np.zeros(len(items))), given_up=lambda: 0.0,
    )  # fmt: skip


RULES = {"rules": [{"kind": "cap", "column": "topic", "most": 1, "places": 3}, {"kind": "pin", "item": 30, "place": 2}]}


@pytest.mark.parametrize(
    ("shown_items", "message"),
    [
        ([20, 20, 40], "an item is shown twice"),
        ([20, 30, 99], "an item is shown that is no candidate"),
        ([10, 30, 40], "1 items are shown that filter 'deny' removes"),
        ([40, 30, 50, 20], "4 items are shown; 3 were asked for"),
        ([20, 40, 30], "the item that is pinned to place 2 is not there"),
        ([40, 30, 50], "a cap of 1 by topic is exceeded: 2 of y"),
    ],
)
def test_check_reports_a_slate_that_breaks_a_rule(retriever: Retriever, shown_items: list[int], message: str) -> None:
    keeping = stages(retriever, {"rules": [{"kind": "deny", "path": "denied.txt"}]}, **RULES)
    catalogue_ids = keeping.retriever.catalogue.ids
    candidates = stages(retriever, **RULES).find(make_request(5))  # without the filter: 10 is among the candidates
    assert sorted(candidates.rows["item"]) == catalogue_ids.to_list()
    slate_check = check_slate(keeping, make_request(), candidates, slate(shown_items), {"score": np.ones(5)})
    assert message in slate_check.problems


@pytest.mark.parametrize(
    ("chance", "message"),
    [
        *((chance, "a propensity is not between 0 and 1") for chance in (0.0, 1.5, float("nan"))),
        (0.9, "the propensity of place 1 is not the probability with which it was filled"),
        (0.6, None),  # 0.5 for the best candidate, and a fifth of the other half
    ],
)
def test_check_compares_propensities_with_recomputed_probabilities(
    retriever: Retriever, chance: float, message: str | None
) -> None:
    drawing = stages(retriever, explore={"kind": "epsilon", "epsilon": 0.5})
    candidates = drawing.find(make_request(1))
    scores = {"score": (candidates.rows["item"] == 20).cast(float).to_numpy()}
    checked = check_slate(drawing, make_request(1), candidates, slate([20], [chance]), scores)
    assert checked.problems == ((message,) if message else ())


def test_slates_of_the_stages_pass_the_check(retriever: Retriever) -> None:
    keeping = stages(
        retriever,
        {"rules": [{"kind": "deny", "path": "denied.txt"}]},
        **RULES,
        diversity={"kind": "mmr", "by": "content"},
        explore={"kind": "epsilon", "epsilon": 0.5},
    )
    random = np.random.default_rng(1)
    for number in range(200):
        request = SlateRequest(f"r{number}", int(random.integers(6)), int(random.integers(1, 6)), NOW)
        candidates = keeping.find(request)
        scores = random.random(candidates.rows.height)
        slate_of_stages = keeping.slate(request, candidates, scores)
        assert check_slate(keeping, request, candidates, slate_of_stages, {"score": scores}).problems == ()


def test_a_formula_reads_the_ranks_of_sources(retriever: Retriever) -> None:
    keeping = stages(retriever, value="1 / (1 + COALESCE(rank_of_popular, 100))")
    candidates = keeping.find(make_request())
    assert keeping.slate(make_request(), candidates, np.zeros(5)).items.to_list() == [10, 20, 30]
    assert dict(zip(candidates.rows["item"], candidates.rows["rank_of_popular"], strict=True))[30] == 3
    # A source that did not give a candidate has no rank for it: user 77 took nothing, and nothing is near.
    candidates_of_new_user = stages(retriever, value="COALESCE(rank_of_near, 100)").find(SlateRequest("r", 77, 1, NOW))
    assert candidates_of_new_user.rows["rank_of_near"].to_list() == [None] * 5


def test_fallback_items_have_their_rank_in_the_fallback(retriever: Retriever) -> None:
    sources = {"popular": {"kind": "popular"}}
    short = Retrieval.model_validate({**SECTION.model_dump(), "candidates": 1, "sources": sources})
    short_retriever = Retriever(
        short, retriever.catalogue, {"popular": retriever.sources["popular"]}, retriever.recent, {}
    )
    filters = {"rules": [{"kind": "deny", "path": "denied.txt"}], "fallback": ["popular"]}
    candidates = stages(short_retriever, filters, value="rank_of_popular").find(make_request(2))
    assert candidates.rows.select("item", "rank_of_popular").rows()[:2] == [(20, 2), (30, 3)]


def test_the_rank_of_an_unknown_source_is_refused() -> None:
    ordering = Ordering.model_validate({"value": "1 / rank_of_populr"})
    with pytest.raises(ShortlistError, match=r"reads 'rank_of_populr'.*did you mean 'rank_of_popular'"):
        check_slates(declared(), SECTION, Filters(), ordering)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("3 * is_click", None),
        ("price", r"ordering.reward: .*reads 'price'.*a reward reads labels: is_click"),
        ("is_click - 1", "ordering.reward: got -1 for is_click 0; wanted a number of at least 0"),
        ("1 / is_click", "ordering.reward: got no number for is_click 0; wanted a number of at least 0"),
        ("is_click >", "ordering.reward: "),
    ],
)
def test_a_reward_is_a_formula_over_labels(reward: str, message: str | None) -> None:
    ordering = Ordering(reward=reward)
    if message is None:
        check_slates(declared(), SECTION, Filters(), ordering)
    else:
        with pytest.raises(ShortlistError, match=message):
            check_slates(declared(), SECTION, Filters(), ordering)


def test_exploration_that_costs_more_than_declared_holds(retriever: Retriever, tmp_path: Path) -> None:
    given_up: list[float] = []

    def cost(**explore: Any) -> ExplorationCost | None:
        exploring = stages(retriever, **({"explore": explore} if explore else {}))
        requests = [SlateRequest(f"r{number}", 0, 2, NOW) for number in range(300)]
        candidates = [exploring.find(request) for request in requests]
        scores = [{"score": np.where(found.items == 20, 0.8, 0.1)} for found in candidates]
        slates = [
            exploring.slate(request, found, columns["score"])
            for request, found, columns in zip(requests, candidates, scores, strict=True)
        ]
        given_up.append(float(np.mean([slate.given_up() for slate in slates])))
        return exploration_cost(exploring, requests, candidates, scores)

    assert cost() is None
    always, seldom = (cost(kind="epsilon", epsilon=1.0, share=share, max_cost=0.2) for share in (1.0, 0.1))
    assert always is not None and seldom is not None
    # Of five candidates two are shown: the best order earns 0.9, two random ones 2/5 * 0.9 + 3/5 * 0.2.
    assert always.per_slate == pytest.approx(0.9 - (0.4 * 0.9 + 0.6 * 0.2), abs=0.04)
    assert seldom.per_slate == pytest.approx(0.1 * always.per_slate) and seldom.share == pytest.approx(
        0.1 * always.share
    )
    # Servers log of each slate what its own draw gave up.
    assert given_up[:2] == [0, pytest.approx(always.per_slate)]
    assert given_up[2] == pytest.approx(seldom.per_slate, abs=0.03)
    evaluated = measured(tmp_path, 0.6)
    for exploration, holds in ((always, True), (seldom, False)):
        changed = evaluated.evaluation.model_copy(update={"exploration": exploration})
        gate = slates_gate(evaluated.model_copy(update={"evaluation": changed}), SlateLimits())
        assert gate.passed != holds and "exploration costs" in gate.reason
        assert ("> 20.00% (ordering.explore.max_cost)" in gate.reason) == holds


def write_evaluation(folder: Path, final: np.ndarray, *, broken: int = 0, short: int = 0) -> Path:
    """Write slates of as many users as there are numbers; one source reaches 0.5 for everybody."""
    users = len(final)
    folder.mkdir(parents=True)
    lists = {
        "popular": np.full(users, 0.5),
        "all": np.full(users, 0.4),
        "filtering": np.full(users, 0.4),
        "scoring": final,
        "ordering": final,
    }
    frames = [
        pl.DataFrame({"user": np.arange(users), "list": [name] * users, "items": 10.0, "recall": values,
                      "hit_rate_at_10": values, "ndcg_at_10": values, "reciprocal_rank": values, "novelty": 3.0,
                      "diversity": 0.5})
        for name, values in lists.items()
    ]  # fmt: skip
    pl.concat(frames).write_parquet(folder / PER_USER)
    facts = {"users": users, "places": 10, "short": short, "fallbacks": 0, "removed": {}, "broken": broken,
             "examples": ["an item is shown twice"] if broken else [],
             "simulated": {"requests": 200, "empty": 3, "broken": 0},
             "lists": [{"name": name, "coverage": 0.1} for name in lists]}  # fmt: skip
    write_json(folder / SLATES_FILE, facts)
    return folder


def measured(tmp_path: Path, mean: float, users: int = 200, **facts: int) -> SlateMeasures:
    noise = np.random.default_rng(1).normal(0, 0.1, users)
    slate_measures = measure_slates(write_evaluation(tmp_path / "slates", mean + noise, **facts), 0.95, 100, 1)
    assert slate_measures is not None
    return slate_measures


def test_stages_are_measured_by_user(tmp_path: Path) -> None:
    slate_measures = measured(tmp_path, 0.6)
    assert [stage.stage for stage in slate_measures.stages] == ["filtering", "scoring", "ordering"]
    assert slate_measures.final.ndcg_at_10 is not None and slate_measures.final.diversity == 0.5
    assert measure_slates(tmp_path / "elsewhere", 0.95, 100, 1) is None


def test_users_who_took_nothing_count_in_no_metric_of_agreement(tmp_path: Path) -> None:
    numbers = np.where(np.arange(200) < 100, 0.6, np.nan)
    slate_measures = measure_slates(write_evaluation(tmp_path / "slates", numbers), 0.95, 100, 1)
    assert slate_measures is not None and slate_measures.final.ndcg_at_10 is not None
    assert slate_measures.final.ndcg_at_10.value == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("mean", "facts", "limits", "holds"),
    [
        (0.6, {}, {}, ""),
        (0.2, {}, {}, ""),  # agreement with what was shown holds nothing
        (0.6, {"broken": 2}, {}, "2 of 200 slates break a rule, such as: an item is shown twice"),
        (0.6, {"short": 3}, {}, "3 of 200 slates hold fewer than 10 items"),
        (0.6, {"short": 3}, {"max_short": 0.02}, ""),
    ],
)
def test_the_gate_of_slates_holds(
    tmp_path: Path, mean: float, facts: dict[str, int], limits: dict[str, float], holds: str
) -> None:
    gate_result = slates_gate(measured(tmp_path, mean, **facts), SlateLimits.model_validate(limits))
    assert gate_result.passed == (not holds)
    assert holds in gate_result.reason


@pytest.mark.parametrize(
    ("simulated", "holds"),
    [
        (None, "no requests were simulated"),
        ({"requests": 200, "empty": 200, "broken": 0}, "filters leave no item for any of 200 simulated requests"),
        (
            {"requests": 200, "empty": 0, "broken": 1, "examples": ["an item is shown twice"]},
            "1 of 200 simulated requests break a rule, such as: an item is shown twice",
        ),
    ],
)
def test_simulated_requests_that_break_a_rule_hold(tmp_path: Path, simulated: Any, holds: str) -> None:
    slate_measures = measured(tmp_path, 0.6)
    assert slates_gate(slate_measures, SlateLimits()).passed
    evaluation = slate_measures.evaluation.model_validate(
        {**slate_measures.evaluation.model_dump(), "simulated": simulated}
    )
    assert holds in slates_gate(slate_measures.model_copy(update={"evaluation": evaluation}), SlateLimits()).reason


def test_slates_that_were_not_evaluated_hold() -> None:
    assert not slates_gate(None, SlateLimits()).passed
