import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import chisquare

from shortlist.contracts import ShortlistError
from shortlist.slates.ordering.base import NewItems
from shortlist.slates.ordering.likeness import likeness_by
from shortlist.slates.ordering.order import check_ordering, columns_read, compute_values, order
from shortlist.slates.probabilities import slate_probabilities
from shortlist.spec.ordering import Ordering


def _ordering(**section: object) -> Ordering:
    return Ordering.model_validate(section)


def _candidates(scores: Sequence[float] | np.ndarray, **columns: object) -> pl.DataFrame:
    return pl.DataFrame({"item": np.arange(len(scores)), "score": np.asarray(scores, np.float64), **columns})


def _pin(item: int, place: int) -> dict[str, object]:
    return {"kind": "pin", "item": item, "place": place}


def _random(seed: int, n: int = 40) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    vectors = pl.Series(random.normal(size=(n, 6)).astype(np.float32), dtype=pl.Array(pl.Float32, 6))
    tags = [sorted({int(tag) for tag in random.integers(0, 9, random.integers(0, 4))}) for _ in range(n)]
    return _candidates(
        random.random(n),
        price=random.random(n),
        creator=pl.Series(random.integers(0, 5, n)),
        vector=vectors,
        tags=pl.Series(tags, dtype=pl.List(pl.Int64)),
    )


def test_without_a_section_the_best_scores_come_first() -> None:
    slate = order(_candidates([0.1, 0.9, 0.5]), Ordering(), 2, "r")
    assert slate.rows.tolist() == [1, 2]
    assert slate.propensities.tolist() == [1.0, 1.0]
    assert not slate.explored


def test_the_value_is_a_formula_over_score_and_columns() -> None:
    slate = order(_candidates([0.5, 0.4], price=[1.0, 2.0]), _ordering(value="score * price"), 2, "r")
    assert slate.rows.tolist() == [1, 0]
    assert slate.values.tolist() == [0.8, 0.5]


def test_candidates_whose_value_is_unknown_are_left_out_and_counted() -> None:
    candidates = _candidates([0.5, 0.4, 0.3], price=[None, 2.0, 0.0])
    slate = order(candidates, _ordering(value="score / price"), 3, "r")  # null, 0.2, infinite
    assert slate.rows.tolist() == [1]
    assert slate.without_value == 2


def test_no_candidates_give_an_empty_slate() -> None:
    empty = _random(0, 1).clear()
    section = _ordering(
        rules=[{"kind": "cap", "column": "creator", "most": 1, "places": 3}],
        diversity={"kind": "dpp", "by": "vector"},
        explore={"kind": "gumbel", "temperature": 1},
    )
    assert order(empty, section, 5, "r").rows.tolist() == []


def test_a_boost_raises_positive_and_negative_values() -> None:
    section = _ordering(rules=[{"kind": "boost", "where": "price > 1", "factor": 2, "add": 1}])
    slate = order(_candidates([0.5, -0.5, 0.9], price=[2.0, 2.0, None]), section, 3, "r")
    assert dict(zip(slate.rows.tolist(), slate.values.tolist(), strict=True)) == {0: 2.0, 1: 0.75, 2: 0.9}


def test_a_pinned_item_has_its_place_and_counts_for_caps() -> None:
    section = _ordering(
        rules=[
            {"kind": "pin", "item": 3, "place": 2},
            {"kind": "cap", "column": "creator", "most": 1, "places": 3},
        ]
    )
    candidates = _candidates([0.9, 0.8, 0.7, 0.1], creator=[7, 8, 9, 7])
    # Item 0 is the best, but its creator's one place belongs to the pinned item.
    assert order(candidates, section, 3, "r").rows.tolist() == [1, 3, 2]
    assert order(candidates.filter(pl.col("item") != 3), section, 3, "r").rows.tolist() == [0, 1, 2]


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(2, 8), st.sampled_from(["mmr", "dpp", None]))
def test_no_slate_breaks_a_cap(seed: int, max_count: int, places: int, diversity: str | None) -> None:
    candidates = _random(seed)
    section = _ordering(
        rules=[{"kind": "cap", "column": "creator", "most": min(max_count, places - 1), "places": places}],
        diversity=diversity and {"kind": diversity, "by": "tags"},
        explore={"kind": "gumbel", "temperature": 0.3},
    )
    slate = order(candidates, section, 10, str(seed))
    assert len(set(slate.rows.tolist())) == len(slate.rows)
    first = Counter(candidates["creator"].gather(slate.rows[:places]).to_list())
    assert max(first.values()) <= min(max_count, places - 1)


