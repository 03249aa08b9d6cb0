from __future__ import annotations

import multiprocessing
from math import ceil
from pathlib import Path

import faiss
import numpy as np
import polars as pl
import pytest

from shortlist.retrieval.index import ExactIndex, build_index, index_recall, mean_recall, open_index
from shortlist.retrieval.source import Queries, RankedItems
from shortlist.retrieval.sources.nearest import NearestItems
from shortlist.spec.retrieval import ItemIndex
from shortlist.storage.artefacts import IntegrityError, read_json, write_json


def vectors(rows: int, seed: int = 5) -> np.ndarray:
    """Vectors around a few centres, as learnt ones lie."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(20, 16))
    made = centres[random.integers(0, 20, rows)] + 0.3 * random.normal(size=(rows, 16))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def test_an_exact_search_orders_all_items_by_inner_product(tmp_path: Path) -> None:
    made = vectors(500)
    made[7] = 0  # an item without a vector
    build_index(made, made[:5], ItemIndex(), 10, tmp_path, 1)
    index = open_index(tmp_path)
    found = index.search(made[:3], 10)
    products = made[:3] @ made.T
    products[:, 7] = -np.inf
    assert not index.approximate
    assert found.items.tolist() == np.argsort(-products, axis=1, kind="stable")[:, :10].tolist()
    every = index.search(made[:1], 500)
    assert 7 not in every.items and every.items[0, -1] == -1  # 499 items can be found


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_above_the_declared_size_clusters_are_searched_until_the_recall_is_reached(
    tmp_path: Path, precision: str
) -> None:
    made, queries = vectors(3_000), vectors(50, seed=6)
    made[11] = 0
    section = ItemIndex.model_validate(
        {"exact_up_to": 0, "scan_up_to": 1_000, "precision": precision, "min_recall": 0.95}
    )
    build_index(made, queries, section, 50, tmp_path, 1)
    index, facts = open_index(tmp_path), read_json(tmp_path / "index.json")
    assert index.approximate
    assert facts["probes"] < facts["lists"]  # it does not search everything
    assert index_recall(index, ExactIndex(made), queries, 50) >= 0.95
    assert 11 not in index.search(queries, 50).items


def test_a_scan_gives_the_exact_order_and_no_item_without_a_vector(tmp_path: Path) -> None:
    made, queries = vectors(3_000), vectors(50, seed=6)
    made[11] = 0
    build_index(made, queries, ItemIndex(exact_up_to=1_000, min_recall=1.0), 50, tmp_path, 1)
    index, facts = open_index(tmp_path), read_json(tmp_path / "index.json")
    assert index.approximate
    assert (facts["kind"], facts["bits"], facts["depth"]) == ("scan", 4, 4)
    assert (tmp_path / "index.faiss").stat().st_size < made.nbytes / 8 + 5_000  # 4 bits of 32, and 16 levels of each
    found, wanted = index.search(queries, 50), ExactIndex(made).search(queries, 50)
    assert found.items.tolist() == wanted.items.tolist()
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)
    assert 11 not in found.items


def test_what_all_vectors_have_alike_hides_nothing_in_a_scan(tmp_path: Path) -> None:
    made, queries = vectors(3_000), vectors(50, seed=6)
    made[:, -1], queries[:, -1] = -25 - np.random.default_rng(7).random(3_000), 1
    build_index(made, queries, ItemIndex(exact_up_to=0), 50, tmp_path, 1)
    facts = read_json(tmp_path / "index.json")
    assert (facts["bits"], facts["depth"]) == (4, 2)
    assert index_recall(open_index(tmp_path), ExactIndex(made), queries, 50) >= 0.99


@pytest.mark.parametrize(("size", "bits", "depth"), [(1, 4, 3), (3, 4, 8), (5, 8, 4), (10, 8, 16)])
def test_a_scan_compares_more_rows_then_more_bits_where_some_numbers_hide_the_others(
    tmp_path: Path, size: float, bits: int, depth: int
) -> None:
    # Two numbers that cancel each other in every product, so that a few bits of them are mostly their error.
    made, queries = vectors(3_000), vectors(50, seed=6)
    made[:, -1] = size * np.random.default_rng(7).standard_normal(3_000)
    made[:, -2], queries[:, -2:] = -made[:, -1], 1
    build_index(made, queries, ItemIndex(exact_up_to=0), 50, tmp_path, 1)
    facts = read_json(tmp_path / "index.json")
    assert (facts["bits"], facts["depth"]) == (bits, depth)
    assert index_recall(open_index(tmp_path), ExactIndex(made), queries, 50) >= 0.99


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that is large enough to be scanned in two parts."""
    folder = tmp_path_factory.mktemp("large")
    build_index(vectors(200_000), vectors(20, seed=6), ItemIndex(min_recall=0.5), 50, folder, 1)
    return folder


def test_each_part_of_a_large_scan_compares_its_share_of_the_rows(large: Path) -> None:
    made, queries, facts = vectors(200_000), vectors(20, seed=6), read_json(large / "index.json")
    assert (facts["kind"], facts["bits"], facts["shares"]) == ("scan", 4, [0.45, 0.55])
    rows, index, wanted = np.load(large / "index_rows.npy"), open_index(large), 50 * facts["depth"]
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
            part.search(sent, ceil(share * wanted))[1][0] for part, share in zip(parts, facts["shares"], strict=True)
        )
        compared = np.append(rows[in_first], rows[in_second + 90_000])
        nearest = compared[np.argsort(-(made[compared] @ query))][:50].tolist()
        assert of_several == nearest
        assert index.search(query[None], 50).items[0].tolist() == nearest


