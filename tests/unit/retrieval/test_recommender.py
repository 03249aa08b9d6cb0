from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from retrieval_log import Log, Row, days, declared

from models.xgboost.section import XGBoostModel
from shortlist.contracts import ShortlistError
from shortlist.slates.candidate_columns import candidate_types, check_scores, check_slates
from shortlist.slates.filters.base import FilterRequest, UserHistory
from shortlist.slates.filters.rules import FILTERS, ConditionFilter, DenyFilter
from shortlist.slates.recommender import Recommender, SlateCandidates, SlateRequest, SlateRequestError
from shortlist.slates.retrieval.retriever import Retriever, fit_retrieval
from shortlist.spec.data import Data
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval

NOW = datetime(2026, 3, 3, tzinfo=UTC)
SECTION = {
    "candidates": 3,
    "sources": {"popular": {"kind": "popular"}, "near": {"kind": "item_vector", "column": "content"}},
}


def click(user: int, item: int) -> Row:
    return (user, item, 0, "home", 1)


@pytest.fixture
def retriever(log: Log, tmp_path: Path) -> Retriever:
    # By clicks: 10, 20, 30, 40. Near to 40, which user 9 took: 50, then 30.
    rows = [click(user, item) for item, users in ((10, 4), (20, 3), (30, 2)) for user in range(1, users + 1)]
    items = {
        "item_id": [10, 20, 30, 40, 50],
        "topic": ["x", "x", "y", "y", None],
        "tags": [["a"], ["a", "b"], [], ["b"], ["b"]],
        "price": [1.0, None, 3.0, 4.0, 5.0],
        "content": [[1.0, 0.0], [1.0, 0.1], [0.1, 1.0], [0.0, 1.0], [0.01, 1.0]],
    }
    users = {"user_id": [1, 2, 3, 4, 9], "country": ["DE", "DE", "FR", "FR", "DE"]}
    table = log.write([*rows, click(9, 40)], users=users, items=items)
    fit_retrieval(Retrieval.model_validate(SECTION), declared(), table, days(0), tmp_path / "release", 1)
    return Retriever.open(tmp_path / "release")


def recommender(retriever: Retriever, **sections: Any) -> Recommender:
    filters = Filters.model_validate(sections.get("filters", {}))
    ordering = Ordering.model_validate(sections.get("ordering", {}))
    return Recommender(retriever, filters, ordering, sections.get("lists"), labels=sections.get("labels", ()))


def request(**changes: Any) -> SlateRequest:
    return SlateRequest(**{"id": "r", "user": 9, "k": 2, "now": NOW} | changes)


def items(candidates: SlateCandidates) -> list[int]:
    return candidates.rows["item"].to_list()


