from __future__ import annotations

import multiprocessing
from math import ceil
from pathlib import Path

import faiss
import numpy as np
import polars as pl
import pytest

from shortlist.slates.retrieval.index import ExactIndex, build_index, index_recall, mean_recall, open_index
from shortlist.slates.retrieval.source import Queries, RankedItems
from shortlist.slates.retrieval.sources.nearest import NearestItems
from shortlist.spec.retrieval import ItemIndex
from shortlist.storage.artefacts import IntegrityError, read_json, write_json


def vectors(rows: int, seed: int = 5) -> np.ndarray:
    """Return vectors around a few centres, as learnt vectors are distributed."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(20, 16))
    points = centres[random.integers(0, 20, rows)] + 0.3 * random.normal(size=(rows, 16))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def test_an_exact_search_orders_all_items_by_inner_product(tmp_path: Path) -> None:
    item_vectors = vectors(500)
    item_vectors[7] = 0  # an item without a vector
    build_index(item_vectors, item_vectors[:5], ItemIndex(), 10, tmp_path, 1)
    index = open_index(tmp_path)
    ranked = index.search(item_vectors[:3], 10)
    products = item_vectors[:3] @ item_vectors.T
    products[:, 7] = -np.inf
    assert not index.approximate
    assert ranked.items.tolist() == np.argsort(-products, axis=1, kind="stable")[:, :10].tolist()
    full_ranking = index.search(item_vectors[:1], 500)
    assert 7 not in full_ranking.items and full_ranking.items[0, -1] == -1  # 499 items can be found


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_above_the_declared_size_clusters_are_searched_until_the_recall_is_reached(
    tmp_path: Path, precision: str
) -> None:
    item_vectors, queries = vectors(3_000), vectors(50, seed=6)
    item_vectors[11] = 0
    section = ItemIndex.model_validate(
        {"exact_up_to": 0, "scan_up_to": 1_000, "precision": precision, "min_recall": 0.95}
    )
    build_index(item_vectors, queries, section, 50, tmp_path, 1)
    index, facts = open_index(tmp_path), read_json(tmp_path / "index.json")
    assert index.approximate
    assert facts["probes"] < facts["lists"]  # it does not search everything
    assert index_recall(index, ExactIndex(item_vectors), queries, 50) >= 0.95
    assert 11 not in index.search(queries, 50).items


def test_a_scan_returns_the_exact_order_without_items_that_lack_a_vector(tmp_path: Path) -> None:
    item_vectors, queries = vectors(3_000), vectors(50, seed=6)
    item_vectors[11] = 0
    build_index(item_vectors, queries, ItemIndex(exact_up_to=1_000, min_recall=1.0), 50, tmp_path, 1)
    index, facts = open_index(tmp_path), read_json(tmp_path / "index.json")
    assert index.approximate
    assert (facts["kind"], facts["bits"], facts["depth"]) == ("scan", 4, 4)
    assert (
        tmp_path / "index.faiss"
    ).stat().st_size < item_vectors.nbytes / 8 + 5_000  # 4 bits of 32, and 16 levels of each
    ranked, exact = index.search(queries, 50), ExactIndex(item_vectors).search(queries, 50)
    assert ranked.items.tolist() == exact.items.tolist()
    np.testing.assert_allclose(ranked.scores, exact.scores, rtol=1e-5)
    assert 11 not in ranked.items


def test_a_common_offset_of_all_vectors_does_not_lower_scan_recall(tmp_path: Path) -> None:
    item_vectors, queries = vectors(3_000), vectors(50, seed=6)
    item_vectors[:, -1], queries[:, -1] = -25 - np.random.default_rng(7).random(3_000), 1
    build_index(item_vectors, queries, ItemIndex(exact_up_to=0), 50, tmp_path, 1)
    facts = read_json(tmp_path / "index.json")
    assert (facts["bits"], facts["depth"]) == (4, 2)
    assert index_recall(open_index(tmp_path), ExactIndex(item_vectors), queries, 50) >= 0.99


@pytest.mark.parametrize(("size", "bits", "depth"), [(1, 4, 3), (3, 4, 8), (5, 8, 4), (10, 8, 16)])
def test_a_scan_increases_depth_and_then_bits_until_the_recall_is_reached(
    tmp_path: Path, size: float, bits: int, depth: int
) -> None:
    # Two numbers that cancel each other in every product, so that a few bits of them are mostly their error.
    item_vectors, queries = vectors(3_000), vectors(50, seed=6)
    item_vectors[:, -1] = size * np.random.default_rng(7).standard_normal(3_000)
    item_vectors[:, -2], queries[:, -2:] = -item_vectors[:, -1], 1
    build_index(item_vectors, queries, ItemIndex(exact_up_to=0), 50, tmp_path, 1)
    facts = read_json(tmp_path / "index.json")
    assert (facts["bits"], facts["depth"]) == (bits, depth)
    assert index_recall(open_index(tmp_path), ExactIndex(item_vectors), queries, 50) >= 0.99


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that is large enough to be scanned in two parts."""
    folder = tmp_path_factory.mktemp("large")
    build_index(vectors(200_000), vectors(20, seed=6), ItemIndex(min_recall=0.5), 50, folder, 1)
    return folder


