"""A blend of two models: its weights, its scores, and members that hold it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from models.blend.ranker import BlendRanker
from models.blend.section import BlendModel
from models.lightgbm.section import LightGBMModel
from models.xgboost.section import XGBoostModel
from shortlist.contracts import Columns, Files
from shortlist.ranking.ranker import DivergedError, MemberFiles
from shortlist.ranking.saved_models import load_ranker
from shortlist.ranking.validation import validation_metrics
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.scores import score
from shortlist.training.train import train

RUNTIME = Runtime(engine="cpu", seed=3)
SECTION = BlendModel(models=("users", "items"))
MEMBERS: dict[str, ModelSection] = {
    "users": XGBoostModel(features=("user_id", "age"), rounds=20, refit=False),
    "items": LightGBMModel(features=("item_id", "age", "text"), rounds=20, calibration="platt", refit=False),
}


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory: pytest.TempPathFactory, table: DayTable) -> DayTable:
    """Return a table whose impression ids are not in row order."""
    writer = DayTableWriter(tmp_path_factory.mktemp("shuffled") / "table", Files.TABLE, chunk_rows=1_000)
    for day in table.days:
        rows = pl.concat(frame for of_day, frame in table.frames() if of_day == day.day)
        writer.append(rows.with_columns(pl.col(Columns.IMPRESSION).shuffle(seed=1)))
    return writer.close(dict(table.notes))


@pytest.fixture(scope="module")
def members(shuffled: DayTable, tmp_path_factory: pytest.TempPathFactory) -> dict[str, MemberFiles]:
    """Return two models that read different features."""
    root, files = tmp_path_factory.mktemp("members"), {}
    for name, section in MEMBERS.items():
        files[name] = MemberFiles(root / name, root / f"{name}_scores")
        train(section.kind, section, shuffled, RUNTIME, *files[name], name=name)
    return files


@pytest.fixture(scope="module")
def blend(shuffled: DayTable, members: dict[str, MemberFiles]) -> BlendRanker:
    ranker = BlendRanker(SECTION, "both")
    ranker.fit(shuffled, RUNTIME, members=members)
    return ranker


def rows_of(table: DayTable, number: int) -> pl.DataFrame:
    return pl.concat(frame for day, frame in table.frames() if day == table.days[number].day)


def test_it_reads_its_members_features_and_ranks_better_than_every_member(
    shuffled: DayTable, members: dict[str, MemberFiles], blend: BlendRanker
) -> None:
    assert [feature.name for feature in blend.features] == ["user_id", "item_id", "age", "text"]
    test = rows_of(shuffled, -1)
    labels = test[Columns.LABEL].to_numpy()
    alone = [validation_metrics(labels, load_ranker(files.model).predict(test)) for files in members.values()]
    together = validation_metrics(labels, blend.predict(test))
    assert all((together["validation_auc"] or 0) > (metrics["validation_auc"] or 1) + 0.02 for metrics in alone)
    assert all(
        (together["validation_log_loss"] or 1) < (metrics["validation_log_loss"] or 0) - 0.01 for metrics in alone
    )


def test_its_score_is_the_weighted_sum_of_its_members_log_odds(
    shuffled: DayTable, members: dict[str, MemberFiles], blend: BlendRanker, tmp_path: Path
) -> None:
    blend.save(tmp_path / "both")
    saved = read_json(tmp_path / "both/blend.json")
    row = rows_of(shuffled, -1).head(1)
    total = saved["intercept"]
    for name, files in members.items():
        chance = float(load_ranker(files.model).predict(row)[0])
        total += saved["weights"][name] * math.log(chance / (1 - chance))
    assert blend.predict(row)[0] == pytest.approx(1 / (1 + math.exp(-total)), abs=1e-6)


def test_a_loaded_one_gives_the_same_scores(shuffled: DayTable, blend: BlendRanker, tmp_path: Path) -> None:
    blend.save(tmp_path / "both")
    loaded = load_ranker(tmp_path / "both")
    test = rows_of(shuffled, -1)
    np.testing.assert_array_equal(loaded.predict(test), blend.predict(test))
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(load_ranker(tmp_path / "again").predict(test), blend.predict(test))


def test_its_scores_of_the_validation_days_are_of_rows_that_it_had_not_learnt(
    shuffled: DayTable, blend: BlendRanker, tmp_path: Path
) -> None:
    score(blend, shuffled, tmp_path / "scores")
    validation = pl.read_parquet(tmp_path / "scores/scores.parquet").filter(pl.col("split") == "validation")
    assert not validation["learnt"].any()
    fitted = blend.predict(rows_of(shuffled, -2))
    np.testing.assert_allclose(
        validation["score"].to_numpy(), fitted, atol=0.02
    )  # row by row, though nearly the same weights
    assert not np.array_equal(validation["score"].to_numpy(), fitted)
    metrics = validation_metrics(validation[Columns.LABEL].to_numpy(), validation["score"].to_numpy())
    assert blend.record.history[0]["validation_log_loss"] == pytest.approx(metrics["validation_log_loss"], abs=1e-6)


def changed(files: MemberFiles, folder: Path, scores: pl.DataFrame) -> MemberFiles:
    folder.mkdir()
    scores.write_parquet(folder / Files.SCORES)
    return MemberFiles(files.model, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pl.lit(value=True).alias("learnt"), "member 'items' has learnt the validation days and kept no scores"),
        ((pl.col(Columns.IMPRESSION) + 1), "member 'items' cannot be read: they were not scored on the same rows"),
        (pl.lit(float("nan"), pl.Float32).alias("score"), "member 'items' cannot be read"),
    ],
)
def test_a_member_with_useless_validation_scores_holds_the_blend(
    shuffled: DayTable, members: dict[str, MemberFiles], tmp_path: Path, change: pl.Expr, message: str
) -> None:
    scores = pl.read_parquet(members["items"].scores / Files.SCORES).with_columns(change)
    spoilt = {**members, "items": changed(members["items"], tmp_path / "scores", scores)}
    with pytest.raises(DivergedError, match=message):
        BlendRanker(SECTION).fit(shuffled, RUNTIME, members=spoilt)


def test_a_member_that_was_held_holds_it_with_its_reason(
    shuffled: DayTable, members: dict[str, MemberFiles], tmp_path: Path
) -> None:
    write_json(tmp_path / Files.PROBLEM, {"problem": "the model gives NaN"})
    held_member = MemberFiles(tmp_path / "no weights", tmp_path)
    with pytest.raises(DivergedError, match="its member 'users' cannot be read: the model gives NaN"):
        BlendRanker(SECTION).fit(shuffled, RUNTIME, members={**members, "users": held_member})


def test_a_member_that_is_certain_does_not_end_the_blend(
    shuffled: DayTable, members: dict[str, MemberFiles], tmp_path: Path
) -> None:
    scores = pl.read_parquet(members["items"].scores / Files.SCORES)
    certain = scores.with_columns(score=pl.col(Columns.LABEL).cast(pl.Float32))  # of an outcome that is read
    ranker = BlendRanker(SECTION)
    ranker.fit(shuffled, RUNTIME, members={**members, "items": changed(members["items"], tmp_path / "scores", certain)})
    assert np.isfinite(ranker.predict(rows_of(shuffled, -1))).all()


def test_too_few_clicks_on_the_validation_days_hold_the_blend(
    shuffled: DayTable, members: dict[str, MemberFiles], tmp_path: Path
) -> None:
    files_with_few_clicks = {}
    for name, files in members.items():
        scores = pl.read_parquet(files.scores / Files.SCORES)
        rare = scores.with_columns((pl.col(Columns.IMPRESSION) % 500 == 0).cast(pl.Int8).alias(Columns.LABEL))
        files_with_few_clicks[name] = changed(files, tmp_path / name, rare)
    with pytest.raises(DivergedError, match=r"1,500 rows of the validation days have 3 of the rarer label.* 5 or more"):
        BlendRanker(SECTION).fit(shuffled, RUNTIME, members=files_with_few_clicks)


def test_it_stays_calibrated_when_its_members_are_refitted_on_the_validation_days(
    shuffled: DayTable, tmp_path: Path
) -> None:
    """From the validation day on twice as many rows are clicked: members are too low, refitted ones less so."""
    writer = DayTableWriter(tmp_path / "table", Files.TABLE, chunk_rows=1_000)
    keeps_click = np.random.default_rng(4)
    for day in shuffled.days:
        rows = pl.concat(frame for of_day, frame in shuffled.frames() if of_day == day.day)
        if str(day.day) in {*shuffled.notes["split"]["warmup"], *shuffled.notes["split"]["train"]}:
            kept = pl.Series(keeps_click.random(rows.height) < 0.5)
            rows = rows.with_columns((pl.col(Columns.LABEL) * kept).cast(pl.Int8))
        writer.append(rows)
    table = writer.close(dict(shuffled.notes))
    files = {}
    for name, section in MEMBERS.items():
        files[name] = MemberFiles(tmp_path / name, tmp_path / f"{name}_scores")
        train(section.kind, section.model_copy(update={"refit": True}), table, RUNTIME, *files[name], name=name)
    blend = BlendRanker(SECTION)
    blend.fit(table, RUNTIME, members=files)
    validation, test = (rows_of(table, number) for number in (-2, -1))
    assert blend.predict(validation).mean() == pytest.approx(validation[Columns.LABEL].mean(), abs=1e-4)
    assert blend.predict(test).mean() == pytest.approx(test[Columns.LABEL].mean(), abs=0.05)