def test_pinned_items_move_up_where_caps_leave_no_candidate() -> None:
    section = _ordering(rules=[_pin(2, 3), {"kind": "cap", "column": "creator", "most": 1, "places": 3}])
    slate = order(_candidates([0.9, 0.8, 0.1], creator=[7, 7, 8]), section, 3, "r")
    assert slate.rows.tolist() == [0, 2]


def test_a_cap_does_not_apply_beyond_its_places() -> None:
    section = _ordering(rules=[{"kind": "cap", "column": "creator", "most": 1, "places": 2}])
    slate = order(_candidates([0.9, 0.8, 0.7], creator=[7, 7, 8]), section, 3, "r")
    assert slate.rows.tolist() == [0, 2, 1]


@pytest.mark.parametrize("by", ["vector", "tags", "creator"])
@pytest.mark.parametrize("seed", range(3))
def test_maximal_marginal_relevance_is_its_formula(by: str, seed: int) -> None:
    candidates = _random(seed)
    slate = order(candidates, _ordering(diversity={"kind": "mmr", "by": by, "weight": 0.4}), 8, "r")
    score = candidates["score"].to_numpy()
    value = (score - score.min()) / (score.max() - score.min())
    alike = np.stack([likeness_by(candidates[by]).similarities(row) for row in range(len(score))])
    placed: list[int] = []
    for _ in range(8):
        unplaced = [row for row in range(len(score)) if row not in placed]
        placed.append(
            max(unplaced, key=lambda row: 0.6 * value[row] - 0.4 * max((alike[row, p] for p in placed), default=0))
        )
    assert slate.rows.tolist() == placed


@pytest.mark.parametrize("by", ["vector", "tags"])
@pytest.mark.parametrize("seed", range(3))
def test_dpp_adds_the_item_with_the_largest_determinant(by: str, seed: int) -> None:
    candidates = _random(seed, 25)
    slate = order(candidates, _ordering(diversity={"kind": "dpp", "by": by, "weight": 0.5}), 6, "r")
    score = candidates["score"].to_numpy()
    quality = np.exp(0.5 * (score - score.min()) / (score.max() - score.min()))
    alike = np.stack([likeness_by(candidates[by]).similarities(row) for row in range(len(score))])
    kernel = quality[:, None] * alike * quality
    placed: list[int] = []
    for _ in range(6):
        unplaced = [row for row in range(len(score)) if row not in placed]
        gain = {row: np.linalg.det(kernel[np.ix_([*placed, row], [*placed, row])]) for row in unplaced}
        placed.append(max(unplaced, key=gain.__getitem__))
    assert slate.rows.tolist() == placed


@pytest.mark.parametrize("by", ["vector", "tags", "creator"])
def test_likeness_is_positive_semidefinite_and_between_0_and_1(by: str) -> None:
    measure = likeness_by(_random(5)[by])
    alike = np.stack([measure.similarities(row) for row in range(40)])
    assert alike.min() >= 0 and alike.max() <= 1
    np.testing.assert_allclose(alike, alike.T, atol=1e-6)
    assert np.linalg.eigvalsh(alike).min() > -1e-6


def test_items_without_a_value_have_likeness_0() -> None:
    vectors = pl.Series([[1.0, 0.0], None, [0.0, 0.0], [1.0, 0.0]], dtype=pl.Array(pl.Float32, 2))
    assert likeness_by(vectors).similarities(0).tolist() == [1, 0, 0, 1]
    assert likeness_by(pl.Series([None, None, 3])).similarities(0).tolist() == [1, 0, 0]
    assert likeness_by(pl.Series([[1, 2], [2], []], dtype=pl.List(pl.Int64))).similarities(0).tolist() == [1, 0.5, 0]


_EXPLORING = [
    {"kind": "gumbel", "temperature": 0.2},
    {"kind": "gumbel", "temperature": 0.2, "share": 0.4},
    {"kind": "epsilon", "epsilon": 0.3, "share": 0.6},
    {"kind": "gumbel", "temperature": 0.2, "new_items": {"where": "creator = 2", "min_share": 0.6}},
    {"kind": "epsilon", "epsilon": 0.3, "share": 0.6, "new_items": {"where": "creator = 2", "min_share": 0.4}},
]


