"""Ids that nobody knows in advance, from the log to the exported graph: of users, and of requests that never return."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from models.dlrm.network import DLRMRanker
from models.dlrm.section import DLRMModel
from shortlist.contracts import Columns, Files
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.signature import Signature
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.export import export, pack

DAYS = [date(2026, 3, 1) + timedelta(number) for number in range(5)]
ROWS, USERS = 1_500, 400
RUNTIME = Runtime(engine="cpu", seed=1)
SECTION = DLRMModel(
    features=("*",), embedding_dim=8, bottom_mlp=(8,), top_mlp=(16,), batch_size=100, epochs=4, patience=4,
    embedding_learning_rate=0.05, learning_rate=0.003, precision="fp32",
)  # fmt: skip
DATA_SECTION = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [
            {"name": "user_id", "type": "integer"},
            {"name": "request_id", "type": "integer"},
            {"name": "price", "type": "number"},
            {"name": "clicked", "type": "integer"},
        ],
        "label": "clicked",
        "clock": {"kind": "column", "column": "time", "unit": "s", "timezone": "UTC"},
        "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
    }
)


class FittedTable(NamedTuple):
    """A log, the folder of its fitted features, and its feature table."""

    log: DayTable
    fitted: Path
    table: DayTable


@pytest.fixture(scope="module")
def make_fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that fits the features with options of the request ids and builds the table."""
    folder = tmp_path_factory.mktemp("hashed")
    log = _log(folder / "log")

    @cache
    def make(**request: int) -> FittedTable:
        table_folder = folder / "-".join(f"{key}-{value}" for key, value in request.items())
        columns = [
            {"kind": "hash", "each": "user_id", "buckets": 3_000},
            {"kind": "hash", "each": "request_id", "buckets": 20_000, **request},
            {"kind": "numeric", "each": "price"},
        ]
        features = Features.model_validate({"columns": columns})
        fit(DATA_SECTION, features, None, RUNTIME, folder / "log", table_folder / "fitted")
        table = build_table(
            DATA_SECTION, features, None, RUNTIME, folder / "log", table_folder / "fitted", table_folder / "table"
        )
        return FittedTable(log, table_folder / "fitted", table)

    return make


def _log(folder: Path) -> DayTable:
    random = np.random.default_rng(3)
    liking = random.normal(0, 1.5, USERS)
    writer = DayTableWriter(folder, Files.LOG, chunk_rows=1_000)
    for number, day in enumerate(DAYS):
        user = random.integers(0, USERS, ROWS)
        price = random.normal(0, 1, ROWS)
        clicked = random.random(ROWS) < 1 / (1 + np.exp(-liking[user] - price / 2))
        first = number * ROWS
        writer.append(
            pl.DataFrame(
                {
                    "user_id": user * 7_919,
                    "request_id": np.arange(first, first + ROWS) * 1_000_003,
                    "price": price,
                    Columns.LABEL: clicked.astype(np.int8),
                    Columns.TIME: pl.Series(
                        [datetime.combine(day, time(), UTC)] * ROWS, dtype=pl.Datetime("us", "UTC")
                    ),
                    Columns.DAY: [day] * ROWS,
                    Columns.IMPRESSION: np.arange(first, first + ROWS),
                }
            )
        )
    return writer.close()


def trained(table: DayTable, **section: Any) -> DLRMRanker:
    ranker = DLRMRanker(SECTION.model_copy(update=section))
    ranker.fit(table, RUNTIME)
    return ranker


def best(ranker: DLRMRanker) -> float:
    return min(float(line["validation_log_loss"] or 0) for line in ranker.record.history)


def last_day(table: DayTable) -> pl.DataFrame:
    return pl.concat([frame for day, frame in table.frames() if day == DAYS[-1]])


def test_ids_that_never_come_back_do_harm_until_they_have_to_be_admitted(make_fitted: Any) -> None:
    learnt, admitted = trained(make_fitted(admit_after=1).table), trained(make_fitted(admit_after=3).table)
    assert best(admitted) < best(learnt) - 0.005
    # Without admission, every row's own id is learnt by heart.
    assert learnt.record.history[-1]["train_log_loss"] < admitted.record.history[-1]["train_log_loss"] - 0.05  # type: ignore[operator]
    collisions = admitted.record.hashed["request_id_hash"]
    assert collisions.occupied > 4_000
    assert collisions.admitted < 0.02 * collisions.occupied  # three requests in a bucket, by chance
    weights = admitted._model.state_dict()["table.weight_RD"][3_001:]  # without the unknown id's row
    assert int((weights.abs().sum(1) > 0).sum()) == collisions.admitted