def test_each_part_of_a_large_scan_compares_its_share_of_the_rows(large: Path) -> None:
    item_vectors, queries, facts = vectors(200_000), vectors(20, seed=6), read_json(large / "index.json")
    assert (facts["kind"], facts["bits"], facts["shares"]) == ("scan", 4, [0.45, 0.55])
    rows, index, row_count = np.load(large / "index_rows.npy"), open_index(large), 50 * facts["depth"]
    # In random order: however rows are sorted, each part has its share of what is near.
    assert sorted(rows.tolist()) == list(range(200_000))
    assert 0.4 < (rows[:90_000] < 100_000).mean() < 0.6
    parts = [faiss.read_index(str(large / "index.faiss")) for _ in range(2)]
    parts[0].remove_ids(faiss.IDSelectorRange(90_000, 200_000))
    parts[1].remove_ids(faiss.IDSelectorRange(0, 90_000))
    together = index.search(queries, 50).items.tolist()
    for query, of_several in zip(queries, together, strict=True):
        sent = (query / np.abs(query).max())[None]
        in_first, in_second = (
            part.search(sent, ceil(share * row_count))[1][0] for part, share in zip(parts, facts["shares"], strict=True)
        )
        compared = np.append(rows[in_first], rows[in_second + 90_000])
        nearest = compared[np.argsort(-(item_vectors[compared] @ query))][:50].tolist()
        assert of_several == nearest
        assert index.search(query[None], 50).items[0].tolist() == nearest


def test_started_searches_are_finished_in_any_order(large: Path) -> None:
    first, second, index = vectors(1, seed=6), vectors(1, seed=7), open_index(large)
    finishers = [index.begin(query, 50) for query in (first, second)]
    item_lists = [finish().items.tolist() for finish in reversed(finishers)]
    assert item_lists == [index.search(query, 50).items.tolist() for query in (second, first)]
    assert item_lists[0] != item_lists[1]


def test_an_index_of_an_earlier_version_is_searched_by_one_thread(large: Path, tmp_path: Path) -> None:
    facts = read_json(large / "index.json")
    for file in large.iterdir():
        (tmp_path / file.name).hardlink_to(file)
    (tmp_path / "index.json").unlink()
    write_json(tmp_path / "index.json", {name: value for name, value in facts.items() if name != "shuffled"})
    item_vectors, index, rows = vectors(200_000), open_index(tmp_path), np.load(large / "index_rows.npy")
    whole = faiss.read_index(str(large / "index.faiss"))
    for query in vectors(5, seed=6):
        compared = rows[whole.search((query / np.abs(query).max())[None], 50 * facts["depth"])[1][0]]
        nearest = compared[np.argsort(-(item_vectors[compared] @ query))][:50].tolist()
        assert index.search(query[None], 50).items[0].tolist() == nearest


