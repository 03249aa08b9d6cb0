"""The reference of a training, checked by hand on a log of a few rows per day."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from monitoring.drift.drift import find_drift
from monitoring.reference import model_quality, reference_log
from monitoring.reference.distributions import Bins
from monitoring.reference.reference import Reference, build_reference
from monitoring.reference.reference_parts import ColumnReference, ShownReference
from monitoring.windows.known_columns import SLATE_SIZE
from shortlist.contracts import Columns, DataError, Files
from shortlist.features.fits.fit import fit
from shortlist.serving.traffic.sessions import Sessions
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.runtime import Runtime
from shortlist.storage import artefacts
from shortlist.storage.artefacts import IntegrityError, write_json, write_manifest
from shortlist.storage.tables import DayTableWriter

DAYS = [date(2026, 3, 2) + timedelta(days=number) for number in range(5)]  # warm-up, training twice, validation, test
DECLARED: dict[str, Any] = {
    "source": {"kind": "files"},
    "columns": [
        {"name": "user_id", "type": "integer"},
        {"name": "item_id", "type": "integer"},
        {"name": "page", "type": "string"},
        {"name": "price", "type": "number"},
        {"name": "words", "type": "tags"},
        {"name": "version", "type": "integer"},
        {"name": "seconds", "type": "number", "known": "after"},
        {"name": "clicked", "type": "integer"},
    ],
    "label": "clicked",
    "user": "user_id",
    "item": "item_id",
    "clock": {"kind": "column", "column": "time", "unit": "s"},
    "split": {"warmup_days": 1, "validation_days": 1, "test_days": 1},
    "side_tables": [
        {
            "name": "items",
            "path": "items.csv",
            "key": "item_id",
            "columns": [{"name": "item_id", "type": "integer"}, {"name": "maker", "type": "string"}],
        }
    ],
}
FEATURES = Features.model_validate(
    {
        "columns": [
            {"kind": "numeric", "each": ["price"]},
            {"kind": "vocabulary", "each": ["page", "item_id"], "min_rows": 1},
            {"kind": "vocabulary", "each": ["words"], "min_rows": 2},
        ]
    }
)
SCHEMA = {
    "user_id": pl.Int64, "item_id": pl.Int64, "page": pl.String, "price": pl.Float64, "words": pl.List(pl.String),
    "version": pl.Int64, "seconds": pl.Float64, Columns.LABEL: pl.Int8,
}  # fmt: skip
Row = dict[str, Any]


@dataclass
class Training:
    """A log of some rows per day, its features and scores."""

    folder: Path
    days: Sequence[Sequence[Row]]
    declared: dict[str, Any] = field(default_factory=lambda: DECLARED)
    features: Features | None = None
    chunk_rows: int = 1_000

    @property
    def data(self) -> Data:
        return Data.model_validate(self.declared)

    @property
    def log(self) -> Path:
        folder = self.folder / "log"
        if not folder.exists():
            (folder / "side").mkdir(parents=True)
            items = pl.DataFrame({"item_id": [1, 2, 3], "maker": ["ann", "bob", None]})
            items.write_parquet(folder / "side" / "items.parquet")
            writer = DayTableWriter(folder, Files.LOG, self.chunk_rows)
            for frame in self.frames():
                writer.append(frame)
            writer.close()
        return folder

    def frames(self) -> list[pl.DataFrame]:
        frames, first = [], 0
        for day, rows in zip(DAYS, self.days, strict=True):
            noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
            frame = pl.DataFrame([{name: row.get(name) for name in SCHEMA} for row in rows], schema=SCHEMA)
            times = [noon + timedelta(minutes=number) for number in range(len(rows))]
            frames.append(
                frame.with_columns(
                    pl.Series(Columns.TIME, times, dtype=pl.Datetime("us", "UTC")),
                    pl.lit(day).alias(Columns.DAY),
                    pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias(Columns.IMPRESSION),
                )
            )
            first += len(rows)
        return frames

    def scores(self, kind: str = "xgboost", **broken: Any) -> Path:
        """Write the scores of the last two days: the `score` of each row."""
        frames = []
        for split, frame, rows in zip(("validation", "test"), self.frames()[-2:], self.days[-2:], strict=True):
            score = pl.Series("score", [row.get("score", 0.5) for row in rows], dtype=pl.Float32)
            columns = frame.select(Columns.DAY, Columns.IMPRESSION, Columns.LABEL, user="user_id")
            weight = pl.Series(Columns.WEIGHT, [row.get("weight", 1.0) for row in rows], dtype=pl.Float32)
            frames.append(columns.with_columns(pl.lit(split).alias("split"), score, weight))
        (self.folder / kind).mkdir(parents=True, exist_ok=True)
        all_scores = pl.concat(frames).with_columns(**{name: pl.lit(value) for name, value in broken.items()})
        all_scores.write_parquet(self.folder / kind / Files.SCORES)
        return self.folder / kind

    def build(self, **drift: Any) -> Reference:
        fitted = self.folder / "fitted"
        numeric_only = FEATURES.model_copy(update={"columns": FEATURES.columns[:1]})
        features = self.features or (FEATURES if self.declared is DECLARED else numeric_only)
        if not fitted.exists():
            fit(self.data, features, None, Runtime(engine="cpu"), self.log, fitted)
        settings = Monitoring.model_validate({"drift": drift})
        scores = {"xgboost": self.scores()}
        return build_reference(
            "shop", self.data, features, settings, self.log, fitted, scores, self.folder / "reference"
        )


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "_sync", lambda path: None)


def row(user: int | None = 1, item: int = 1, label: int = 0, **columns: Any) -> Row:
    return {"user_id": user, "item_id": item, Columns.LABEL: label, "page": "home", **columns}


def plain(rows: int = 4) -> list[Row]:
    return [row(label=number % 2, score=0.1 + 0.8 * (number % 2)) for number in range(rows)]


def test_values_are_counted_per_day_in_the_bins_of_the_training_days(tmp_path: Path) -> None:
    pages = [
        ["warm"],
        ["home", "home", "search"],
        ["home", None, "search", "cart"],
        ["home"] * 3,
        ["new", "home", None],
    ]
    days = [[row(page=page) for page in day] for day in pages]
    days[-1][0][Columns.LABEL] = 1
    reference = Training(tmp_path, days).build()
    page = reference.columns["page"]
    assert reference.days == tuple(DAYS[1:])  # the warm-up is not among them
    assert page.bins.values == ("home", "search", "cart")
    assert page.counts == ((2, 1, 0, 0), (1, 1, 1, 0), (3, 0, 0, 0), (1, 0, 0, 1))  # `new` is one of the others
    assert (page.nulls, page.rows) == (pytest.approx(2 / 13), 13)
    assert list(reference.columns) == ["user_id", "item_id", "page", "price", "words", "maker"]


SLATED = Features.model_validate({"columns": [{"kind": "slate", "column": "price", "gives": ["rank"]}]})


def test_more_candidates_than_shown_rows_are_drift_with_slate_features(tmp_path: Path) -> None:
    # 60 slates of two rows a day, by user; in files that cut slates in two.
    days = [[row(user=number // 2, label=number % 2, price=1.0, score=0.5) for number in range(120)] for _ in DAYS]
    declared = {**DECLARED, "slate": {"column": "user_id"}}
    reference = Training(tmp_path, days, declared, chunk_rows=33, features=SLATED).build()
    slate = reference.columns[SLATE_SIZE]
    assert slate.rows == 120 * len(reference.days)
    users = pl.Series("user_id", range(400))
    for candidates, drifted in ((2.0, False), (300.0, True)):
        live = pl.DataFrame({SLATE_SIZE: np.full(400, candidates), "request_id": users.cast(pl.String)})
        findings = find_drift(live, reference, None, None, Monitoring().drift)
        assert [(finding.column, finding.drifted) for finding in findings if finding.column == SLATE_SIZE] == [
            (SLATE_SIZE, drifted)
        ]
    plain = Training(tmp_path / "plain", days, declared, features=FEATURES).build()
    assert SLATE_SIZE not in plain.columns


def test_live_slates_are_compared_with_what_the_release_would_show(tmp_path: Path) -> None:
    days = [[row(user=number, item=number % 4, page="home") for number in range(200)] for _ in DAYS]
    reference = Training(tmp_path, [*days[:-1], plain(200)]).build()
    items = ColumnReference(
        bins=Bins(kind="categorical", values=(7, 8)), counts=((900, 100, 0), (880, 120, 0)), nulls=0.0, rows=2_000
    )
    shown = ShownReference(columns={"item_id": items}, unknown_shares={"item_id": 0.5}, scores=items, mean_score=0.9)
    sample = pl.DataFrame({"model": ["xgboost", "other"], "item_id": [7, 8]})
    complete = replace(reference, shown={"xgboost": shown}, shown_sample=sample)
    staging = tmp_path / "staging"
    staging.mkdir()
    complete.save(staging)
    loaded = Reference.load(staging)
    assert loaded.shown == {"xgboost": shown} and loaded.shown_sample.equals(sample)

    expected = loaded.of_slates("xgboost")
    assert expected.columns == {**reference.columns, "item_id": items}
    assert expected.columns["page"] == reference.columns["page"]  # columns of requests keep the log's distribution
    assert (expected.unknown_shares["item_id"], expected.sample["item_id"].to_list()) == (0.5, [7])
    assert loaded.of_slates("unknown").columns == reference.columns
    live = pl.DataFrame({"item_id": [7] * 450 + [8] * 50, "page": "home", "user": [str(n) for n in range(500)]})
    drifted = {
        name: [each.column for each in find_drift(live, part, None, None, Monitoring().drift) if each.drifted]
        for name, part in (("log", reference), ("slates", expected))
    }
    assert (drifted["log"], drifted["slates"]) == (["item_id"], [])


def test_empty_lists_and_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    days = [plain() for _ in DAYS]
    days[1] = [
        row(words=["a", "b"], price=1.0), row(words=["a"], price=math.nan), row(words=[], price=math.inf),
        row(words=None, price=None),
    ]  # fmt: skip
    reference = Training(tmp_path, days).build()
    tags, price = reference.columns["words"], reference.columns["price"]
    assert tags.bins.values == ("a", "b")
    assert tags.counts[0] == (2, 1, 0)
    assert (tags.nulls, price.nulls) == (14 / 16, 15 / 16)


def test_side_table_columns_are_counted_per_row(tmp_path: Path) -> None:
    days = [plain() for _ in DAYS]
    days[2] = [row(item=1), row(item=1), row(item=2), row(item=3), row(item=4)]  # 3 has no maker, 4 is not there
    maker = Training(tmp_path, days).build().columns["maker"]
    assert maker.bins.values == ("ann", "bob")
    assert maker.counts[1] == (2, 1, 0)
    assert maker.nulls == pytest.approx(2 / 17)


def test_unknown_values_are_counted_after_the_days_of_the_vocabulary(tmp_path: Path) -> None:
    days = [plain() for _ in DAYS]
    days[1] = [row(item=1, words=["a", "a2"]), row(item=2, words=["a"])]
    days[3] = [row(item=2), row(item=3), row(item=4, words=["a", "b"]), row(item=1)]
    days[4] = [row(item=9, words=["a", "a2"]), row(item=1, label=1), row(item=1, page=None)]
    shares = Training(tmp_path, days).build().unknown_shares
    assert shares["item_id"] == 3 / 7  # 3, 4 and 9
    assert shares["words"] == 2 / 4  # b was never seen, a2 in one row only
    assert shares["page"] == 0
    assert "maker" not in shares  # it has no vocabulary


def test_the_sample_holds_whole_users_with_the_scores_of_the_last_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_log, "SAMPLE_ROWS", 25)
    days = [[row(user, 1, user % 2, score=user / 20, words=[]) for user in range(10)] for _ in DAYS]
    sample = Training(tmp_path, days).build().sample
    users = sample.group_by("user").len()
    assert users["len"].to_list() == [4] * 6  # 24 rows; a seventh user's four would not fit
    compared = ["user_id", "item_id", "page", "price", "words", "maker"]
    assert sample.columns == ["day", "event_time", "user", "label", *compared, "score:xgboost"]
    assert sample["user"].dtype == pl.String
    assert sample["words"].null_count() == 24
    for user, day, score in sample.select("user", "day", "score:xgboost").rows():
        assert score == (pytest.approx(int(user) / 20) if day in DAYS[3:] else None)


def test_models_are_measured_on_the_test_day(tmp_path: Path) -> None:
    days = [plain() for _ in DAYS]
    days[3] = [row(score=0.9)]
    days[4] = [row(1, label=1, score=0.8), row(1, score=0.4), row(2, label=1, score=0.2), row(2, score=0.6)]
    model = Training(tmp_path, days).build(bins=2).models["xgboost"]
    assert (model.model, model.rows) == ("xgboost", 4)
    assert model.mean_score == pytest.approx(2.0 / 4)
    assert (model.label_rate, model.auc) == (0.5, 0.5)  # of four pairs, 0.8 beats both and 0.2 none
    assert model.log_loss == pytest.approx(-(math.log(0.8) + math.log(0.6) + math.log(0.2) + math.log(0.4)) / 4)
    assert model.hit_rate == 0.5  # the first user's best was clicked, the second's was not
    assert model.scores.bins.edges == pytest.approx((0.6,))
    assert model.scores.counts == ((0, 1), (2, 2))  # validation and test day; 0.6 lies in the upper bin
    assert (model.scores.rows, model.scores.nulls) == (5, 0)


def test_model_measures_are_weighted(tmp_path: Path) -> None:
    days = [plain() for _ in DAYS]
    first = [row(1, label=1, score=0.8), row(1, score=0.4)]
    days[4] = [*first, row(2, label=1, score=0.2, weight=3), row(2, score=0.6, weight=3)]
    model = Training(tmp_path, days).build().models["xgboost"]
    assert model.mean_score == pytest.approx((0.8 + 0.4 + 3 * 0.2 + 3 * 0.6) / 8)
    # 0.8 beats 0.4 (1 x 1) and 0.6 (1 x 3); 0.2 beats none.
    assert (model.label_rate, model.auc, model.gauc) == (0.5, (1 + 3) / (4 * 4), (2 * 1 + 6 * 0) / 8)
    losses = math.log(0.8) + math.log(0.6) + 3 * (math.log(0.2) + math.log(0.4))
    assert model.log_loss == pytest.approx(-losses / 8)
    assert model.hit_rate == (1 * 1 + 3 * 0) / 4
    assert model.ndcg_at_10 == pytest.approx((1 * 1 + 3 / math.log2(3)) / 4)


def test_lists_equal_the_requests_of_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_quality, "MAX_LIST_ROWS", 3)
    users = [1, 2, None, 1, 1, 2, 1, 3, 1, None, 1]
    days = [*[plain() for _ in DAYS[:4]], [row(user, number, number % 2) for number, user in enumerate(users)]]
    training = Training(tmp_path, days, chunk_rows=6)  # the day has two files
    table = model_quality.DayTable.open(training.log, Files.LOG)
    lists = pl.concat(model_quality.iter_lists(table, training.data, {DAYS[4]}))
    first = sum(len(day) for day in days[:4])
    grouped = lists.sort("row").group_by("request_id").agg("impression_id", "row")
    lists_by_request = {
        tuple(impression - first for impression in impressions) for impressions in grouped["impression_id"]
    }
    assert lists_by_request == {tuple(session.items or ()) for session in Sessions(training.data, training.log, rows=3)}
    assert all(rows.to_list() == list(range(len(rows))) for rows in grouped["row"])
    assert len(lists_by_request) == 6


def test_files_of_any_size_give_the_same_measures(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)

    def rows(day: int) -> list[dict[str, Any]]:
        return [row(user=100 * day + number // 4, label=number % 3 == 0, score=round(float(score), 2))
                for number, score in enumerate(generator.random(40))]  # fmt: skip

    days = [rows(day) for day in range(len(DAYS))]
    whole, pieces = (
        Training(tmp_path / str(chunk_rows), days, chunk_rows=chunk_rows).build().models["xgboost"].model_dump()
        for chunk_rows in (1_000, 8)  # whole lists in a file
    )
    assert {name: value for name, value in pieces.items() if name != "hit_rate"} == {
        name: value for name, value in whole.items() if name != "hit_rate"
    }
    assert pieces["hit_rate"] == pytest.approx(whole["hit_rate"], abs=1e-12)


def test_pieces_and_files_of_any_size_give_the_same_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = [[row(user, user % 4, user % 2, price=float(user), words=[str(user)]) for user in range(50)] for _ in DAYS]
    whole = Training(tmp_path / "one", days).build()
    monkeypatch.setattr(reference_log, "_SLICE_ROWS", 7)
    pieces = Training(tmp_path / "two", days, chunk_rows=20).build()
    assert (pieces.columns, pieces.unknown_shares, pieces.models) == (whole.columns, whole.unknown_shares, whole.models)
    assert pieces.sample.sort("event_time").equals(whole.sample.sort("event_time"))


def test_bins_come_from_a_sample_of_the_training_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_log, "BINNED_ROWS", 40)
    days = [[row(label=number % 2, price=float(number)) for number in range(200)] for _ in DAYS]
    price = Training(tmp_path, days).build(bins=4).columns["price"]
    assert 2 <= len(price.bins.edges) <= 3
    assert sum(price.counts[0]) == 200  # all rows are counted all the same


def test_a_log_without_users_items_and_side_tables(tmp_path: Path) -> None:
    declared = {**DECLARED, "user": None, "item": None, "side_tables": []}
    reference = Training(tmp_path, [plain(3) for _ in DAYS], declared).build()
    assert reference.sample.height == 12
    assert reference.sample["user"].null_count() == 12
    assert reference.models["xgboost"].hit_rate == 1.0  # one list of three: 0 1 0
    assert reference.unknown_shares == {}


def test_a_model_that_cannot_be_measured_has_no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(model_quality, "note", notes.append)
    training = Training(tmp_path, [*[plain() for _ in DAYS[:4]], [row(), row()]])  # one class
    reference = training.build()
    assert reference.models == {}
    assert "score:xgboost" not in reference.sample.columns
    (sentence,) = notes
    assert sentence.startswith("Live traffic of xgboost cannot be compared with its test days: only one class")


def test_a_reference_round_trips(tmp_path: Path) -> None:
    training = Training(tmp_path, [plain() for _ in DAYS])
    written, folder = training.build(), tmp_path / "reference"
    loaded = Reference.load(folder)
    assert (loaded.spec, loaded.days, loaded.columns) == ("shop", written.days, written.columns)
    assert (loaded.unknown_shares, loaded.models) == (written.unknown_shares, written.models)
    assert loaded.sample.equals(written.sample)
    assert {path.name for path in folder.iterdir()} == {"reference.json", "sample.parquet", "manifest.json"}
    assert training.build().columns == written.columns  # a second time replaces the first


def test_a_reference_that_is_missing_or_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"there is no reference of the training data.*train the model again"):
        Reference.load(tmp_path / "nowhere")
    Training(tmp_path, [plain() for _ in DAYS]).build()
    folder = tmp_path / "reference"
    saved = json.loads((folder / "reference.json").read_text())
    (folder / "reference.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"reference\.json: changed after it was written"):
        Reference.load(folder)
    write_json(folder / "reference.json", {**saved, "unknown": {"page": "many"}})
    write_manifest(folder)
    with pytest.raises(IntegrityError, match=r"reference\.json: unknown\.page: Input should be a valid number"):
        Reference.load(folder)


def test_a_log_of_other_days_is_refused(tmp_path: Path) -> None:
    training = Training(tmp_path, [plain() for _ in DAYS])
    training.build()
    index = json.loads((training.log / Files.LOG).read_text())
    write_json(training.log / Files.LOG, {**index, "days": index["days"][3:]})
    with pytest.raises(DataError, match=r"log: got no rows of the days that .*fitted was fitted on; wanted the log of"):
        training.build()