def test_a_filter_independent_of_the_request_is_evaluated_once(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[tuple[str, int]] = []
    keeps = ConditionFilter.keeps

    def noted(rule: ConditionFilter, candidates: pl.DataFrame, filter_request: FilterRequest) -> np.ndarray:
        evaluated.append((rule.name, candidates.height))
        return keeps(rule, candidates, filter_request)

    monkeypatch.setattr(ConditionFilter, "keeps", noted)
    rules = [
        {"kind": "where", "name": "priced", "keep": "price IS NOT NULL"},
        {"kind": "where", "name": "of_today", "keep": "now >= DATE '2026-03-03'"},
        {"kind": "deny", "path": "denied.txt"},
    ]
    stages = recommender(retriever, filters={"rules": rules}, lists={"deny": pl.Series([40])})
    assert evaluated == [("priced", 5)]  # for the whole catalogue
    today, yesterday = stages.find(request()), stages.find(request(now=NOW - timedelta(days=1)))
    assert evaluated[1:] == [("of_today", 3), ("of_today", 3)]
    assert (items(today), items(yesterday)) == ([30, 10], [])  # and 40, which is denied
    assert today.removed_counts == {"deny": 1}
    assert yesterday.removed_counts == {"of_today": 3}


def past(*events: tuple[int, float, bool]) -> UserHistory:
    """Return a history from events: item, hours before the request, whether the outcome was positive."""
    items, hours, outcomes = zip(*events, strict=True)
    times = pl.Series([NOW - timedelta(hours=hour) for hour in hours], dtype=pl.Datetime("us", "UTC"))
    return UserHistory(pl.Series(items, dtype=pl.Int64), times, pl.Series(outcomes, dtype=pl.Boolean()))


def test_live_items_precede_the_fitted_recent_items(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    recent_lists: list[list[int]] = []
    near = retriever.sources["near"]
    begin = near.begin

    def noted(queries: Any, max_items: int) -> Any:
        recent = queries.recent[0]
        recent_lists.append([(10, 20, 30, 40, 50)[row] for row in recent if row >= 0])
        return begin(queries, max_items)

    monkeypatch.setattr(near, "begin", noted)
    stages = recommender(retriever)
    # User 1 took 10, 20 and 30 in this order by the log.
    history = past((99, 4, True), (50, 3, True), (40, 2, False), (20, 1, True))
    for slate_request in (
        request(user=1),
        request(user=1, history=history),
        request(user=1, history=history, recent=[10]),
    ):
        stages.find(slate_request)
    new = stages.find(request(user=77, history=history))
    assert recent_lists == [
        [30, 20, 10],
        [20, 50, 30, 10],
        [10],
        [20, 50],
    ]  # what was shown only, and unknown items, do not count
    assert "near" in new.sources  # a new user has a session, too


def test_a_slate_excludes_items_shown_after_retrieval(retriever: Retriever) -> None:
    stages = recommender(retriever, filters={"rules": [{"kind": "seen", "window": "5h"}]})
    first_request = request(k=2, history=past((10, 2, False)))
    candidates = stages.find(first_request)
    assert items(candidates) == [30, 40]
    now = request(k=2, history=first_request.history, latest=past((10, 2, False), (40, 0, False)))
    slate = stages.slate(now, candidates, np.array([0.1, 0.9]))
    assert (slate.items.to_list(), slate.rows.tolist(), slate.scores.tolist()) == ([30], [0], [0.1])
    assert (slate.removed.items.to_list(), slate.removed.filters) == ([40], ("seen",))
    whole = stages.slate(first_request, candidates, np.array([0.1, 0.9]))
    assert (whole.items.to_list(), whole.removed.filters) == ([40, 30], ())


def test_a_slate_goes_through_all_stages(retriever: Retriever) -> None:
    stages = recommender(
        retriever,
        filters={"rules": [{"kind": "where", "name": "priced", "keep": "price IS NOT NULL"}]},
        ordering={"value": "score * price"},
    )
    candidates = stages.find(request())
    # Three candidates of both sources' lists (10, 20, 30 and 40, 50, 30), those with the highest ranks.
    assert candidates.retrieved == 3
    slate = stages.slate(request(), candidates, np.full(candidates.rows.height, 0.5))
    prices = {10: 1.0, 20: None, 30: 3.0, 40: 4.0, 50: 5.0}
    assert slate.items.to_list() == sorted(items(candidates), key=lambda item: -(prices[item] or 0))[:2]
    assert slate.values.tolist() == [0.5 * (prices[item] or 0) for item in slate.items]
    assert slate.propensities.tolist() == [1.0, 1.0]
    assert set(slate.sources) <= {"popular", "near"}


@pytest.mark.parametrize(("by", "second"), [("topic", 2), ("score", 1)])
def test_likeness_is_computed_before_scoring_unless_it_reads_a_score(
    retriever: Retriever, by: str, second: int
) -> None:
    stages = recommender(retriever, ordering={"diversity": {"kind": "mmr", "by": by, "weight": 0.9}})
    candidates = stages.find(request(user=1))
    assert candidates.rows["item"].to_list() == [10, 20, 30]  # of the topics x, x and y
    assert (candidates.likeness is None) == (by == "score")
    # The best, then one that is not alike: of the other topic, or of the other score.
    assert stages.slate(request(user=1), candidates, np.array([0.9, 0.8, 0.9])).rows.tolist() == [0, second]


def test_removed_candidates_have_item_and_filter(retriever: Retriever) -> None:
    stages = recommender(
        retriever,
        filters={
            "rules": [
                {"kind": "where", "name": "local", "keep": "topic = 'x' AND country = 'DE'"},
                {"kind": "deny", "path": "denied.txt"},
            ]
        },
        lists={"deny": pl.Series([10])},
    )
    candidates = stages.find(request(user=1, context={"country": "DE"}))
    removed = dict(zip(candidates.removed.items, candidates.removed.filters, strict=True))
    assert removed.pop(10) == "deny"
    assert set(removed.values()) == {"local"}
    assert items(stages.find(request(user=1, context={"country": "FR"}))) == []
    assert items(stages.find(request(user=1))) == []  # the country is not known: null is not kept


def test_shown_items_are_filtered_out(retriever: Retriever) -> None:
    stages = recommender(retriever, filters={"rules": [{"kind": "seen"}], "fallback": ["popular"]})
    history = UserHistory(pl.Series([10, 20]), pl.Series([NOW, NOW]), pl.Series([False, True]))
    candidates = stages.find(request(user=1, k=3, history=history))
    assert not {10, 20} & set(items(candidates))


def test_fallback_sources_are_asked_where_filters_leave_too_few_items(retriever: Retriever) -> None:
    deep = {"rules": [{"kind": "deny", "path": "denied.txt"}], "fallback": ["popular"]}
    denied = {"deny": pl.Series([10, 20, 30])}
    short = recommender(retriever, filters={**deep, "fallback": []}, lists=denied).find(request(user=1))
    assert (items(short), short.fallback) == ([], ())
    candidates = recommender(retriever, filters=deep, lists=denied).find(request(user=1, k=1))
    assert (items(candidates), candidates.sources, candidates.fallback) == ([40], ("popular",), ("popular",))
    # No source has as many: the answer is short, and nothing is asked for ever.
    assert len(items(recommender(retriever, filters=deep, lists=denied).find(request(user=1, k=5)))) < 5


def test_fallbacks_stop_at_max_fallback_and_filter_each_candidate_once(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    filtered: list[int] = []
    keeps = DenyFilter.keeps

    def noted(rule: DenyFilter, candidates: pl.DataFrame, filter_request: FilterRequest) -> np.ndarray:
        filtered.append(candidates.height)
        return keeps(rule, candidates, filter_request)

    monkeypatch.setattr(DenyFilter, "keeps", noted)
    deep = {"rules": [{"kind": "deny", "path": "denied.txt"}], "fallback": ["popular"]}
    denied = {"deny": pl.Series([10, 20, 30, 40])}
    stages = recommender(retriever, filters=deep, lists=denied)
    filtered.clear()  # what asks nothing of a request is evaluated at the start
    stages._keep_masks.clear()
    candidates = stages.find(request(user=1, k=1))
    assert sum(filtered) == candidates.retrieved == 4
    bounded = recommender(retriever, filters={**deep, "max_fallback": 3}, lists=denied).find(request(user=1, k=1))
    assert (bounded.retrieved, bounded.removed.items.to_list()) == (3, [10, 20, 30])


def test_an_anonymous_user_is_known_by_recent_items(retriever: Retriever) -> None:
    stages = recommender(retriever)
    near = {item for item, source in _sourced(stages.find(request(user=None, recent=[40, 777]))) if source == "near"}
    assert near == {40}
    assert {source for _, source in _sourced(stages.find(request(user=None)))} == {"popular"}


@pytest.mark.parametrize("k", [0, 6])
def test_more_items_than_there_are_cannot_be_asked_for(retriever: Retriever, k: int) -> None:
    with pytest.raises(SlateRequestError, match=f"k: got {k}; wanted 1 to 5, the items that there are"):
        recommender(retriever).find(request(k=k))


def test_a_value_formula_reads_the_scores_of_further_labels(retriever: Retriever) -> None:
    stages = recommender(retriever, ordering={"value": "score * 0 + score_like"}, labels=["like"])
    candidates = stages.find(request())
    likes = np.array([0.1, 0.3, 0.2])
    slate = stages.slate(request(), candidates, np.array([0.9, 0.5, 0.1]), {"score_like": likes})
    assert slate.items.to_list() == [items(candidates)[1], items(candidates)[2]]
    assert slate.values.tolist() == [0.3, 0.2]
    with pytest.raises(SlateRequestError, match="ordering reads 'score_like'; the model gave score"):
        stages.slate(request(), candidates, np.full(3, 0.5))
    with pytest.raises(SlateRequestError, match="score_like: got 1 for 3 candidates"):
        stages.slate(request(), candidates, np.full(3, 0.5), {"score_like": likes[:1]})


def test_a_candidate_without_a_score_that_ordering_reads_is_refused() -> None:
    outcome_columns = [{"name": "likes", "type": "integer", "known": "after", "min": 0, "max": 1}]
    raw = declared().model_dump()
    columns = [
        *({key: value for key, value in column.items() if value is not None} for column in raw["columns"]),
        *outcome_columns,
    ]
    data = Data.model_validate({**raw, "columns": columns, "labels": {"like": {"column": "likes"}}})
    ordering = Ordering(value="score + 2 * score_like")
    check_slates(data, Retrieval.model_validate(SECTION), Filters(), ordering)
    with pytest.raises(ShortlistError, match=r"ordering: .*reads 'score_share', which is no column"):
        check_slates(data, Retrieval.model_validate(SECTION), Filters(), Ordering(value="score_share"))
    trees = XGBoostModel(features=("*",))
    with pytest.raises(ShortlistError, match=r"ordering reads 'score_like', which models\.trees does not give"):
        check_scores(ordering, data, {"trees": trees})
    check_scores(ordering, data, {"trees": trees.model_copy(update={"labels": ("like",)})})
    check_scores(Ordering(), data, {"trees": trees})


def test_a_wrong_number_of_scores_is_an_error(retriever: Retriever) -> None:
    stages = recommender(retriever)
    with pytest.raises(SlateRequestError, match="scores: got 1 for 3 candidates"):
        stages.slate(request(), stages.find(request()), np.zeros(1))


@pytest.mark.parametrize(
    ("filters", "ordering", "message"),
    [
        ({"rules": [{"kind": "where", "keep": "prise > 1"}]}, {}, "filters.rules.0: 'prise > 1' reads 'prise'"),
        ({"rules": [{"kind": "where", "keep": "score > 1"}]}, {}, "filters.rules.0: 'score > 1' reads 'score'"),
        ({"rules": [{"kind": "where", "keep": "is_click = 1"}]}, {}, "reads 'is_click', which is no column"),
        (
            {"fallback": ["nearest"]},
            {},
            "filters.fallback: 'nearest' is no source; did you mean 'near'?; retrieval.sources has popular, near",
        ),
        ({}, {"value": "score * country"}, "ordering: 'score * country' is no expression"),
        ({}, {"diversity": {"kind": "mmr", "by": "topics"}}, "ordering: diversity.by reads 'topics'"),
    ],
)
def test_sections_that_do_not_fit_the_log_are_refused(filters: dict, ordering: dict, message: str) -> None:
    sections = Filters.model_validate(filters), Ordering.model_validate(ordering)
    with pytest.raises(ShortlistError) as refused:
        check_slates(declared(), Retrieval.model_validate(SECTION), *sections)
    assert message in str(refused.value)


def test_a_generated_log_has_no_files_of_items() -> None:
    generated = Data.model_validate({**declared().model_dump(), "source": {"kind": "generated"}})
    filters = Filters.model_validate({"rules": [{"kind": "seen"}, {"kind": "deny", "path": "denied.txt"}]})
    with pytest.raises(ShortlistError, match=r"filters.rules.1: reads 'denied.txt' beside the log, and a gen"):
        check_slates(generated, Retrieval.model_validate(SECTION), filters, Ordering())


def test_sections_that_fit_the_log_are_accepted() -> None:
    filters = Filters.model_validate(
        {"rules": [{"kind": "where", "keep": "price > 0 AND surface = 'home' AND country <> 'FR' AND now IS NOT NULL"}]}
    )
    ordering = Ordering.model_validate({"value": "score * price", "diversity": {"kind": "dpp", "by": "content"}})
    check_slates(declared(), Retrieval.model_validate(SECTION), filters, ordering)
    assert candidate_types(declared())["content"] == pl.List(pl.Float32)


def test_filters_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="2 filters are called 'seen'; give each a name of its own"):
        Filters.model_validate({"rules": [{"kind": "seen"}, {"kind": "seen", "of": "positive"}]})


def test_diversity_by_vectors_of_side_tables(retriever: Retriever) -> None:
    stages = recommender(retriever, ordering={"diversity": {"kind": "mmr", "by": "content", "weight": 0.9}})
    candidates = stages.find(request(user=1, k=2))
    scores = np.array([{10: 1.0, 20: 0.99}.get(item, 0.9) for item in items(candidates)])
    # 20 is like 10; whatever else there is comes second.
    assert stages.slate(request(user=1), candidates, scores).items.to_list()[1] != 20


def _sourced(candidates: SlateCandidates) -> list[tuple[int, str]]:
    return list(zip(items(candidates), candidates.sources, strict=True))


def test_many_requests_get_the_candidates_of_each_alone(retriever: Retriever) -> None:
    rules = [{"kind": "where", "name": "of_today", "keep": "now >= DATE '2026-03-03'"}]
    stages = recommender(retriever, filters={"rules": rules, "fallback": ["popular"]})
    requests = [
        request(),
        request(user=1, k=4),
        request(user=None, recent=[50], context={"surface": "home"}),
        request(user=2, now=NOW - timedelta(days=1)),
        request(user=3, history=past((40, 2.0, True))),
    ]
    together, alone = stages.find_all(requests), [stages.find(each) for each in requests]
    assert len({tuple(items(candidates)) for candidates in alone}) > 2
    for candidates, expected in zip(together, alone, strict=True):
        assert candidates.rows.equals(expected.rows)
        assert (candidates.sources, candidates.fallback) == (expected.sources, expected.fallback)
        assert candidates.removed_counts == expected.removed_counts
    assert stages.find_all([]) == []
    with pytest.raises(SlateRequestError, match="k: got 6; wanted 1 to 5"):
        stages.find_all([request(), request(k=6)])


RULES: dict[str, list[dict[str, Any]]] = {
    "where": [
        {"kind": "where", "name": "local", "keep": "country = 'DE' OR price > 2"},
        {"kind": "where", "name": "cheap", "keep": "price <= AVG(price) OR surface = 'home'"},
        {"kind": "where", "name": "published", "keep": "now >= DATE '2026-03-03' AND rank_of_near IS NULL"},
    ],
    "seen": [{"kind": "seen", "name": "taken", "of": "positive"}, {"kind": "seen", "window": "3h"}],
    "allow": [{"kind": "allow", "path": "allowed.txt"}],
    "deny": [{"kind": "deny", "path": "denied.txt"}],
}
"""Rules of every kind."""


@pytest.fixture
def local_retriever(log: Log, tmp_path: Path) -> Retriever:
    """Sources of which one has a list for each country and for users of whom it is null."""
    likes = {1: (10, 20, 30), 2: (10, 20), 3: (30, 40), 4: (40, 50), 5: (60, 50), 6: (60, 10)}
    users = {"user_id": [*likes], "country": ["DE", "DE", "FR", "FR", None, None]}
    vectors = [[1.0, 0.0], [1.0, 0.1], [0.1, 1.0], [0.0, 1.0], [0.01, 1.0], [0.5, 0.5]]
    items = {
        "item_id": [10, 20, 30, 40, 50, 60], "price": [1.0, None, 3.0, 4.0, 5.0, 2.0], "content": vectors,
        "topic": ["x", "x", "y", "y", None, "y"], "tags": [["a"]] * 6,
    }  # fmt: skip
    table = log.write([click(user, item) for user, liked in likes.items() for item in liked], users=users, items=items)
    local = {"kind": "popular", "keys": ["country"], "min_positives": 1}
    sources = {"local": local, "near": SECTION["sources"]["near"]}  # type: ignore[index]
    section = Retrieval.model_validate({"candidates": 3, "sources": sources})
    fit_retrieval(section, declared(), table, days(0), tmp_path / "local", 1)
    return Retriever.open(tmp_path / "local")


@pytest.mark.parametrize("kind", FILTERS)
def test_a_batch_has_the_candidates_and_slates_of_its_requests_alone(local_retriever: Retriever, kind: str) -> None:
    stages = recommender(
        local_retriever,
        filters={"rules": RULES[kind], "fallback": ["local"]},
        ordering={"value": "score", "explore": {"kind": "gumbel", "temperature": 0.5, "share": 0.7}},
        lists={"allow": pl.Series([10, 30, 50, 60]), "deny": pl.Series([20, 40])},
    )
    contexts: list[dict[str, Any]] = [
        {}, {"country": "DE", "surface": "home"}, {"country": None}, {"surface": "feed"},
        {"country": "FR", "surface": None},
    ]  # fmt: skip
    histories = [None, past((10, 30, False), (20, 2, True)), past((40, 2, False)), past((60, 5, True), (60, 1, False))]
    sent_items = [None, [50], [777], []]
    requests = [
        request(
            id=f"r{number}", user=[1, None, 3, 5, 99][number % 5], k=1 + number % 6,
            now=NOW - timedelta(days=number % 3), context=contexts[number % 5], history=histories[number // 5 % 4],
            recent=sent_items[number // 7 % 4],
        )
        for number in range(140)
    ]  # fmt: skip
    together, alone = stages.find_all(requests), [stages.find(each) for each in requests]
    removed = {name for candidates in alone for name in candidates.removed.filters}
    assert removed == {rule.name for rule in stages.filters.rules}
    assert len({tuple(items(candidates)) for candidates in alone}) > 5
    assert len({len(candidates.items) for candidates in alone}) > 2
    assert any(candidates.fallback for candidates in alone)
    drawn = 0
    for each, candidates, expected in zip(requests, together, alone, strict=True):
        assert candidates.rows.equals(expected.rows)
        assert candidates.items.equals(expected.items)
        assert (candidates.sources, candidates.retrieved) == (expected.sources, expected.retrieved)
        assert (candidates.fallback, candidates.removed.filters) == (expected.fallback, expected.removed.filters)
        assert candidates.removed.items.equals(expected.removed.items)
        scores = 1 / (1 + np.arange(len(candidates.items)))
        slate, slate_alone = stages.slate(each, candidates, scores), stages.slate(each, expected, scores)
        assert slate.items.equals(slate_alone.items)
        for values, values_alone in zip(
            (slate.scores, slate.values, slate.propensities, *slate.place_propensities()),
            (slate_alone.scores, slate_alone.values, slate_alone.propensities, *slate_alone.place_propensities()),
            strict=True,
        ):
            np.testing.assert_array_equal(values, values_alone)
        drawn += slate.explored
    assert 0 < drawn < len(requests)


def test_stages_without_exploration_show_the_best_order(retriever: Retriever) -> None:
    explore = {"kind": "epsilon", "epsilon": 1.0, "share": 1.0}
    stages = recommender(retriever, ordering={"explore": explore})
    greedy = stages.without_exploration()
    scores = np.array([0.1, 0.2, 0.3])
    slates = [stages.slate(each, stages.find(each), scores) for each in (request(id=f"r{n}", k=3) for n in range(20))]
    assert len({tuple(slate.items) for slate in slates}) > 1
    best = greedy.slate(request(k=3), greedy.find(request()), scores)
    assert (best.rows.tolist(), best.explored, best.propensities.tolist()) == ([2, 1, 0], False, [1.0, 1.0, 1.0])
    assert stages.ordering.explore is not None
