from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

from shortlist.evaluation.metrics.measure import measure
from shortlist.evaluation.metrics.records import Measures, Scores
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
def all_plots(models: list[Measures]) -> list[Plot]:
    plots = [
        auc_plot(models, Scores(auc=0.75, log_loss=0.5)),
        roc_plot(models),
        calibration_plot(models),
        scores_plot(models),
        importance_plot({"user_rate": 0.7, "item_rate": 0.3}, "xgboost"),
        loss_plot(HISTORY, "dlrm", kept_epoch=2),
        days_plot(DAYS, SPLIT),
    ]
    assert all(plots)
    return [plot for plot in plots if plot is not None]


def test_every_plot_is_well_formed_and_has_a_title_and_caption(all_plots: list[Plot]) -> None:
    for plot in all_plots:
        assert ElementTree.fromstring(plot.svg).tag.endswith("svg")  # noqa: S314 - our own text
        assert plot.title
        assert plot.caption.endswith(".")


def test_text_stays_text(all_plots: list[Plot]) -> None:
    texts = {plot.name: "".join(ElementTree.fromstring(plot.svg).itertext()) for plot in all_plots}  # noqa: S314
    assert "xgboost" in texts["roc"]
    assert "popularity" in texts["roc"]
    assert "possible 0.7500" in texts["auc"]
    assert "user_rate" in texts["importance_xgboost"]
    assert "kept 2" in texts["loss_dlrm"]
    assert "5 Jan" in texts["days"]


def test_colours_follow_the_page(all_plots: list[Plot]) -> None:
    for plot in all_plots:
        for colour in (INK, MUTED, GRID, *SERIES):
            assert not re.search(rf"(?<!, ){colour}", plot.svg), f"{plot.name} has {colour} outside of var()"
        assert "black" not in plot.svg
        assert "#000000" not in plot.svg


def test_ids_of_two_pictures_never_clash(all_plots: list[Plot]) -> None:
    ids = [name for plot in all_plots for name in re.findall(r' id="([^"]+)"', plot.svg)]
    assert len(ids) == len(set(ids))
    for plot in all_plots:
        assert all(name.startswith(plot.name) for name in re.findall(r"(?:url\(|href=\")#([\w-]+)", plot.svg))


def test_the_same_numbers_draw_the_same_bytes(models: list[Measures]) -> None:
    first, second = roc_plot(models), roc_plot(models)
    assert first == second


def test_plots_are_written_as_standalone_files(all_plots: list[Plot], tmp_path: Path) -> None:
    paths = write_plots(all_plots, tmp_path / "plots")
    assert [path.stem for path in paths] == [plot.name for plot in all_plots]
    for path in paths:
        ElementTree.parse(path)  # noqa: S314


def test_plots_without_measures_are_none() -> None:
    unmeasured = [Measures(model="dlrm", role="candidate", problem="no test rows")]
    assert [draw(unmeasured) for draw in (roc_plot, calibration_plot, scores_plot)] == [None] * 3
    assert auc_plot(unmeasured, None) is None
    assert importance_plot({}, "dlrm") is None
    assert loss_plot([], "dlrm", None) is None
    assert loss_plot([{"epoch": 1, "note": 3}], "dlrm", None) is None
    assert days_plot([], {}) is None


def test_days_plot_handles_many_days_and_empty_days() -> None:
    days = [(date(2026, 1, 1) + timedelta(n), n % 3, 0) for n in range(400)]
    plot = days_plot(days, {})
    assert plot is not None
    assert len(plot.svg) < 200_000


def test_plot_labels_are_not_parsed_as_formulas_or_markup() -> None:
    plot = importance_plot({"$a^$": 0.5, "</text><script>alert(1)</script>": 0.5}, "xgboost")
    assert plot is not None
    texts = [node.text for node in ElementTree.fromstring(plot.svg).iter() if node.tag.endswith("text")]  # noqa: S314
    assert {"$a^$", "</text><script>alert(1)</script>"} <= set(texts)
