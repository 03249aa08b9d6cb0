"""Refresh of sources to newer days: new items are added, removed items are dropped, and nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from retrieval_log import Log, Row, days, declared

from shortlist.contracts import DataError
from shortlist.features.values.vectors import normalised
from shortlist.slates.retrieval.index import VECTORS
from shortlist.slates.retrieval.item_content import ItemContent
from shortlist.slates.retrieval.retriever import Retriever, fit_retrieval, refresh_retrieval
from shortlist.slates.retrieval.source import Queries
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import IntegrityError

TOWERS = {
    "kind": "two_tower", "embedding_dim": 8, "epochs": 15, "batch_size": 64, "sampled_negatives": 16,
    "item_columns": ["topic", "tags"], "item_numbers": ["price"],
}  # fmt: skip
SESSIONS = {
    "kind": "sequence", "embedding_dim": 8, "epochs": 15, "batch_events": 64, "sampled_negatives": 8,
    "learning_rate": 0.01, "last": 4, "item_columns": ["topic"], "item_numbers": ["price"],
}  # fmt: skip
COUNTED = {
    "popular": {"kind": "popular", "window_days": 1},
    "together": {"kind": "co_visitation", "shrinkage": 0.0},
    "near": {"kind": "item_vector", "column": "content"},
    "weights": {"kind": "ease", "regularization": 1.0},
    "factors": {"kind": "als", "factors": 4},
}
NEW = 100
"""An item that is new on the second day; its topic is that of the even items."""


def items(*ids: int) -> dict[str, Any]:
    """Even items have one topic, vector and tag, odd ones others."""
    return {
        "item_id": list(ids),
        "topic": ["even" if item % 2 == 0 else "odd" for item in ids],
        "tags": [["e", "both"] if item % 2 == 0 else ["o", "both"] for item in ids],
        "price": [1.0 + item % 3 for item in ids],
        "content": [[1.0, 0.0] if item % 2 == 0 else [0.0, 1.0] for item in ids],
    }


def first_day(seed: int = 1) -> list[Row]:
    """Users 0 to 19 take even items, the others odd ones; items 0 to 9. Item 10 is only listed."""
    random = np.random.default_rng(seed)
    return [
        (int(user), int(2 * random.integers(5) + (user >= 20)), 0, "home", 1)
        for user in np.repeat(np.arange(40), 8)
    ]  # fmt: skip


def later_day() -> list[Row]:
    """Even users take the new item, after one that they know."""
    return [(user, item, 1, "home", 1) for user in range(8) for item in (0, NEW)]


class Shop:
    """Sources that were fitted on the first day, and the log of both days."""

    def __init__(self, log: Log, folder: Path, **section: Any) -> None:
        self.folder = folder
        self._log = log
        table = log.write(first_day(), items=items(*range(11)))
        section = {"candidates": 3, "recent_items": 5} | section
        fit_retrieval(Retrieval.model_validate(section), declared(), table, days(0), folder / "fitted", 1)

    def refresh(self, item_table: dict[str, Any] | None = None) -> Retriever:
        table = self._log.write([*first_day(), *later_day()], items=item_table or items(*range(11), NEW))
        refresh_retrieval(self.folder / "fitted", declared(), table, self.folder / "refreshed", 1)
        return Retriever.open(self.folder / "refreshed")


def retrieve_ids(retriever: Retriever, *users: int) -> dict[str, list[list[int]]]:
    """Return the items of every source, by user."""
    user_ids = pl.Series(users, dtype=pl.Int64)
    rows_by_list = retriever.candidates_and_lists(
        Queries(user_ids, retriever.find_recent_items(user_ids), pl.DataFrame())
    )
    ids = retriever.catalogue.ids
    return {
        name: [[ids[int(row)] for row in line if row >= 0] for line in lists] for name, lists in rows_by_list.items()
    }  # fmt: skip


def test_refresh_refits_counting_sources(log: Log, tmp_path: Path) -> None:
    shop = Shop(log, tmp_path, sources=COUNTED, candidates=11)
    fitted_ids, refreshed_ids = retrieve_ids(Retriever.open(tmp_path / "fitted"), 0), retrieve_ids(shop.refresh(), 0)
    assert NEW not in {item for lists in fitted_ids.values() for item in lists[0]}
    assert refreshed_ids["popular"] == [[0, NEW]]  # of the newest day
    assert all(NEW in refreshed_ids[name][0] for name in ("together", "near", "weights", "factors", "all"))
    retriever = Retriever.open(tmp_path / "refreshed")
    assert (retriever.facts["last_day"], retriever.facts["items"]) == ("2026-03-02", 12)
    assert retriever.catalogue.ids[int(retriever.find_recent_items(pl.Series([0]))[0, 0])] == NEW


def test_what_nobody_took_yet_is_a_candidate_of_a_source_of_new_items(log: Log, tmp_path: Path) -> None:
    sources = {"popular": COUNTED["popular"], "new": {"kind": "newest", "min_items": 2}}
    shop = Shop(log, tmp_path, sources=sources, candidates=11)
    assert retrieve_ids(Retriever.open(tmp_path / "fitted"), 0)["new"] == [[10]]  # it is only listed
    refreshed_ids = retrieve_ids(shop.refresh(items(*range(11), NEW, NEW + 1)), 0)
    # The first day of the log shows what may be old; item 100 came on the second, item 101 is in the table alone.
    assert sorted(refreshed_ids["new"][0]) == [10, NEW, NEW + 1]


def test_two_towers_place_a_new_item_by_its_columns(log: Log, tmp_path: Path) -> None:
    shop = Shop(log, tmp_path, sources={"towers": TOWERS}, candidates=6)
    retriever = shop.refresh()
    even_list, odd_list = retrieve_ids(retriever, 3, 30)["towers"]
    assert NEW in even_list and NEW not in odd_list
    old, new = (np.load(tmp_path / folder / "sources/towers" / VECTORS) for folder in ("fitted", "refreshed"))
    assert np.array_equal(new[:11, :-1], old[:, :-1])  # nothing is learnt
    # Popularity is counted again: 336 positive rows, 8 of them of the new item, and 12 items.
    assert new[11, -1] == pytest.approx(0.1 * np.log(9 / (336 + 12)))


def test_item_content_reproduces_the_towers_column_vectors(log: Log, tmp_path: Path) -> None:
    Shop(log, tmp_path, sources={"towers": {**TOWERS, "sampled_negatives": 0}})
    folder = tmp_path / "fitted" / "sources" / "towers"
    # Item 10 was no positive and no negative, so nothing was learnt of its id: its vector is that of its columns alone.
    items_frame = Retriever.open(tmp_path / "fitted").catalogue.items
    of_columns = normalised(ItemContent.read(folder).vectors(items_frame[10:]))
    assert np.load(folder / VECTORS)[10:, :-1] == pytest.approx(of_columns, abs=1e-6)
    assert np.linalg.norm(of_columns) == pytest.approx(1)


def test_an_item_with_unknown_values_has_a_zero_vector(log: Log, tmp_path: Path) -> None:
    Shop(log, tmp_path, sources={"towers": TOWERS})
    content = ItemContent.read(tmp_path / "fitted" / "sources" / "towers")
    unknown_items = pl.DataFrame(
        {"topic": ["new topic"], "tags": [["new tag"]], "price": pl.Series([None], dtype=pl.Float64)}
    )
    assert not content.vectors(unknown_items).any()


def test_sequence_source_places_a_new_item_by_its_columns(log: Log, tmp_path: Path) -> None:
    shop = Shop(log, tmp_path, sources={"next": SESSIONS}, candidates=6)
    retriever = shop.refresh()
    old, new = (np.load(tmp_path / folder / "sources/next" / VECTORS) for folder in ("fitted", "refreshed"))
    assert np.array_equal(new[:11], old) and new[11].any()
    assert NEW in retrieve_ids(retriever, 9)["next"][0]  # whose session is of even items, all of the first day
    assert len(retrieve_ids(retriever, 0)["next"][0]) == 6  # whose newest event is the new item


def test_refresh_drops_an_unlisted_item_from_a_catalogue_of_listed_items(log: Log, tmp_path: Path) -> None:
    remaining_items = items(*range(1, 11), NEW)
    shop = Shop(log, tmp_path, sources=COUNTED, catalogue="listed", candidates=9)
    retriever = shop.refresh(remaining_items)
    assert 0 not in retriever.catalogue.ids
    assert all(0 not in line for lists in retrieve_ids(retriever, *range(40)).values() for line in lists)


def test_refresh_keeps_a_logged_item_in_a_catalogue_of_seen_items(log: Log, tmp_path: Path) -> None:
    shop = Shop(log, tmp_path, sources=COUNTED)
    assert 0 in shop.refresh(items(*range(1, 11), NEW)).catalogue.ids


def test_a_catalogue_that_lost_its_items_is_refused(log: Log, tmp_path: Path) -> None:
    shop = Shop(log, tmp_path, sources={"popular": COUNTED["popular"]}, catalogue="listed")
    with pytest.raises(DataError, match=r"candidates: 3, but the items' side tables name 2 items; declare at most 2"):
        shop.refresh(items(1, 2))
    assert not (tmp_path / "refreshed").exists()


def test_sources_that_were_changed_are_not_refreshed(log: Log, tmp_path: Path) -> None:
    shop = Shop(log, tmp_path, sources={"popular": COUNTED["popular"]})
    (tmp_path / "fitted" / "retrieval.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"retrieval\.json: changed after it was written"):
        shop.refresh()


def test_refresh_of_towers_without_item_content_requires_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"item_content\.json: missing; .* Train again"):
        ItemContent.read(tmp_path)


def test_listed_items_need_a_table() -> None:
    section = Retrieval.model_validate({"catalogue": "listed", "sources": {"popular": COUNTED["popular"]}})
    section.check(declared())
    with pytest.raises(ValueError, match="catalogue: listed, but no side table has the key 'item_id'"):
        section.check(declared(side_tables=[]))
