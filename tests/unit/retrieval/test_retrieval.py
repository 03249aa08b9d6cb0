from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
from retrieval_log import Log, Row, days, declared

from shortlist.contracts import DataError
from shortlist.data.world.click_model import ClickModel
from shortlist.data.world.synthetic_world import build_world
from shortlist.evaluation.gates.retrieval import (
    EVALUATION,
    EvaluatedList,
    RetrievalEvaluation,
    RetrievalLimits,
    RetrievalMeasures,
    StageNumbers,
    measure_retrieval,
    retrieval_gate,
)
from shortlist.evaluation.metrics.intervals import bootstrap_mean
from shortlist.report.plots import funnel_plot
from shortlist.report.summary import stage_lines
from shortlist.slates.retrieval.evaluate import evaluate_retrieval
from shortlist.slates.retrieval.retriever import Retriever, build_catalogue, fit_retrieval
from shortlist.slates.retrieval.source import FitInputs, Queries, RankedItems, Source, SourceKind, pad_lists
from shortlist.slates.retrieval.sources.registry import SOURCE_KINDS
from shortlist.slates.retrieval.step import RELEASE, build_retrieval
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.tables import DayTable

SOURCES: dict[str, Any] = {"popular": {"kind": "popular"}, "together": {"kind": "co_visitation", "shrinkage": 0.0}}


def section(**changes: Any) -> Retrieval:
    return Retrieval.model_validate({"candidates": 2, "sources": SOURCES} | changes)


def click(user: int, item: int, day: int, label: int = 1) -> Row:
    return (user, item, day, "home", label)


ROWS = [
    # Popular: 10 (3 times), then 20 and 30 (twice). Neighbours of 30: 40. Item 50 is only seen, never taken.
    *(click(user, 10, 0) for user in (1, 2, 3)),
    *(click(user, 20, 0) for user in (1, 2)),
    *(click(user, item, 0) for user in (4, 5) for item in (30, 40)),
    click(5, 50, 0, label=0),
    click(6, 30, 1),
    # The test day: user 6 takes 40 and 10, user 7, whom nobody knows, takes 50 and the new item 60.
    click(6, 40, 2),
    click(6, 10, 2),
    click(7, 50, 2),
    click(7, 60, 2),
    click(8, 10, 2, label=0),  # takes nothing, and is not evaluated
]


def write(log: Log) -> DayTable:
    item_table = {"item_id": [10, 20, 30, 40, 50], "topic": ["x"] * 5, "tags": [[]] * 5, "price": [1.0] * 5}
    return log.write(ROWS, items={**item_table, "content": [None] * 5})


def fitted(log: Log, folder: Path, **changes: Any) -> tuple[DayTable, Retriever]:
    table = write(log)
    fit_retrieval(section(**changes), declared(), table, days(0, 1), folder, 1)
    return table, Retriever.open(folder)


def test_fused_candidates_have_their_ranks_in_every_source(log: Log, tmp_path: Path) -> None:
    _, retriever = fitted(log, tmp_path / "release", candidates=4)
    users = pl.Series([6], dtype=pl.Int64)
    candidates = retriever.candidates(Queries(users, retriever.find_recent_items(users), pl.DataFrame()))
    ids = retriever.catalogue.ids.to_numpy()[candidates.items[0]]
    # Popular gives 10, 30, 20, 40 (3, 3, 2, 2 positives); together gives 40, the neighbour of 30.
    assert ids.tolist() == [40, 10, 30, 20]
    assert candidates.ranks[0].tolist() == [[4, 1], [1, 0], [2, 0], [3, 0]]


def test_recent_items_are_the_newest_first(log: Log, tmp_path: Path) -> None:
    _, retriever = fitted(log, tmp_path / "release", recent_items=2)
    rows = retriever.find_recent_items(pl.Series([1, 6, 99], dtype=pl.Int64))
    ids = [[retriever.catalogue.ids[int(row)] for row in line if row >= 0] for line in rows]
    assert ids == [[20, 10], [30], []]


def test_a_changed_file_is_refused(log: Log, tmp_path: Path) -> None:
    fitted(log, tmp_path / "release")
    path = tmp_path / "release" / "sources" / "popular" / "items.npy"
    array = np.load(path)
    np.save(path, array[:, ::-1])
    with pytest.raises(IntegrityError, match=r"items\.npy: changed after it was written"):
        Retriever.open(tmp_path / "release")


def test_more_candidates_than_items_are_refused(log: Log, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"retrieval\.candidates: 9, but .* name 5 items; declare at most 5"):
        fitted(log, tmp_path / "release", candidates=9)
    assert not (tmp_path / "release").exists()


