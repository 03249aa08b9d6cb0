from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from retrieval_log import Log, Row, days, declared

from shortlist.contracts import ShortlistError
from shortlist.slates.recommender import Recommender, SlateRequest
from shortlist.slates.release import open_release, write_release
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.slates.step import build_release, lists_digest
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import IntegrityError

NOW = datetime(2026, 3, 3, tzinfo=UTC)
SECTION = {"candidates": 3, "sources": {"popular": {"kind": "popular", "keys": ["country"], "min_positives": 1}}}
LOCAL = {"kind": "where", "name": "local", "keep": "topic = 'x' OR country = 'FR'"}


class Inputs:
    """Inputs of a release."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.sources, self.log, self.files = folder / "sources", log, folder / "files"

    def write(self, out: Path, filters: Any = None, ordering: Any = None) -> Path:
        sections = Filters.model_validate(filters or {}), Ordering.model_validate(ordering or {})
        assert write_release(self.sources, declared(), *sections, self.log, self.files, out) == 3
        return out


@pytest.fixture
def inputs(log: Log, tmp_path: Path) -> Inputs:
    rows: list[Row] = [(user, item, 0, "home", 1) for item, users in ((10, 3), (20, 2)) for user in range(users)]
    items = {
        "item_id": [10, 20, 30], "topic": ["x", "y", "x"], "tags": [[], [], []], "price": [1.0, 2.0, 3.0],
        "content": [None, None, None],
    }  # fmt: skip
    users = {"user_id": [0, 1, 2], "country": ["DE", "FR", None]}
    table = log.write([*rows, (7, 30, 0, "home", 1)], users=users, items=items)
    release_inputs = Inputs(tmp_path, log.folder)
    fit_retrieval(Retrieval.model_validate(SECTION), declared(), table, days(0), release_inputs.sources, 1)
    release_inputs.files.mkdir()
    (release_inputs.files / "denied.txt").write_text("20\n\n 10 \n")
    return release_inputs


def find_slate_items(stages: Recommender, user: int | None) -> list[int]:
    request = SlateRequest(id="r", user=user, k=3, now=NOW, context=stages.find_user_context(user))
    candidates = stages.find(request)
    return stages.slate(request, candidates, np.arange(candidates.rows.height, dtype=float)).items.to_list()


def test_a_release_is_opened_as_it_was_declared(inputs: Inputs, tmp_path: Path) -> None:
    rules = [LOCAL, {"kind": "deny", "path": "denied.txt"}]
    stages = open_release(inputs.write(tmp_path / "release", {"rules": rules}), declared())
    assert (stages.size, stages.sources, stages.item_type) == (3, ("popular",), pl.Int64())
    assert find_slate_items(stages, 1) == [30]  # 10 and 20 are denied
    assert {"slates.json", "lists/deny.parquet", "users.arrow", "sources/catalogue.arrow"} < set(stages.digests)


def test_columns_of_users_are_part_of_the_release(inputs: Inputs, tmp_path: Path) -> None:
    stages = open_release(inputs.write(tmp_path / "release", {"rules": [LOCAL]}), declared())
    assert stages.find_user_context(1) == {"country": "FR"}
    assert stages.find_user_context(2) == {"country": None}
    assert stages.find_user_context(99) == stages.find_user_context(None) == {}
    assert sorted(find_slate_items(stages, 1)) == [10, 20, 30]
    assert sorted(find_slate_items(stages, 0)) == sorted(find_slate_items(stages, 99)) == [10, 30]


@pytest.mark.parametrize("name", ["slates.json", "lists/deny.parquet", "sources/catalogue.arrow"])
def test_a_release_with_another_file_is_refused(inputs: Inputs, tmp_path: Path, name: str) -> None:
    release = inputs.write(tmp_path / "release", {"rules": [{"kind": "deny", "path": "denied.txt"}]})
    (release / name).unlink()  # linked: the sources' own file stays as it is
    (release / name).write_bytes(b"other")
    with pytest.raises(IntegrityError, match="changed after it was written"):
        open_release(release, declared())


@pytest.mark.parametrize(
    ("rule", "item", "is_refused"),
    [("deny", 20, True), ("deny", 30, False), ("allow", 30, True), ("allow", 20, False)],
)
def test_a_pinned_item_must_pass_the_lists(
    inputs: Inputs, tmp_path: Path, rule: str, item: int, is_refused: bool
) -> None:
    filters = {"rules": [{"kind": rule, "path": "denied.txt"}]}
    ordering = {"rules": [{"kind": "pin", "item": item, "place": 1}]}
    if not is_refused:
        inputs.write(tmp_path / "release", filters, ordering)
        return
    message = rf"item {item} is pinned, and filter '{rule}' \(denied.txt\) always removes it"
    with pytest.raises(ShortlistError, match=message):
        inputs.write(tmp_path / "release", filters, ordering)
    assert not (tmp_path / "release").exists()


@pytest.mark.parametrize(
    ("keep", "is_refused"),
    [
        ("price > 2", True),  # item 20 costs 2
        ("price > 1", False),
        ("price > 2 OR country = 'FR'", False),  # not for everybody
        ("price > 2 AND surface = 'home'", False),  # decided by request; no slate of another surface was promised
    ],
)
def test_a_pinned_item_must_pass_conditions_over_items(
    inputs: Inputs, tmp_path: Path, keep: str, is_refused: bool
) -> None:
    filters = {"rules": [{"kind": "where", "name": "fine", "keep": keep}]}
    ordering = {"rules": [{"kind": "pin", "item": 20, "place": 1}]}
    if not is_refused:
        inputs.write(tmp_path / "release", filters, ordering)
        return
    with pytest.raises(ShortlistError, match="item 20 is pinned, and filter 'fine' always removes it; leave one of"):
        inputs.write(tmp_path / "release", filters, ordering)
    # Out of stock at a refresh is no contradiction of what was released.
    sections = Filters.model_validate(filters), Ordering.model_validate(ordering)
    write_release(inputs.sources, declared(), *sections, inputs.log, None, tmp_path / "refreshed", refreshes="before")


def test_release_holds_histories_for_the_seen_filter(inputs: Inputs, tmp_path: Path) -> None:
    filters = {"rules": [{"kind": "seen", "window": "30d"}]}
    stages = open_release(inputs.write(tmp_path / "seen", filters), declared())
    past = stages.find_user_history(2)
    assert past is not None and (past.items.to_list(), past.positive.to_list()) == ([10], [True])
    assert stages.find_user_history(7).items.to_list() == [30]  # type: ignore[union-attr]
    assert stages.find_user_history(99) is stages.find_user_history(None) is None
    assert open_release(inputs.write(tmp_path / "none"), declared()).find_user_history(2) is None


def test_the_step_reads_lists_beside_the_log(inputs: Inputs, tmp_path: Path) -> None:
    filters = Filters.model_validate({"rules": [{"kind": "allow", "path": "denied.txt"}]})
    (inputs.files / "log.csv").touch()
    for location in (inputs.files, inputs.files / "log.csv"):
        out = tmp_path / location.name
        arguments = inputs.sources, declared(), filters, Ordering(), inputs.log, str(location), out
        assert build_release(*arguments) == 3
        assert sorted(find_slate_items(open_release(out / "release", declared()), 1)) == [10, 20]


def test_a_changed_list_has_another_digest(inputs: Inputs) -> None:
    filters = Filters.model_validate({"rules": [{"kind": "deny", "path": "denied.txt"}]})
    first_digest = lists_digest(filters, inputs.files)
    assert lists_digest(Filters(), inputs.files) == lists_digest(None, "") == ""
    (inputs.files / "denied.txt").write_text("30")
    assert lists_digest(filters, inputs.files) != first_digest
    (inputs.files / "denied.txt").unlink()
    with pytest.raises(ShortlistError, match=r"denied.txt: no such file; wanted a text file with one item a line"):
        lists_digest(filters, inputs.files)
