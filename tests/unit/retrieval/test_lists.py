from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import ndcg_score

from shortlist.evaluation.metrics.list_metrics import Relevant, list_metrics
from shortlist.slates.retrieval.catalogue import Catalogue, write_mappable
from shortlist.slates.retrieval.source import RankedItems, rank_items, top_positions
from shortlist.slates.retrieval.union import fuse_candidates


def ranked(*lines: Sequence[int], width: int = 4) -> RankedItems:
    items = np.full((len(lines), width), -1, np.int32)
    for place, line in enumerate(lines):
        items[place, : len(line)] = line
    return RankedItems(items, np.where(items >= 0, 1.0, -np.inf).astype(np.float32))


def test_best_orders_by_score_then_row_and_pads() -> None:
    ranked_items = rank_items(np.array([5, 3, 9], np.int32), np.array([1.0, 1.0, 2.0], np.float32), 5)
    assert ranked_items.items.tolist() == [[9, 3, 5, -1, -1]]
    assert ranked_items.scores[0, 3] == -np.inf


@pytest.mark.parametrize("max_items", [1, 7, 200, 300])
def test_rank_items_orders_by_score_and_row_for_scores_of_any_sign(max_items: int) -> None:
    random = np.random.default_rng(3)
    rows = random.permutation(1_000_000)[:200].astype(np.int32)
    scores = np.append(random.integers(-5, 5, 150) / 4, random.standard_normal(47) * 1e-30).astype(np.float32)
    scores = np.append(scores, np.array([-0.0, np.inf, -np.inf], np.float32))
    ranked_items, expected_order = rank_items(rows, scores, max_items), np.lexsort((rows, -scores))[:max_items]
    is_item = ranked_items.items[0] >= 0
    assert ranked_items.items[0, is_item].tolist() == rows[expected_order].tolist()
    assert ranked_items.scores[0, is_item].tolist() == scores[expected_order].tolist()
    assert top_positions(scores, max_items).tolist() == np.argsort(-scores, kind="stable")[:max_items].tolist()


def test_a_mapped_table_has_one_chunk(tmp_path: Path) -> None:
    # Polars writes 122 000 rows of 8 columns at once, if not told otherwise.
    catalogue = Catalogue(
        pl.DataFrame({"item": np.arange(300_000), **{f"c{number}": 0 for number in range(8)}}), "item"
    )
    catalogue.write(tmp_path)
    read = Catalogue.read(tmp_path)
    assert read.size == 300_000
    assert {column.n_chunks() for column in read.items} == {1}
    write_mappable(pl.DataFrame(schema={"user": pl.Int64}), tmp_path / "empty.arrow")
    assert pl.read_ipc(tmp_path / "empty.arrow", memory_map=True).height == 0


def test_a_union_holds_each_item_once_with_its_rank_in_every_source() -> None:
    candidates = fuse_candidates([("a", ranked([1, 2, 3])), ("b", ranked([3, 4])), ("c", ranked([]))], 10)
    # 3 is first in b and third in a: 1/61 + 1/63. Then 1 (1/61), then 2 and 4 (1/62 each), the lower row first.
    assert candidates.items[0, :4].tolist() == [3, 1, 2, 4]
    assert candidates.items[0, 4:].tolist() == [-1] * 6
    assert candidates.scores[0, 0] == pytest.approx(1 / 61 + 1 / 63)
    assert candidates.ranks[0, :4].tolist() == [[3, 1, 0], [1, 0, 0], [2, 0, 0], [0, 2, 0]]
    assert all(np.unique(items[items >= 0], return_counts=True)[1].max() == 1 for items in candidates.items)


def test_a_union_is_capped_and_queries_stay_apart() -> None:
    candidates = fuse_candidates([("a", ranked([1, 2, 3], [7])), ("b", ranked([2, 5], []))], 2)
    assert candidates.items.tolist() == [[2, 1], [7, -1]]