def test_a_source_that_cannot_learn_is_named(log: Log, tmp_path: Path) -> None:
    table = write(log)
    sources = {"near": {"kind": "item_vector", "column": "content"}}
    with pytest.raises(DataError, match=r"retrieval\.sources\.near: no item of the catalogue has a vector"):
        fit_retrieval(section(sources=sources), declared(), table, days(0, 1), tmp_path / "release", 1)


def test_a_generated_manifest_holds_no_code(log: Log, tmp_path: Path) -> None:
    fitted(log, tmp_path / "release")
    suffixes = {path.suffix for path in (tmp_path / "release").rglob("*") if path.is_file()}
    assert suffixes == {".npy", ".arrow", ".parquet", ".json"}


def test_the_test_days_are_measured_by_user(log: Log, tmp_path: Path) -> None:
    table, retriever = fitted(log, tmp_path / "release")
    evaluate_retrieval(retriever, declared(), table, days(2), tmp_path / EVALUATION, 1)
    lines = pl.read_parquet(tmp_path / EVALUATION / "per_user.parquet")
    recall = {name: lines.filter(pl.col("list") == name)["recall"].to_list() for name in ("popular", "together", "all")}
    # User 6 took 40 and 10. Popular gives 10 and 30, together 40, all 10 and 40. User 7 took 50 and 60, given by none.
    assert recall == {"popular": [0.5, 0.0], "together": [0.5, 0.0], "all": [1.0, 0.0]}
    facts = json.loads((tmp_path / EVALUATION / "evaluation.json").read_text())
    assert (facts["users"], facts["catalogue"], facts["candidates"]) == (2, 5, 2)
    coverage = {evaluated_list["name"]: evaluated_list["coverage"] for evaluated_list in facts["lists"]}
    assert coverage == {"popular": 2 / 5, "together": 1 / 5, "all": 3 / 5}


def test_a_step_fits_on_the_days_before_the_test_days_alone(log: Log, tmp_path: Path) -> None:
    write(log)
    data = declared(split={"warmup_days": 0, "validation_days": 1, "test_days": 1})
    assert build_retrieval(section(), data, log.folder, tmp_path / "out", 1) == 11  # rows of the first two days
    facts = json.loads((tmp_path / "out" / RELEASE / "retrieval.json").read_text())
    assert (facts["first_day"], facts["last_day"]) == ("2026-03-01", "2026-03-02")
    measures_of_few = measure_retrieval(tmp_path / "out" / EVALUATION, 0.95, 50, 1)
    assert measures_of_few is not None and measures_of_few.union.recall is None  # two users are too few for an interval


def test_intervals_of_a_mean_narrow_with_users() -> None:
    values = np.tile([0.0, 1.0], 50)
    interval_of_few, interval_of_many = (
        bootstrap_mean(values[:20], 0.95, 400, 1),
        bootstrap_mean(np.tile(values, 20), 0.95, 400, 1),
    )
    assert interval_of_few.low < 0.5 < interval_of_few.high
    assert interval_of_many.high - interval_of_many.low < 0.25 * (interval_of_few.high - interval_of_few.low)
    error = 0.5 / len(values[:20]) ** 0.5
    assert interval_of_few.high - interval_of_few.low == pytest.approx(2 * 1.96 * error, rel=0.25)


def measures(recall: float | None, index_recall: float | None = None) -> RetrievalMeasures:
    interval = None if recall is None else {"low": recall - 0.05, "value": recall, "high": recall + 0.05}
    stage = StageNumbers.model_validate(
        {"source": None, "items": 500, "recall": interval, "ndcg_at_10": interval, "hit_rate_at_10": interval,
         "reciprocal_rank": interval, "novelty": 9.5, "coverage": 0.4}
    )  # fmt: skip
    lists = (EvaluatedList(name="towers", coverage=0.2, index="approximate", index_recall=index_recall),)
    evaluation = RetrievalEvaluation(catalogue=9_000, candidates=500, users=70, test_days=("2026-03-02",), lists=lists)
    source = stage.model_copy(update={"source": "towers"})
    return RetrievalMeasures(evaluation=evaluation, stages=(source, stage))


@pytest.mark.parametrize(
    ("measured", "holds"),
    [
        (measures(0.6, 0.99), ""),
        (None, "the retrieval was not evaluated"),
        (measures(None), "recall cannot be measured: 70 users with a positive test row, wanted 10 or more"),
        (measures(0.5, 0.99), "recall 0.4500 < 0.5000 (min_recall; lower bound)"),
        (measures(0.6, 0.97), "index of source 'towers' finds 0.9700 of the exact answers < 0.9800"),
    ],
)
def test_the_gate_holds(measured: RetrievalMeasures | None, holds: str) -> None:
    gate_result = retrieval_gate(measured, RetrievalLimits(min_recall=0.5))
    assert gate_result.passed == (not holds)
    assert holds in gate_result.reason


