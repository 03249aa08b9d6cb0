from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shortlist.contracts import Files
from shortlist.evaluation.metrics.embeddings import EmbeddingNumbers, read_embedding_numbers
from shortlist.report.assembly import build_summary
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
    embeddings = build_summary(page).embeddings
    assert embeddings is not None
    assert embeddings.model_dump()["hashed"] == HASHED
    assert (embeddings.cached_rows, embeddings.cache_hit_rate) == (5_000, 0.75)


def test_summary_and_page_name_every_network(page: RunPage, tmp_path: Path) -> None:
    hashed_numbers = {
        "item_hash": {"buckets": 50, "occupied": 20, "admitted": 20, "values": 24.0, "collision_rate": 0.125}
    }
    (tmp_path / "wide").mkdir()
    write_json(
        tmp_path / "wide" / Files.MODEL, {**DLRM, "kind": "wide_deep", "hashed": hashed_numbers, "cached_rows": None}
    )
    page_of_two = page.model_copy(update={"models": {**page.models, "wide": tmp_path / "wide"}})
    summary = build_summary(page_of_two)
    features_by_model = {name: set(numbers.hashed) for name, numbers in summary.embeddings_by_model.items()}
    assert features_by_model == {"dlrm": set(HASHED), "wide": {"item_hash"}}
    assert summary.embeddings == summary.embeddings_by_model["dlrm"]  # as readers of earlier summaries know it
    text = " ".join(render(page_of_two).split())
    assert text.index("<b>dlrm</b>") < text.index("user_hash: 632 of") < text.index("<b>wide</b>")
    assert text.index("<b>wide</b>") < text.index("item_hash: 20 of 50 buckets are occupied, 20 learnt; 12.5% of")


def test_the_page_says_what_weights_of_rows_leave(page: RunPage, tmp_path: Path) -> None:
    weighting = {"declared": {"propensity": True}, "effective_rows": 1_234.4, "largest": 17.26}
    for declared, is_shown in ((weighting, True), ({**weighting, "declared": None}, False)):
        write_json(
            tmp_path / "xgboost" / Files.MODEL,
            {**XGBOOST, "params": {"rounds": 3}, "train_rows": 4_000, "weighting": declared},
        )
        text = " ".join(render(page).split())
        assert ("as much as 1 234 rows of equal weight, 30.9% of 4 000; the largest weight is 17.3" in text) == is_shown


def test_page_shows_hash_collisions_and_full_tables(page: RunPage) -> None:
    text = " ".join(render(page).split())
    assert "user_hash: 632 of 1 000 buckets are occupied, 200 learnt; 36.8% of about 999 values share a bucket" in text
    assert "page_hash: 10 of 10 buckets are occupied, 10 learnt; the table is full." in text
    held = "The device held 5 000 embedding rows; 75.0% of the last epoch's look-ups found their row on the device."
    assert held in text


def test_summary_has_no_embeddings_without_hashing_and_cache() -> None:
    assert read_embedding_numbers({"trees": XGBOOST, "line": {"kind": "logistic"}}) == {}
    whole = read_embedding_numbers({"dlrm": {**DLRM, "cached_rows": None, "history": [{"epoch": 1}]}})["dlrm"]
    assert whole == EmbeddingNumbers(hashed=HASHED, cached_rows=None, cache_hit_rate=None)  # type: ignore[arg-type]