@pytest.mark.parametrize("explore", _EXPLORING)
def test_propensities_are_the_frequencies_of_slates(explore: dict) -> None:
    candidates = _candidates([0.5, 0.4, 0.3, 0.2], creator=[1, 1, 2, 3])
    section = _ordering(explore=explore, rules=[{"kind": "cap", "column": "creator", "most": 1, "places": 2}])
    counts: Counter[tuple[int, ...]] = Counter()
    probability: dict[tuple[int, ...], float] = {}
    requests = 6_000
    for request in range(requests):
        slate = order(candidates, section, 2, f"request {request}")
        counts[tuple(slate.rows.tolist())] += 1
        probability[tuple(slate.rows.tolist())] = float(slate.propensities.prod())
        if request < 50:  # what checks of slates compute from the values is what was drawn by
            computed = slate_probabilities(candidates, compute_values(candidates, section), section, slate.rows, {})
            np.testing.assert_allclose(computed.of_slate, np.cumprod(slate.propensities))
    allowed = [pair for pair in itertools.permutations(range(4), 2) if set(pair) != {0, 1}]
    assert sorted(counts) == sorted(allowed)
    assert sum(probability.values()) == pytest.approx(1.0)
    expected = [probability[pair] * requests for pair in allowed]
    assert chisquare([counts[pair] for pair in allowed], expected).pvalue > 1e-4


_LIMITS = [
    {},
    {"rules": [{"kind": "cap", "column": "creator", "most": 1, "places": 2}]},
    {"rules": [_pin(2, 2)]},
    {"diversity": {"kind": "mmr", "by": "creator"}},
]


@pytest.mark.parametrize("explore", _EXPLORING)
@pytest.mark.parametrize("limits", _LIMITS)
def test_propensities_of_places_are_sums_over_slates(explore: dict, limits: dict) -> None:
    candidates = _candidates([0.5, 0.4, 0.3], creator=[1, 1, 2])
    section = _ordering(explore=explore, **limits)
    slates = [order(candidates, section, 2, f"request {request}") for request in range(700)]
    joint = {tuple(slate.rows.tolist()): float(slate.propensities.prod()) for slate in slates}
    assert sum(joint.values()) == pytest.approx(1.0)  # each slate was drawn once at least
    marginal = np.zeros((3, 2))
    for rows, probability in joint.items():
        marginal[rows, (0, 1)] += probability
    gaps: list[float] = []
    errors: list[float] = []
    for slate in slates[:80]:
        logged = slate.place_propensities()
        gap = logged.probabilities - marginal[slate.rows, np.arange(2)]
        if slate.explored:
            gaps += [gap[1]]
            errors += [logged.errors[1]]
            assert abs(gap[0]) < 1e-5 and logged.errors[0] < 1e-9  # nothing is drawn above the first place
        else:  # the bounds hold the probability
            assert (np.abs(gap) <= logged.errors + 1e-9).all()
    assert abs(np.mean(gaps)) <= 4 * np.sqrt(np.mean(np.square(errors)) / len(gaps)) + 1e-5
    assert np.mean(np.abs(gaps) <= 3 * np.array(errors) + 1e-5) > 0.9
    if explore["kind"] == "gumbel" and "new_items" not in explore and not limits:  # the closed form is exact
        assert max(errors) == 0


def test_new_items_get_their_declared_share_of_drawn_places() -> None:
    candidates = _candidates([0.9, 0.8, 0.1, 0.05], days_listed=[40, 50, 2, 3])
    explore = {"kind": "gumbel", "temperature": 0.02, "share": 0.5}
    minimum = {"where": "days_listed < 7", "min_share": 0.3}
    shares = []
    for section in (_ordering(explore=explore), _ordering(explore=explore | {"new_items": minimum})):
        assert columns_read(section) == (("score",) if section.explore.new_items is None else ("score", "days_listed"))
        slates = [order(candidates, section, 1, f"request {number}") for number in range(2_000)]
        drawn = [slate for slate in slates if slate.explored]
        shares.append(np.mean([slate.rows[0] >= 2 for slate in drawn]))
        assert all(slate.rows.tolist() == [0] for slate in slates if not slate.explored)
    assert shares[0] == 0 and abs(shares[1] - 0.3) < 4 * (0.3 * 0.7 / len(drawn)) ** 0.5


def test_what_was_shown_at_a_rare_place_has_a_propensity() -> None:
    candidates = _candidates([0.9, 0.85, 0.8, 0.75, 0.1], days_listed=[40, 50, 60, 70, 2])
    minimum = {"where": "days_listed < 7", "min_share": 0.1}
    section = _ordering(explore={"kind": "gumbel", "temperature": 0.02, "new_items": minimum})
    slates = [order(candidates, section, 3, f"request {number}") for number in range(600)]
    late = [slate for slate in slates if slate.rows[2] == 0]  # of some, no replay has the best item so low
    assert len(late) > 3
    propensities = [slate.place_propensities() for slate in late]
    assert all((logged.probabilities > 0).all() for logged in propensities)
    assert all(logged.errors[2] > 0 for logged in propensities)


