"""The kind `sequence_score`: how well an item follows a session, by models trained on earlier periods only."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest

import models.sequence.scores
from shortlist.contracts import Columns, DataError, Files
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.features.declared.training_log import LEARNT
from shortlist.features.fits.fit import fit
from shortlist.features.kinds.session_scores import FACTS_FILE, INDEX_FILE, SessionModel, SessionModelFacts
from shortlist.features.rows.transform import Transformer
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import save
from shortlist.serving.export.signature import SCORE as OUTPUT
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError, file_digests, folder_digest, read_json
from shortlist.storage.tables import DayTable

SCORE = {
    "kind": "sequence_score", "of": "item_id", "key": "user_id", "name": "next", "last": 4, "refit_days": 2,
    "embedding_dim": 8, "epochs": 30, "batch_events": 64, "sampled_negatives": 8, "learning_rate": 0.01,
    "dropout": 0.1,
}  # fmt: skip
ITEMS = 10
Rows = list[dict[str, Any]]


def circles(world: Any, days: range, step: int = 1) -> Rows:
    """Return rows of thirty users who click ten items in turn, four times a day, each with an item without a click."""
    generator, rows = random.Random(3), []
    for day in days:
        for place in range(4):
            for user in range(30):
                at, item = 8 + place + user / 100, (user + step * (4 * day + place)) % ITEMS
                random_item = (item + generator.randrange(1, ITEMS)) % ITEMS
                rows.append(world.row(day, at, user_id=user, item_id=random_item))
                rows.append(world.row(day, at + 0.001, user_id=user, item_id=item, label=1))
    return rows


def learnt(world: Any, name: str = "fitted") -> Path:
    folder: Path = world.folder / name / LEARNT / "next"
    return folder


def starts(folder: Path) -> list[date]:
    return [date.fromisoformat(name) for name in read_json(folder / INDEX_FILE)["models"]]


def what_was_learnt(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in file_digests(folder).items() if name != FACTS_FILE}


def auc_of(scores: Any, rows: pl.DataFrame) -> float:
    return float(auc(rows[Columns.LABEL].to_numpy().astype(float), 1 / (1 + np.exp(-np.asarray(scores, float)))))


def test_a_following_item_has_the_higher_score(world: Any) -> None:
    rows = world.features(circles(world, range(6)), SCORE)
    assert rows["next"].dtype == pl.Float32 and rows["next"].is_finite().all()
    # Sessions are as of the day's start, so that the first click of a day follows the events of its session.
    first = rows.filter(pl.col("event_time").dt.hour() == 8, pl.col("day") == rows["day"].max())
    assert auc_of(first["next"], first) > 0.9


def test_no_model_scores_rows_of_its_training(world: Any) -> None:
    """A planted leak: the next item is drawn at random every day, so that only a model trained on a row knows it."""
    generator, users, rows = random.Random(5), 30, []
    for day in range(2):  # every item is known
        order = generator.sample(range(150), 150)
        rows += [world.row(day, 8 + place / 10, user_id=place % users, item_id=item, label=1)
                 for place, item in enumerate(order)]  # fmt: skip
    for day in range(2, 7):  # one click a day, of items of that day
        clicked = generator.sample(range((day - 2) * users, (day - 1) * users), users)
        for user, item in enumerate(clicked):
            rows.append(world.row(day, 8, user_id=user, item_id=item, label=1))
            rows.append(world.row(day, 9, user_id=user, item_id=clicked[user - generator.randrange(1, users)]))
    rows.append(world.row(7, user_id=None))
    log = world.log(rows)
    table = world.table(log, [{**SCORE, "refit_days": 1, "embedding_dim": 16, "dropout": 0.0, "last": 20,
                               "batch_events": 128, "learning_rate": 0.02}])  # fmt: skip
    transformer = Transformer.load(world.folder / "table-fitted", "cpu")
    *days, served_day = (part.day for part in table.days[2:])
    newest = learnt(world, "table-fitted") / str(served_day)
    assert SessionModelFacts(**read_json(newest / FACTS_FILE)).days.keys() >= set(map(str, days))
    cheating = []
    for day in days:
        looked_up = transformer.look_up(DayTable.open(log, Files.LOG).scan({day}).collect(), day)
        sessions = looked_up["newest_20_positive_item_id_by_user_id:newest_values"]
        cheating.append(SessionModel(newest).scores(sessions, looked_up["item_id"]))
    training_rows = table.scan(set(days)).collect()
    assert (training_rows["next"] != 0).all()
    assert auc_of(np.concatenate(cheating), training_rows) > 0.9
    assert auc_of(training_rows["next"], training_rows) == pytest.approx(0.5, abs=0.1)


def test_events_of_a_period_do_not_change_its_model(world: Any) -> None:
    old_rows = circles(world, range(4))
    first_log, second_log = (
        world.features([*old_rows, *circles(world, range(4, 7), step)], SCORE, name=f"step-{step}") for step in (1, 3)
    )
    folders = [learnt(world, f"step-{step}-fitted") for step in (1, 3)]
    day = old_rows[0]["day"] + timedelta(days=4)
    unchanged_starts = [start for start in starts(folders[0]) if start <= day]
    assert len(unchanged_starts) >= 2
    for start in unchanged_starts:
        assert what_was_learnt(folders[0] / start.isoformat()) == what_was_learnt(folders[1] / start.isoformat())
    newest_start = max(start for start in starts(folders[0]) if start > day)
    assert what_was_learnt(folders[0] / newest_start.isoformat()) != what_was_learnt(
        folders[1] / newest_start.isoformat()
    )
    is_earlier = pl.col("day") < day
    assert first_log.filter(is_earlier)["next"].equals(second_log.filter(is_earlier)["next"])


def test_a_model_trained_on_events_unknown_to_its_rows_is_refused(world: Any) -> None:
    log = world.log(circles(world, range(6)))
    world.fit(log, [SCORE])
    folder = learnt(world) / starts(learnt(world))[-1].isoformat()
    facts = SessionModelFacts(**read_json(folder / FACTS_FILE))
    assert facts.learnt_until < facts.start
    facts._replace(learnt_until=facts.start + 1).write(folder)
    with pytest.raises(IntegrityError, match=r"learnt what was known at 2026-.* UTC, and would score rows from 2026-"):
        Transformer.load(world.folder / "fitted", "cpu").preprocessing.trained["next"].models  # noqa: B018


def test_an_outcome_unknown_at_the_start_of_a_period_is_not_trained_on(world: Any) -> None:
    rows = circles(world, range(5))
    late = [world.row(day, 23.95, user_id=user, item_id=77, label=1) for day in range(5) for user in range(30)]
    features = Features.model_validate({"columns": [SCORE], "tile": "1h"})
    data = Data.model_validate(world.data.model_dump(mode="json") | {"outcome_delay": "10m"})
    ordered = sorted([*rows, *late], key=lambda row: row["event_time"])
    fit(data, features, None, Runtime(engine="cpu"), world.log(ordered), world.folder / "fitted")
    for start in starts(learnt(world)):
        folder = learnt(world) / start.isoformat()
        # That of the evening before is not known yet at midnight; those of earlier evenings are.
        assert SessionModel(folder).start - SessionModelFacts(**read_json(folder / FACTS_FILE)).learnt_until >= 0
        events = pl.DataFrame(ordered).filter(
            pl.col("event_time") < pl.lit(midnight(world, start)), pl.col("label") == 1
        )
        known_events = events.filter(pl.col("event_time") < pl.lit(midnight(world, start) - timedelta(minutes=10)))
        assert known_events.height < events.height
        assert (
            SessionModelFacts(**read_json(folder / FACTS_FILE)).learnt_until
            == microseconds_of(known_events["event_time"].max()) + 600_000_000
        )


def midnight(world: Any, day: date) -> datetime:
    moment: datetime = world.row((day - world.row()["day"]).days, 0)["event_time"]
    return moment


def microseconds_of(moment: Any) -> int:
    return round(moment.timestamp() * 1e6)


@pytest.mark.long
def test_a_later_fit_trains_only_new_periods(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    train = models.sequence.scores.train

    def counted(section: Any, events: pl.DataFrame, seed: int, folder: Path) -> None:
        trained.append(folder.name)
        train(section, events, seed, folder)

    monkeypatch.setattr(models.sequence.scores, "train", counted)
    rows = circles(world, range(8))
    first, longer = (world.log([row for row in rows if row["day"] < until], f"log-{until}")
                     for until in (rows[0]["day"] + timedelta(days=days) for days in (6, 8)))  # fmt: skip
    world.fit(first, [SCORE])
    previously_trained, trained[:] = list(trained), []
    world.fit(longer, [SCORE], "longer", previous="fitted")
    period_names = [start.isoformat() for start in starts(learnt(world, "longer"))]
    assert set(previously_trained) < set(period_names) and trained == [
        name for name in period_names if name not in previously_trained
    ]
    incremental = folder_digest(learnt(world, "longer"))
    world.fit(longer, [SCORE], "whole")
    assert folder_digest(learnt(world, "whole")) == incremental
    trained.clear()
    world.fit(longer, [{**SCORE, "epochs": 1}], "other", previous="longer")
    assert trained == period_names


def test_rows_without_session_or_with_an_unknown_item_score_0(world: Any) -> None:
    rows = circles(world, range(6))
    added_rows = [
        world.row(5, 12, user_id=1, item_id=999, label=1),
        world.row(5, 12, user_id=999, item_id=1),
        world.row(5, 12, user_id=None, item_id=1),
        world.row(5, 12, user_id=1, item_id=None),
        world.row(5, 12, user_id=1, item_id=1),
    ]
    table = world.features([*rows, *added_rows], SCORE)
    assert table["next"].to_list()[-5:-1] == [0.0] * 4 and table["next"].to_list()[-1] != 0
    assert table.filter(pl.col("day") == rows[0]["day"])["next"].to_list() == [0.0] * 240


def test_a_log_without_scored_training_days_is_refused(world: Any) -> None:
    message = r"sequence_score 'next': no training day would have a score: .* 3 days in periods of 300\. Declare fewer"
    with pytest.raises(DataError, match=message):
        world.fit(world.log(circles(world, range(3))), [{**SCORE, "refit_days": 300}])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 3}, "embedding_dim 8 is no multiple of heads 3"),
        ({"last": 1}, "greater than or equal to 2"),
        ({"with": ["price"]}, "Extra inputs are not permitted"),
    ],
)
def test_invalid_settings_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Features.model_validate({"columns": [{**SCORE, **changed}]})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"of": "likes"}, r"sequence_score 'next': 'likes' is known only after the impression"),
        ({"of": "price"}, r"sequence_score 'next': 'price' is of type number; wanted integer or hex or string"),
        ({"of": "maker"}, r"sequence_score 'next': 'maker' is a column of a side table"),
        ({"sent": "words"}, r"sequence_score 'next': 'words' holds no list of integers"),
    ],
)
def test_columns_that_are_no_events_are_refused(world: Any, changed: dict[str, Any], message: str) -> None:
    (feature,) = Features.model_validate({"columns": [{**SCORE, **changed}]}).columns
    with pytest.raises(ValueError, match=message):
        feature.check(world.data)


@pytest.mark.long
def test_an_exported_graph_and_the_table_score_all_test_days_alike(world: Any) -> None:
    """Test days lie in two periods: each row is scored by the model of its time, also in the graph."""
    split = {"warmup_days": 2, "validation_days": 1, "test_days": 3}
    world = type(world)(world.folder, world.clock, split)
    log = world.log(circles(world, range(8)))
    brought = {**SCORE, "name": "brought", "sent": "basket", "refit_days": 3}
    table = world.table(log, [SCORE, brought])
    transformer = Transformer.load(world.folder / "table-fitted", "cpu")
    graph = FeatureGraph(transformer.preprocessing)
    model, signature = graph.finished(graph.floats(["next", "brought"]), OUTPUT, 2, "world", "none")
    save(model, world.folder / "graph.onnx")
    session = onnxruntime.InferenceSession(world.folder / "graph.onnx", providers=["CPUExecutionProvider"])
    tests = [date.fromisoformat(day) for day in table.notes["split"]["test"]]
    models_used = {max(start for start in starts(learnt(world, "table-fitted")) if start <= day) for day in tests}
    assert len(models_used) == 2
    for day in tests:
        raw = DayTable.open(log, Files.LOG).scan({day}).collect().sample(fraction=1.0, shuffle=True, seed=1)
        sent = pl.Series("basket", [[1, 2, 999], None, [], [5]] * (raw.height // 4), pl.List(pl.Int64))
        looked_up = transformer.look_up(raw.with_columns(sent), day)
        expected = transformer.compute(looked_up)
        tensors = encode(looked_up, signature, transformer.plan.declared)
        (scores,) = session.run(None, tensors)
        np.testing.assert_allclose(scores, expected.to_numpy(), rtol=0, atol=1e-5)
        assert np.abs(scores).max() > 1
        assert (expected["brought"] != expected["next"]).sum() > raw.height // 4
