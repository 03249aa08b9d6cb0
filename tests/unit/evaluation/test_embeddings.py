from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shortlist.contracts import Files
from shortlist.evaluation.embeddings import EmbeddingNumbers, read_embedding_numbers
from shortlist.report.assembly import summary_of
from shortlist.report.page import RunPage
from shortlist.report.report import render
from shortlist.storage.artefacts import write_json

HASHED = {
    "user_hash": {"buckets": 1_000, "occupied": 632, "admitted": 200, "values": 999.2, "collision_rate": 0.3675},
    "page_hash": {"buckets": 10, "occupied": 10, "admitted": 10, "values": None, "collision_rate": None},
}
DLRM: dict[str, Any] = {
    "kind": "dlrm", "params": {"embedding_dim": 16}, "hashed": HASHED, "cached_rows": 5_000, "train_rows_per_s": 9.0,
    "history": [{"epoch": n, "validation_log_loss": 0.6 - n / 10, "cache_hit_rate": 0.25 + n / 4} for n in (1, 2)],
}  # fmt: skip
XGBOOST = {"kind": "xgboost", "params": {}, "hashed": {}, "cached_rows": None, "history": [], "train_rows_per_s": 9.0}


@pytest.fixture
def page(tmp_path: Path) -> RunPage:
    for name, record in (("xgboost", XGBOOST), ("dlrm", DLRM)):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / Files.MODEL, record)
    return RunPage(spec="demo", models={name: tmp_path / name for name in ("xgboost", "dlrm")})


def test_the_summary_has_the_buckets_and_the_last_epochs_hit_rate(page: RunPage) -> None:
    found = summary_of(page).embeddings
    assert found is not None
    assert found.model_dump()["hashed"] == HASHED
    assert (found.cached_rows, found.cache_hit_rate) == (5_000, 0.75)


def test_every_network_is_told_by_its_name_in_the_summary_and_on_the_page(page: RunPage, tmp_path: Path) -> None:
    few = {"item_hash": {"buckets": 50, "occupied": 20, "admitted": 20, "values": 24.0, "collision_rate": 0.125}}
    (tmp_path / "wide").mkdir()
    write_json(tmp_path / "wide" / Files.MODEL, {**DLRM, "kind": "wide_deep", "hashed": few, "cached_rows": None})
    both = page.model_copy(update={"models": {**page.models, "wide": tmp_path / "wide"}})
    summary = summary_of(both)
    found = {name: set(one.hashed) for name, one in summary.embeddings_by_model.items()}
    assert found == {"dlrm": set(HASHED), "wide": {"item_hash"}}
    assert summary.embeddings == summary.embeddings_by_model["dlrm"]  # as readers of earlier summaries know it
    words = " ".join(render(both).split())
    assert words.index("<b>dlrm</b>") < words.index("user_hash: 632 of") < words.index("<b>wide</b>")
    assert words.index("<b>wide</b>") < words.index("item_hash: 20 of 50 buckets are occupied, 20 learnt; 12.5% of")


def test_the_page_says_how_many_values_collide_and_which_table_is_full(page: RunPage) -> None:
    words = " ".join(render(page).split())
    assert "user_hash: 632 of 1 000 buckets are occupied, 200 learnt; 36.8% of about 999 values have no" in words
    assert "page_hash: 10 of 10 buckets are occupied, 10 learnt; the table is full." in words
    assert "The device held 5 000 embedding rows; 75.0% of the last epoch's look-ups found theirs there." in words


def test_a_run_without_hashes_and_cache_says_nothing_of_them() -> None:
    assert read_embedding_numbers({"trees": XGBOOST, "line": {"kind": "logistic"}}) == {}
    whole = read_embedding_numbers({"dlrm": {**DLRM, "cached_rows": None, "history": [{"epoch": 1}]}})["dlrm"]
    assert whole == EmbeddingNumbers(hashed=HASHED, cached_rows=None, cache_hit_rate=None)  # type: ignore[arg-type]
