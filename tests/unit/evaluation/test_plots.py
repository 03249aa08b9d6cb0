from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

from shortlist.evaluation.measure import measure
from shortlist.evaluation.records import Measures, Scores
from shortlist.report.figures import GRID, INK, MUTED, SERIES, Plot, write_plots
from shortlist.report.plots import (
    auc_plot,
    calibration_plot,
    days_plot,
    importance_plot,
    loss_plot,
    roc_plot,
    scores_plot,
)
from shortlist.spec.gates import Gates

DAYS = [(date(2026, 1, 5) + timedelta(n), 100 + n, 20) for n in range(4)]
SPLIT = {"train": [DAYS[1][0], DAYS[2][0]], "test": [DAYS[3][0]]}
HISTORY = [{"epoch": 1, "train_log_loss": 0.6, "validation_log_loss": None}, {"epoch": 2, "validation_log_loss": 0.5}]


@pytest.fixture(scope="module")
def models(
    frame: Callable[..., pl.DataFrame], tmp_path_factory: pytest.TempPathFactory, limits: Gates
) -> list[Measures]:
    scores = tmp_path_factory.mktemp("scores")
    frame().write_parquet(scores / "xgboost.parquet")
    frame().with_columns(score=pl.lit(0.25)).write_parquet(scores / "popularity.parquet")
    return [
        measure("xgboost", "candidate", scores / "xgboost.parquet", limits, seed=1).measures,
        measure("popularity", "baseline", scores / "popularity.parquet", limits, seed=1).measures,
        Measures(model="dlrm", role="candidate", problem="no test rows"),
    ]


@pytest.fixture(scope="module")
def every(models: list[Measures]) -> list[Plot]:
    drawn = [
        auc_plot(models, Scores(auc=0.75, log_loss=0.5)),
        roc_plot(models),
        calibration_plot(models),
        scores_plot(models),
        importance_plot({"user_rate": 0.7, "item_rate": 0.3}, "xgboost"),
        loss_plot(HISTORY, "dlrm", kept_epoch=2),
        days_plot(DAYS, SPLIT),
    ]
    assert all(drawn)
    return [one for one in drawn if one is not None]


def test_every_picture_is_well_formed_and_says_what_it_shows(every: list[Plot]) -> None:
    for one in every:
        assert ElementTree.fromstring(one.svg).tag.endswith("svg")  # noqa: S314 - our own text
        assert one.title
        assert one.caption.endswith(".")


def test_text_stays_text(every: list[Plot]) -> None:
    texts = {one.name: "".join(ElementTree.fromstring(one.svg).itertext()) for one in every}  # noqa: S314
    assert "xgboost" in texts["roc"]
    assert "popularity" in texts["roc"]
    assert "possible 0.7500" in texts["auc"]
    assert "user_rate" in texts["importance_xgboost"]
    assert "kept 2" in texts["loss_dlrm"]
    assert "5 Jan" in texts["days"]


def test_colours_follow_the_page(every: list[Plot]) -> None:
    for one in every:
        for colour in (INK, MUTED, GRID, *SERIES):
            assert not re.search(rf"(?<!, ){colour}", one.svg), f"{one.name} has {colour} outside of var()"
        assert "black" not in one.svg
        assert "#000000" not in one.svg


def test_ids_of_two_pictures_never_clash(every: list[Plot]) -> None:
    ids = [name for one in every for name in re.findall(r' id="([^"]+)"', one.svg)]
    assert len(ids) == len(set(ids))
    for one in every:
        assert all(name.startswith(one.name) for name in re.findall(r"(?:url\(|href=\")#([\w-]+)", one.svg))


def test_the_same_numbers_draw_the_same_bytes(models: list[Measures]) -> None:
    first, second = roc_plot(models), roc_plot(models)
    assert first == second


def test_pictures_become_files_that_stand_alone(every: list[Plot], tmp_path: Path) -> None:
    paths = write_plots(every, tmp_path / "plots")
    assert [path.stem for path in paths] == [one.name for one in every]
    for path in paths:
        ElementTree.parse(path)  # noqa: S314


def test_nothing_measured_draws_nothing() -> None:
    unmeasured = [Measures(model="dlrm", role="candidate", problem="no test rows")]
    assert [draw(unmeasured) for draw in (roc_plot, calibration_plot, scores_plot)] == [None] * 3
    assert auc_plot(unmeasured, None) is None
    assert importance_plot({}, "dlrm") is None
    assert loss_plot([], "dlrm", None) is None
    assert loss_plot([{"epoch": 1, "note": 3}], "dlrm", None) is None
    assert days_plot([], {}) is None


def test_many_days_and_days_without_rows_can_be_drawn() -> None:
    days = [(date(2026, 1, 1) + timedelta(n), n % 3, 0) for n in range(400)]
    drawn = days_plot(days, {})
    assert drawn is not None
    assert len(drawn.svg) < 200_000


def test_names_are_neither_formulas_nor_markup() -> None:
    drawn = importance_plot({"$a^$": 0.5, "</text><script>alert(1)</script>": 0.5}, "xgboost")
    assert drawn is not None
    texts = [element.text for element in ElementTree.fromstring(drawn.svg).iter() if element.tag.endswith("text")]  # noqa: S314
    assert {"$a^$", "</text><script>alert(1)</script>"} <= set(texts)
