"""Learning the order of a user's rows: it ranks them better, and refuses lists without an order."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import models  # noqa: F401 - says how OpenMP threads wait
from models.objectives import ListNumbers, list_lengths, sorted_by_list
from shortlist.contracts import Columns, DataError, Files
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.ranking.ranker import Ranker
from shortlist.ranking.registry import kind_of
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter

DAYS = [date(2026, 1, 5) + timedelta(days=number) for number in range(4)]
USERS, ROWS = 60, 1_800
FEATURES = ["liking", "taste"]
STUMPS = {"rounds": 8, "learning_rate": 0.3}
TREES = {
    "xgboost": {**STUMPS, "max_depth": 1}, "lightgbm": {**STUMPS, "num_leaves": 2}, "catboost": {**STUMPS, "depth": 1},
}  # fmt: skip
"""Few stumps: their first splits show what the objective rewards."""
SMALL = {"embedding_dim": 4, "batch_size": 300, "epochs": 5, "patience": 5, "learning_rate": 0.02}
NETWORKS = {
    "dlrm": {**SMALL, "bottom_mlp": [8], "top_mlp": [8]},
    "dcn": {**SMALL, "cross_layers": 1, "cross_rank": None, "deep_mlp": [8]},
    "wide_deep": {**SMALL, "deep_mlp": [8]},
    "finalnet": {**SMALL, "mlp": [8]},
    "din": {**SMALL, "bottom_mlp": [8], "top_mlp": [8], "history": "past", "target": "item_id", "attention_mlp": [8]},
}
KINDS = {**TREES, **NETWORKS}


ITEMS, LAST = 5, 3
ATTENDED = [
    {"name": "item_id", "kind": "id", "size": ITEMS},
    {"name": "past", "kind": "ids", "size": ITEMS, "events": LAST},
]


def attended(rows: int) -> dict[str, pl.Series]:
    """Return what `din` needs besides: an item and past ones, which say nothing of the label."""
    random = np.random.default_rng(7)
    past = [random.integers(1, ITEMS, length).tolist() for length in random.integers(0, LAST + 1, rows)]
    item = pl.Series(random.integers(1, ITEMS, rows), dtype=pl.UInt32)
    return {"item_id": item, "past": pl.Series(past, dtype=pl.List(pl.UInt32))}


def write_table(folder: Path, rows_of_user: int = ROWS // USERS) -> DayTable:
    """A log in which most of the label is the user's liking of everything, and some the user's taste for the item."""
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=10_000)
    random = np.random.default_rng(5)
    likings = random.normal(0, 3, USERS)
    for number, day in enumerate(DAYS):
        user = np.arange(USERS * rows_of_user) % USERS
        taste = random.normal(0, 1, len(user))
        chance = 1 / (1 + np.exp(-(likings[user] + taste)))
        writer.append(
            pl.DataFrame(
                {
                    Columns.LABEL: pl.Series((random.random(len(user)) < chance).astype(np.int8)),
                    Columns.TIME: pl.Series(
                        [datetime.combine(day, time(), UTC)] * len(user), dtype=pl.Datetime("us", "UTC")
                    ),
                    Columns.DAY: [day] * len(user),
                    Columns.IMPRESSION: np.arange(len(user)) + number * len(user),
                    Columns.USER: user,
                    "liking": pl.Series(likings[user], dtype=pl.Float32),
                    "taste": pl.Series(taste, dtype=pl.Float32),
                    **attended(len(user)),
                }
            )
        )
    names = [str(day) for day in DAYS]
    split = {"train": names[:2], "validation": names[2:3], "test": names[3:]}
    columns = [{"name": name, "kind": "dense", "size": None, "width": None} for name in FEATURES]
    return writer.close({"columns": columns + ATTENDED, "split": split})


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> DayTable:
    """The table."""
    return write_table(tmp_path_factory.mktemp("lists") / "table")


def fitted(table: DayTable, kind: str, objective: str, **changed: Any) -> Ranker[Any]:
    declared = {"kind": kind, "features": FEATURES, **KINDS[kind], **changed}
    calibration = "none" if objective == "pointwise" else "platt"
    section = kind_of(kind).section.model_validate({**declared, "objective": objective, "calibration": calibration})
    ranker: Ranker[Any] = kind_of(kind).load("ranker")(section)
    ranker.fit(table, Runtime(engine="cpu", seed=1))
    return ranker


def gauc(ranker: Ranker[Any], rows: pl.DataFrame) -> float:
    """Return the AUC per user, weighted by rows; users of one class are left out."""
    scored = rows.with_columns(score=pl.Series(ranker.predict(rows).astype(float)))
    users = [rows for _, rows in scored.group_by(Columns.USER) if rows[Columns.LABEL].n_unique() == 2]
    aucs = [auc(rows[Columns.LABEL].to_numpy().astype(float), rows["score"].to_numpy()) for rows in users]
    return float(np.average(aucs, weights=[rows.height for rows in users]))


@pytest.mark.parametrize("kind", TREES)
def test_learning_the_order_ranks_a_users_rows_better(lists: DayTable, kind: str) -> None:
    rows = pl.concat([frame for day, frame in lists.frames() if day == DAYS[-1]])
    by_row, by_pair, by_list = (
        gauc(fitted(lists, kind, objective), rows) for objective in ("pointwise", "pairwise", "listwise")
    )
    assert min(by_pair, by_list) > by_row + 0.02


def write_misleading_table(folder: Path) -> DayTable:
    """A log in which users in a good mood see high prices: between users a price goes with clicks, within one against.

    No feature tells the mood, so a pointwise model learns the opposite effect of the price.
    """
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=10_000)
    random = np.random.default_rng(6)
    for number, day in enumerate(DAYS):
        user, mood = np.arange(ROWS) % USERS, random.normal(0, 1.5, USERS)
        price, taste = mood[user] + random.normal(0, 1, ROWS), random.normal(0, 1, ROWS)
        chance = 1 / (1 + np.exp(-(2 * mood[user] - price + taste)))
        time_of_day = pl.Series([datetime.combine(day, time(), UTC)] * ROWS, dtype=pl.Datetime("us", "UTC"))
        writer.append(
            pl.DataFrame(
                {
                    Columns.LABEL: pl.Series((random.random(ROWS) < chance).astype(np.int8)),
                    Columns.TIME: time_of_day,
                    Columns.DAY: [day] * ROWS,
                    Columns.IMPRESSION: np.arange(ROWS) + number * ROWS,
                    Columns.USER: user,
                    "price": pl.Series(price, dtype=pl.Float32),
                    "taste": pl.Series(taste, dtype=pl.Float32),
                    **attended(len(user)),
                }
            )
        )
    names = [str(day) for day in DAYS]
    split = {"train": names[:2], "validation": names[2:3], "test": names[3:]}
    columns = [{"name": name, "kind": "dense", "size": None, "width": None} for name in ("price", "taste")]
    return writer.close({"columns": columns + ATTENDED, "split": split})


@pytest.mark.parametrize("kind", ["dlrm", *(pytest.param(kind, marks=pytest.mark.long) for kind in [*NETWORKS][1:])])
def test_networks_learn_the_order_within_users(tmp_path: Path, kind: str) -> None:
    table = write_misleading_table(tmp_path / "table")
    rows = pl.concat([frame for day, frame in table.frames() if day == DAYS[-1]])
    learnt = {
        objective: fitted(table, kind, objective, features=["price", "taste"])
        for objective in ("pointwise", "pairwise", "listwise")
    }
    by_row, by_pair, by_list = (gauc(ranker, rows) for ranker in learnt.values())
    assert min(by_pair, by_list) > by_row + 0.03
    record = learnt["listwise"].record
    best = record.history[(record.best_epoch or 0) - 1]
    orders = [line["validation_ndcg_at_10"] or 0 for line in record.history]
    assert best["validation_ndcg_at_10"] == max(orders)
    assert [line for line in record.history if "validation_log_loss" in line] == [best]


@pytest.mark.parametrize("kind", KINDS)
def test_calibrated_scores_of_an_order_are_rates(lists: DayTable, kind: str) -> None:
    rows = pl.concat([frame for day, frame in lists.frames() if day == DAYS[-1]])
    # What is the same in all rows of a list is not learnt: trees leave it out, a network keeps what it drew.
    ranker = fitted(lists, kind, "listwise", features=FEATURES if kind in TREES else ["taste"])
    assert abs(ranker.predict(rows).mean() - rows[Columns.LABEL].mean()) < 0.05  # type: ignore[operator] # a number


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_one_row_are_refused(tmp_path: Path, kind: str) -> None:
    table = write_table(tmp_path / "table", rows_of_user=1)
    with pytest.raises(DataError, match=r"listwise: no user has both .* \(every list has one row\); there is"):
        fitted(table, kind, "listwise")


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_without_users_is_refused(kind: str) -> None:
    section = kind_of(kind).section.model_validate(
        {"kind": kind, "features": ["*"], **KINDS[kind], "objective": "pairwise", "calibration": "platt"}
    )
    data_section = Data.model_validate(
        {
            "source": {"kind": "files"}, "label": "clicked", "clock": {"kind": "column", "column": "time", "unit": "s"},
            "columns": [{"name": "item_id", "type": "integer"}, {"name": "clicked", "type": "integer"}],
        }
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=r"models.trees.objective: pairwise compares the rows of a user or of a slate, and"
    ):
        section.check_data("trees", data_section)


@pytest.mark.parametrize("objective", ["pointwise", "pairwise"])
@pytest.mark.parametrize("kind", [*TREES, "dlrm"])
def test_scores_from_before_a_refit_are_kept_row_by_row(lists: DayTable, kind: str, objective: str) -> None:
    once, refitted = (fitted(lists, kind, objective, refit=refit) for refit in (False, True))
    rows = pl.concat([frame for day, frame in lists.frames() if day == DAYS[2]])
    assert refitted.held_out is not None
    np.testing.assert_allclose(refitted.held_out, once.predict(rows), atol=1e-6)
    assert not np.allclose(refitted.predict(rows), once.predict(rows), atol=1e-6)  # which were learnt since


def slated(table: DayTable, folder: Path, rows_of_slate: int) -> DayTable:
    """The same table with slates of neighbouring rows, which are of different users."""
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=10_000)
    for _, frame in table.frames():
        writer.append(frame.with_columns((pl.int_range(pl.len()) // rows_of_slate).alias(Columns.SLATE)))
    return writer.close(table.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_where_slates_are_declared_they_are_the_lists(lists: DayTable, tmp_path: Path, kind: str) -> None:
    # Rows of one slate are of different users, so their liking is what puts them in order, not the taste alone.
    ranker = fitted(slated(lists, tmp_path / "ten", 10), kind, "pairwise")
    rows = pl.concat([frame for day, frame in lists.frames() if day == DAYS[-1]])
    scores = ranker.predict(rows)
    assert np.corrcoef(scores, rows["liking"].to_numpy())[0, 1] > 0.7
    with pytest.raises(DataError, match=r"pairwise: no slate has both .* \(every list has one row\); there is"):
        fitted(slated(lists, tmp_path / "one", 1), kind, "pairwise")


def test_lists_of_files_are_numbered_consecutively(lists: DayTable) -> None:
    learning = LearningTable(lists, features_matching(lists, ("taste",)), (Columns.USER,))
    frame = sorted_by_list(pl.DataFrame({Columns.USER: [7, 3, 7, 3, 9]}))
    numbers = ListNumbers(learning)
    assert list_lengths(frame).tolist() == [2, 2, 1]
    assert [numbers.number_rows(frame).tolist() for _ in range(2)] == [[0, 0, 1, 1, 2], [3, 3, 4, 4, 5]]  # type: ignore[union-attr] # order is learnt
