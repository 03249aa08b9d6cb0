"""Replays of what a release shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from monitoring.reference import shown_slates
from shortlist.contracts import Columns
from shortlist.slates.recommender import SlateRequest
from shortlist.spec.load import load_spec

ROOT = Path(__file__).parents[3]
DAYS = (date(2026, 1, 4), date(2026, 1, 5))
ITEMS = pl.Series("item_id", [7, 8])


class ScorerOfLengths:
    """Scores items by the columns that they have of their own, as the exported model would read them."""

    opened: int = 0

    def __init__(
        self, model: Path, views: object, *, item_values: Callable[[pl.Series], Mapping[str, pl.Series]]
    ) -> None:
        self._item_values = item_values
        ScorerOfLengths.opened += 1

    def score_all(self, requests: Sequence[SlateRequest], items: Sequence[pl.Series]) -> list[Any]:
        return [(self._item_values(candidates)["duration"].to_numpy(), {}) for candidates in items]


def test_a_replay_reads_the_items_own_columns_like_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shown_slates, "PairScorer", ScorerOfLengths)
    monkeypatch.setattr(shown_slates.ViewIndex, "read", lambda folder: None)
    data = load_spec(ROOT / "pipelines/specs/demo.yaml").data
    stages = SimpleNamespace(
        candidates=2, size=2, window=None, retriever=SimpleNamespace(section=SimpleNamespace(context=())),
        item_values=lambda items: {"duration": pl.Series(items * 10.0)}, find_user_context=lambda user: {},
        find_all=lambda requests: [SimpleNamespace(items=ITEMS) for _ in requests],
        slate=lambda request, candidates, scores, further: SimpleNamespace(items=ITEMS, scores=np.asarray(scores)),
    )  # fmt: skip

    def scan(days: frozenset[date]) -> pl.LazyFrame:
        (day,) = days
        moment = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        return pl.LazyFrame({"user_id": [1], "request_id": [day.day], Columns.TIME: [moment]})

    replay = shown_slates.SlateReplay(stages, data, SimpleNamespace(scan=scan), tmp_path, 0)  # type: ignore[arg-type]
    rows = replay.show({"trees": tmp_path}, DAYS)["trees"]
    assert rows.select("item_id", "score").rows() == [(7, 70.0), (8, 80.0)] * 2
    assert ScorerOfLengths.opened == 1  # for all days