def test_the_record_counts_values_and_collisions(make_fitted: Any) -> None:
    ranker = trained(make_fitted(admit_after=3).table, epochs=1)
    requests, users = ranker.record.hashed["request_id_hash"], ranker.record.hashed["user_id_hash"]
    train = make_fitted(admit_after=3).table.scan(set(DAYS[:3])).collect()
    assert requests.occupied == train["request_id_hash"].n_unique()
    assert requests.values == pytest.approx(3 * ROWS, rel=0.03)
    assert users.values == pytest.approx(USERS, rel=0.03)
    assert users.collision_rate == pytest.approx(1 - train["user_id_hash"].n_unique() / USERS, abs=0.03)


def test_the_exported_graph_scores_as_the_model_does_and_knows_of_no_admission(
    make_fitted: Any, tmp_path: Path
) -> None:
    log, fitted, table = make_fitted(admit_after=3)
    ranker = trained(table, epochs=2)
    folder = tmp_path / "model"
    ranker.save(folder)
    pack(folder, fitted)
    export(folder, "shop")
    transformer = Transformer.load(fitted, "cpu")
    rows = pl.concat([frame for day, frame in log.frames() if day == DAYS[-1]])
    looked_up = transformer.look_up(rows.select("user_id", "request_id", "price", Columns.TIME), DAYS[-1])
    signature = Signature.read(folder / "serving")
    (scores,) = create_session(folder / "serving").run(
        ["score"], encode(looked_up, signature, transformer.plan.declared)
    )
    expected = DLRMRanker.load(folder).predict(last_day(table))
    np.testing.assert_allclose(np.asarray(scores)[:, 0], expected, atol=1e-6)
    assert np.unique(expected).size > 1_000
    assert np.array_equal(expected, ranker.predict(last_day(table)))


def test_admission_does_not_change_the_table_that_other_models_read(make_fitted: Any) -> None:
    for first_frame, second_frame in zip(
        make_fitted(admit_after=1).table.frames(), make_fitted(admit_after=3).table.frames(), strict=True
    ):
        assert_frame_equal(first_frame[1], second_frame[1])


def test_a_cached_table_makes_the_same_model_and_says_how_often_it_was_asked_in_vain(make_fitted: Any) -> None:
    table = make_fitted(admit_after=3).table
    whole, cached = trained(table, epochs=2), trained(table, epochs=2, cached_rows=700)
    assert np.array_equal(cached.predict(last_day(table)), whole.predict(last_day(table)))
    for name, tensor in whole._model.state_dict().items():
        assert np.array_equal(cached._model.state_dict()[name].numpy(), tensor.numpy()), name
    compared_keys = ("epoch", "train_log_loss", "validation_log_loss", "validation_auc")
    for line, expected in zip(cached.record.history, whole.record.history, strict=True):
        assert {key: line[key] for key in compared_keys} == {key: expected[key] for key in compared_keys}
        # Users are hits once they were seen, requests never.
        assert 0.4 < float(line["cache_hit_rate"] or 0) < 0.6
    assert cached.record.hashed == whole.record.hashed
    assert (cached.record.cached_rows, whole.record.cached_rows) == (700, None)
    assert "cache_hit_rate" not in whole.record.history[0]


def test_a_warm_start_with_a_cache_goes_on_from_what_was_counted(make_fitted: Any, tmp_path: Path) -> None:
    table = make_fitted(admit_after=2, evict_after_days=1).table
    trained(_days(table, DAYS[:1]), epochs=1).save(tmp_path / "first")
    whole, cached = (
        DLRMRanker(SECTION.model_copy(update={"epochs": 1, "cached_rows": slots})) for slots in (None, 700)
    )
    for ranker in (whole, cached):
        ranker.fit(_days(table, DAYS[2:3]), RUNTIME, champion=tmp_path / "first")
    for name, tensor in whole._model.state_dict().items():
        assert np.array_equal(cached._model.state_dict()[name].numpy(), tensor.numpy()), name
    # The first training's requests were not seen for two days: their buckets are free, their counts forgotten.
    first = set(table.scan({DAYS[0]}).collect()["request_id_hash"].to_list())
    counts = table.scan({DAYS[2]}).collect()["request_id_hash"].value_counts()
    twice = set(counts.filter(pl.col("count") > 1)["request_id_hash"].to_list())
    learnt = whole._model.state_dict()["table.weight_RD"][3_000:].abs().sum(1).nonzero().flatten().tolist()
    assert set(learnt) - {0} == twice  # row 0, of the unknown id, is their mean
    assert first - twice


def _days(table: DayTable, train: list[date]) -> DayTable:
    split = {**table.notes["split"], "warmup": [], "train": [str(day) for day in train]}
    return table.model_copy(update={"notes": {**table.notes, "split": split}})