@pytest.mark.parametrize(
    ("probabilities", "is_new", "expected"),
    [
        ([0.7, 0.2, 0.1], [False, False, True], [0.7 * 0.6 / 0.9, 0.2 * 0.6 / 0.9, 0.4]),
        ([0.3, 0.2, 0.5], [False, False, True], [0.3, 0.2, 0.5]),  # they have more by their values
        ([1.0, 0.0, 0.0], [False, True, True], [0.6, 0.2, 0.2]),
        ([0.7, 0.3], [True, True], [0.7, 0.3]),
        ([0.7, 0.3], [False, False], [0.7, 0.3]),
    ],
)
def test_probabilities_of_new_items_are_raised_to_the_minimum(
    probabilities: list[float], is_new: list[bool], expected: list[float]
) -> None:
    raised = NewItems(where="new", min_share=0.4).raised(np.array(probabilities), np.array(is_new))
    np.testing.assert_allclose(raised, expected)


def test_without_exploration_places_are_certain() -> None:
    logged = order(_candidates([0.5, 0.4]), Ordering(), 2, "r").place_propensities()
    assert logged.probabilities.tolist() == [1.0, 1.0] and logged.errors.tolist() == [0.0, 0.0]


def test_a_drawn_slate_without_candidates_has_no_probabilities() -> None:
    section = _ordering(explore={"kind": "gumbel", "temperature": 1})
    slate = order(_candidates([]), section, 2, "r")
    assert slate.explored
    assert [part.tolist() for part in slate.place_propensities()] == [[], []]


def test_a_request_that_is_replayed_gives_the_same_slate() -> None:
    section = _ordering(explore={"kind": "gumbel", "temperature": 1}, diversity={"kind": "mmr", "by": "vector"})
    slates = [order(_random(1), section, 10, request) for request in ("a", "a", "b")]
    assert slates[0].rows.tolist() == slates[1].rows.tolist() != slates[2].rows.tolist()
    assert slates[0].propensities.tobytes() == slates[1].propensities.tobytes()
    first, second, _ = (slate.place_propensities().probabilities for slate in slates)
    assert first.tobytes() == second.tobytes()


def test_columns_read_lists_the_columns_of_formula_rules_and_diversity() -> None:
    section = _ordering(
        value="score * price",
        rules=[{"kind": "boost", "where": "stock > 0", "add": 1}, {"kind": "pin", "item": 1, "place": 1}],
        diversity={"kind": "mmr", "by": "tags"},
    )
    assert columns_read(section) == ("score", "price", "stock", "item", "tags")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"value": "score * prize"}, "'prize', which is no column of candidates; did you mean 'price'"),
        ({"rules": [{"kind": "boost", "where": "price", "add": 1}]}, "gives Float64; wanted true or false"),
        ({"rules": [{"kind": "cap", "column": "vector", "most": 1, "places": 2}]}, "cap counts equal values"),
        ({"rules": [{"kind": "cap", "column": "nobody", "most": 1, "places": 2}]}, "'nobody', which is no column"),
        (
            {"explore": {"kind": "epsilon", "epsilon": 0.1, "new_items": {"where": "prize < 7", "min_share": 0.2}}},
            "'prize', which is no column of candidates; did you mean 'price'",
        ),
        ({"diversity": {"kind": "mmr", "by": "tag"}}, "'tag', which is no column of candidates; did you mean 'tags'"),
    ],
)
def test_a_section_that_does_not_fit_the_columns_is_refused(section: dict, message: str) -> None:
    with pytest.raises(ShortlistError) as refused:
        check_ordering(_ordering(**section), _random(0).schema)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"rules": [{"kind": "boost", "where": "price > 1"}]}, "changes nothing"),
        ({"rules": [{"kind": "cap", "column": "creator", "most": 3, "places": 3}]}, "limits nothing"),
        (
            {"rules": [{"kind": "pin", "item": 1, "place": 2}, {"kind": "pin", "item": 4, "place": 2}]},
            "2 pins have place 2",
        ),
        (
            {"rules": [{"kind": "pin", "item": 1, "place": 2}, {"kind": "pin", "item": 1, "place": 3}]},
            "2 pins have item 1",
        ),
        ({"explore": {"kind": "epsilon", "epsilon": 0}}, "greater than 0"),
        ({"explore": {"kind": "softmax"}}, "gumbel"),
    ],
)
def test_a_section_that_contradicts_itself_is_refused(section: dict, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        _ordering(**section)
    assert message in str(refused.value)