def test_stages_are_in_the_summary_and_in_the_plot() -> None:
    lines = stage_lines(measures(0.6))
    assert [(line.stage, line.source) for line in lines] == [("retrieval", "towers"), ("retrieval", None)]
    assert (lines[1].recall, lines[1].recall_low, lines[1].items) == (0.6, pytest.approx(0.55), 500)
    assert stage_lines(None) == ()
    ordering_stage = measures(0.6).stages[1].model_copy(update={"stage": "ordering", "items": 10})
    plot = funnel_plot(measures(0.6), [ordering_stage])
    assert plot is not None and "all sources" in plot.svg and "ordering" in plot.svg
    assert funnel_plot(measures(None)) is None


WORLD = GeneratedSource(kind="generated", rows=20_000, users=300, items=200, days=6, taste=8.0)


def test_expected_clicks_are_the_planted_probabilities() -> None:
    truth = ClickModel.calibrate(WORLD, build_world(WORLD))
    user = np.array([4])
    clicks_of_one_context = truth.expected_clicks(user, np.full(1, -1), np.array([-0.5]), 3)
    two = truth.expected_clicks(user, np.full(1, -1), np.array([0.8]), 3)
    clicks_of_two_contexts = truth.expected_clicks(user, np.full(1, -1), np.array([-0.5, 0.8]), 3)
    assert clicks_of_two_contexts == pytest.approx((clicks_of_one_context + two) / 2)
    odds = np.log(two / (1 - two)) - np.log(clicks_of_one_context / (1 - clicks_of_one_context))
    assert odds == pytest.approx(np.full((1, 200), 1.3 * truth.scale))


class Newest(SourceKind):
    """Items with the highest ids: a source kind defined in this file."""

    kind: Literal["newest"]
    """The newest items."""

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        np.save(folder / "rows.npy", np.arange(inputs.catalogue.size, dtype=np.int32)[::-1])

    def load(self, folder: Path) -> NewestItems:
        return NewestItems(np.load(folder / "rows.npy"))


class NewestItems(Source):
    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def retrieve(self, queries: Queries, max_items: int) -> RankedItems:
        rows = np.tile(self._rows[:max_items], (queries.size, 1))
        return pad_lists(
            rows, np.linspace(1, 0, rows.shape[1], dtype=np.float32)[None].repeat(queries.size, 0), max_items
        )


def test_a_registered_source_kind_is_fitted_loaded_and_queried(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCE_KINDS, "newest", Newest)
    _, retriever = fitted(log, tmp_path / "release", sources={"latest": {"kind": "newest", "max_items": 1}})
    users = pl.Series([6], dtype=pl.Int64)
    candidates = retriever.candidates(Queries(users, retriever.find_recent_items(users), pl.DataFrame()))
    assert [retriever.catalogue.ids[int(row)] for row in candidates.items[0] if row >= 0] == [50]
    assert candidates.sources == ("latest",)


def test_retrieval_needs_a_user_and_an_item() -> None:
    data: Data = declared(user=None)
    with pytest.raises(ValueError, match=r"retrieval: data\.user names no column"):
        section().check(data)
    with pytest.raises(ValueError, match="'all' is what reports call another list"):
        section(sources={"all": {"kind": "popular"}})
    with pytest.raises(ValueError, match=r"retrieval\.sources\.popular: 'sirface' is no column"):
        section(sources={"popular": {"kind": "popular", "keys": ["sirface"]}}).check(declared())


def test_items_have_the_newest_values_of_their_columns_in_the_fitted_days(tmp_path: Path) -> None:
    data = declared()
    rows = [
        (1, 10, 0, "home", 0),
        (1, 10, 1, "feed", 1),
        (2, 11, 0, "feed", 1),
        (2, 11, 0, "search", 0),
        (3, 10, 2, "late", 0),
    ]
    table = Log(tmp_path / "log").write(rows)
    catalogue = build_catalogue(data, table, days(0, 1), "seen", ("surface",))
    assert dict(catalogue.items.select("item_id", "surface").rows()) == {10: "feed", 11: "search"}
    everything = build_catalogue(data, table, days(0, 1, 2), "listed", ("surface",))
    assert dict(everything.items.select("item_id", "surface").rows())[10] == "late"