def test_a_search_that_is_begun_is_finished_later_by_who_asks(large: Path) -> None:
    first, second, index = vectors(1, seed=6), vectors(1, seed=7), open_index(large)
    begun = [index.begin(query, 50) for query in (first, second)]
    found = [finish().items.tolist() for finish in reversed(begun)]
    assert found == [index.search(query, 50).items.tolist() for query in (second, first)]
    assert found[0] != found[1]


def test_an_index_of_an_earlier_version_is_searched_by_one_thread(large: Path, tmp_path: Path) -> None:
    facts = read_json(large / "index.json")
    for file in large.iterdir():
        (tmp_path / file.name).hardlink_to(file)
    (tmp_path / "index.json").unlink()
    write_json(tmp_path / "index.json", {name: value for name, value in facts.items() if name != "shuffled"})
    made, index, rows = vectors(200_000), open_index(tmp_path), np.load(large / "index_rows.npy")
    whole = faiss.read_index(str(large / "index.faiss"))
    for query in vectors(5, seed=6):
        compared = rows[whole.search((query / np.abs(query).max())[None], 50 * facts["depth"])[1][0]]
        nearest = compared[np.argsort(-(made[compared] @ query))][:50].tolist()
        assert index.search(query[None], 50).items[0].tolist() == nearest


@pytest.mark.timeout(120)
def test_a_part_that_no_thread_begins_is_searched_all_the_same(large: Path) -> None:
    query, index = vectors(1, seed=6), open_index(large)
    wanted = index.search(query, 50).items.tolist()
    # A fork has no thread but its own.
    fork = multiprocessing.get_context("fork")
    found = fork.SimpleQueue()
    process = fork.Process(target=lambda: found.put(index.search(query, 50).items.tolist()))
    process.start()
    assert found.get() == wanted
    process.join()


@pytest.mark.parametrize("rows", [40, 3_000])
def test_a_query_of_zeros_and_a_list_longer_than_a_scan_are_answered(tmp_path: Path, rows: int) -> None:
    made = vectors(rows)
    build_index(made, made[:5], ItemIndex(exact_up_to=0), 60, tmp_path, 1)
    found = open_index(tmp_path).search(np.stack([made[0], np.zeros_like(made[0])]), 60)
    assert found.items.shape == (2, 60)
    assert found.items[0, 0] == 0
    assert ((found.items[0] >= 0).sum(), len(set(found.items[1].tolist()) - {-1})) == (min(rows, 60), min(rows, 60))
    assert open_index(tmp_path).search(made[:0], 60).items.shape == (0, 60)


def test_declared_probes_are_kept_and_too_few_of_them_lose_answers(tmp_path: Path) -> None:
    made, queries = vectors(3_000), vectors(50, seed=6)
    build_index(made, queries, ItemIndex(exact_up_to=0, scan_up_to=0, probes=1, lists=100), 50, tmp_path, 1)
    assert read_json(tmp_path / "index.json")["probes"] == 1
    assert index_recall(open_index(tmp_path), ExactIndex(made), queries, 50) < 0.9


def test_a_list_longer_than_the_index_is_padded(tmp_path: Path) -> None:
    made = vectors(40)
    build_index(made, made, ItemIndex(exact_up_to=0, scan_up_to=0, lists=4, probes=4), 60, tmp_path, 1)
    found = open_index(tmp_path).search(made[:2], 60)
    assert sorted(found.items[0, :40].tolist()) == list(range(40))
    assert (found.items[:, 40:] == -1).all()


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"index\.json: missing"):
        open_index(tmp_path)


def test_found_share_counts_items_and_not_places() -> None:
    assert mean_recall(np.array([[3, 1], [9, 9]]), np.array([[1, 3], [4, 5]])) == 0.5


def test_more_probes_than_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="probes 9 is above lists 3"):
        ItemIndex(lists=3, probes=9)


def test_a_user_of_whom_nothing_is_known_is_not_searched_for(tmp_path: Path) -> None:
    made = vectors(300)
    build_index(made, made[:5], ItemIndex(), 4, tmp_path, 1)
    asked: list[int] = []

    class Counted:
        approximate = False

        def search(self, queries: np.ndarray, most: int) -> RankedItems:
            asked.append(len(queries))
            return ExactIndex(made).search(queries, most)

    source = NearestItems(tmp_path, 1.0, 2)
    source.index = Counted()
    recent = np.array([[-1, -1], [7, -1], [-1, -1]], np.int32)
    queries = Queries(pl.Series([1, 2, 3]), recent, pl.DataFrame())
    found = source.retrieve(queries, 4)
    alone = NearestItems(tmp_path, 1.0, 2).retrieve(queries.slice(1, 2), 4)
    assert asked == [1]
    assert found.items.tolist() == [[-1] * 4, alone.items[0].tolist(), [-1] * 4]
    assert found.scores[1].tolist() == alone.scores[0].tolist() and np.isneginf(found.scores[[0, 2]]).all()
    assert source.retrieve(queries.slice(0, 1), 4).items.tolist() == [[-1] * 4]
    assert asked == [1]