@pytest.mark.timeout(120)
def test_a_scan_part_without_a_free_thread_is_searched_by_the_caller(large: Path) -> None:
    query, index = vectors(1, seed=6), open_index(large)
    expected_items = index.search(query, 50).items.tolist()
    # A fork has no thread but its own.
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    process = fork.Process(target=lambda: queue.put(index.search(query, 50).items.tolist()))
    process.start()
    assert queue.get() == expected_items
    process.join()


@pytest.mark.parametrize("rows", [40, 3_000])
def test_a_query_of_zeros_and_a_list_longer_than_a_scan_are_answered(tmp_path: Path, rows: int) -> None:
    item_vectors = vectors(rows)
    build_index(item_vectors, item_vectors[:5], ItemIndex(exact_up_to=0), 60, tmp_path, 1)
    ranked = open_index(tmp_path).search(np.stack([item_vectors[0], np.zeros_like(item_vectors[0])]), 60)
    assert ranked.items.shape == (2, 60)
    assert ranked.items[0, 0] == 0
    assert ((ranked.items[0] >= 0).sum(), len(set(ranked.items[1].tolist()) - {-1})) == (min(rows, 60), min(rows, 60))
    assert open_index(tmp_path).search(item_vectors[:0], 60).items.shape == (0, 60)


def test_declared_probes_are_used_and_few_probes_lower_recall(tmp_path: Path) -> None:
    item_vectors, queries = vectors(3_000), vectors(50, seed=6)
    build_index(item_vectors, queries, ItemIndex(exact_up_to=0, scan_up_to=0, probes=1, lists=100), 50, tmp_path, 1)
    assert read_json(tmp_path / "index.json")["probes"] == 1
    assert index_recall(open_index(tmp_path), ExactIndex(item_vectors), queries, 50) < 0.9


def test_a_list_longer_than_the_index_is_padded(tmp_path: Path) -> None:
    item_vectors = vectors(40)
    build_index(item_vectors, item_vectors, ItemIndex(exact_up_to=0, scan_up_to=0, lists=4, probes=4), 60, tmp_path, 1)
    ranked = open_index(tmp_path).search(item_vectors[:2], 60)
    assert sorted(ranked.items[0, :40].tolist()) == list(range(40))
    assert (ranked.items[:, 40:] == -1).all()


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"index\.json: missing"):
        open_index(tmp_path)


def test_mean_recall_ignores_the_order_of_items() -> None:
    assert mean_recall(np.array([[3, 1], [9, 9]]), np.array([[1, 3], [4, 5]])) == 0.5


def test_more_probes_than_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="probes 9 is above lists 3"):
        ItemIndex(lists=3, probes=9)


def test_queries_without_a_vector_are_not_searched(tmp_path: Path) -> None:
    item_vectors = vectors(300)
    build_index(item_vectors, item_vectors[:5], ItemIndex(), 4, tmp_path, 1)
    query_counts: list[int] = []

    class Counted:
        approximate = False

        def search(self, queries: np.ndarray, max_items: int) -> RankedItems:
            query_counts.append(len(queries))
            return ExactIndex(item_vectors).search(queries, max_items)

    source = NearestItems(tmp_path, 1.0, 2)
    source.index = Counted()
    recent = np.array([[-1, -1], [7, -1], [-1, -1]], np.int32)
    queries = Queries(pl.Series([1, 2, 3]), recent, pl.DataFrame())
    ranked = source.retrieve(queries, 4)
    alone = NearestItems(tmp_path, 1.0, 2).retrieve(queries.slice(1, 2), 4)
    assert query_counts == [1]
    assert ranked.items.tolist() == [[-1] * 4, alone.items[0].tolist(), [-1] * 4]
    assert ranked.scores[1].tolist() == alone.scores[0].tolist() and np.isneginf(ranked.scores[[0, 2]]).all()
    assert source.retrieve(queries.slice(0, 1), 4).items.tolist() == [[-1] * 4]
    assert query_counts == [1]