def test_first_items_of_a_source_stay_candidates_at_low_ranks_of_other_sources() -> None:
    lists = [("a", ranked([1, 2, 3, 4], [1])), ("b", ranked([2, 1, 4, 3], [2])), ("new", ranked([8, 9], []))]
    assert fuse_candidates(lists, 3).items.tolist() == [[1, 2, 3], [1, 2, -1]]
    candidates = fuse_candidates(lists, 3, {"new": 1})
    assert candidates.items.tolist() == [[1, 2, 8], [1, 2, -1]]  # in the order of their sums
    assert candidates.ranks[0].tolist() == [[1, 2, 0], [2, 1, 0], [0, 0, 1]]
    assert fuse_candidates(lists, 3, {"new": 2}).items[0].tolist() == [1, 8, 9]


def test_a_source_is_capped_by_the_list_it_gives() -> None:
    capped = RankedItems(*(part[:, :1] for part in ranked([1, 2, 3])))
    candidates = fuse_candidates([("capped", capped), ("other", ranked([9, 8]))], 4)
    assert candidates.items.tolist() == [[1, 9, 8, -1]]


def relevant(*lines: Sequence[int]) -> Relevant:
    pairs = [(query, item) for query, line in enumerate(lines) for item in line]
    query, items = zip(*pairs, strict=True)
    return Relevant(np.array(query), np.array(items, np.int32))


def test_metrics_of_lists_by_hand() -> None:
    lists = np.array([[4, 2, 7, -1], [1, 3, 5, 6]], np.int32)
    metrics = list_metrics(lists, relevant([2, 7, 9], [0]), np.array([0.5] * 4 + [0.125] * 6))
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert metrics.recall.tolist() == pytest.approx([2 / 3, 0])
    assert metrics.ndcg_at_10.tolist() == pytest.approx([(1 / math.log2(3) + 1 / 2) / ideal, 0])
    assert metrics.hit_rate_at_10.tolist() == [1, 0]
    assert metrics.reciprocal_rank.tolist() == [1 / 2, 0]
    assert metrics.items.tolist() == [3, 4]
    assert metrics.novelty.tolist() == pytest.approx([(3 + 1 + 3) / 3, (1 + 1 + 3 + 3) / 4])


def test_a_hit_below_the_tenth_counts_for_recall_and_rank_alone() -> None:
    metrics = list_metrics(np.arange(20, dtype=np.int32)[None], relevant([12]), np.full(20, 0.5))
    assert (metrics.recall[0], metrics.hit_rate_at_10[0], metrics.ndcg_at_10[0]) == (1, 0, 0)
    assert metrics.reciprocal_rank[0] == pytest.approx(1 / 13)


def test_an_item_that_no_list_can_hold_is_missed() -> None:
    metrics = list_metrics(np.array([[0, 1]], np.int32), relevant([0, -1]), np.full(2, 0.5))
    assert metrics.recall.tolist() == [0.5]


def test_a_query_without_relevant_items_has_no_metrics() -> None:
    metrics = list_metrics(np.array([[0, 1], [1, 0]], np.int32), relevant([], [1]), np.full(2, 0.5))
    assert np.isnan(
        [metrics.recall[0], metrics.ndcg_at_10[0], metrics.hit_rate_at_10[0], metrics.reciprocal_rank[0]]
    ).all()
    assert metrics.reciprocal_rank[1] == 1


def test_ndcg_equals_that_of_scikit_learn() -> None:
    random = np.random.default_rng(3)
    items, queries = 40, 25
    lists = np.stack([random.permutation(items)[:30] for _ in range(queries)]).astype(np.int32)
    relevant_items = [random.choice(items, random.integers(1, 15), replace=False) for _ in range(queries)]
    truth, scores = np.zeros((queries, items)), np.zeros((queries, items))
    for query, line in enumerate(lists):
        truth[query, relevant_items[query]] = 1
        scores[query, line] = np.arange(30, 0, -1)
    metrics = list_metrics(lists, relevant(*(line.tolist() for line in relevant_items)), np.full(items, 0.5))
    sklearn_ndcg = [ndcg_score(truth[[query]], scores[[query]], k=10) for query in range(queries)]
    assert metrics.ndcg_at_10.tolist() == pytest.approx(sklearn_ndcg)
