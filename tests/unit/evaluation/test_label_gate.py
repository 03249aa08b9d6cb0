"""The gate of further labels holds every score that has collapsed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.evaluation.gates.label_gate import LabelLimits, compare_with_constant_rate, labels_gate
from shortlist.evaluation.metrics.measure import ScoredModel, measure
from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.evaluation.metrics.scores import further_labels, read_scores
from shortlist.report.summary import label_numbers
from shortlist.spec.gates import Gates

Frame = Callable[..., pl.DataFrame]
Write = Callable[[str, pl.DataFrame], Path]


@pytest.fixture
def labelled(frame: Frame) -> pl.DataFrame:
    """Rows with a second label, whose score is its planted probability."""
    rows, generator = frame(), np.random.default_rng(9)
    planted = generator.beta(1.0, 5.0, rows.height)
    likes = (generator.random(rows.height) < planted).astype(np.int8)
    return rows.with_columns(pl.Series("label_like", likes), pl.Series("score_like", planted.astype(np.float32)))


def scored(write: Write, limits: Gates, name: str, rows: pl.DataFrame) -> ScoredModel:
    return measure(name, "candidate", write(name, rows), limits, 1)


def test_a_crawler_widens_the_log_loss_and_not_its_distance_to_a_constant(
    frame: Frame, write: Write, limits: Gates
) -> None:
    """A user with a quarter of the rows and no click: the bound of the log loss alone is above the constant's."""
    rows = frame()
    is_crawler = pl.int_range(pl.len()) >= rows.height * 3 // 4
    rows = rows.with_columns(
        pl.when(is_crawler).then(-1).otherwise("user").alias("user"),
        pl.when(is_crawler).then(0).otherwise("label").cast(pl.Int8).alias("label"),
        pl.when(is_crawler).then(0.01).otherwise("score").cast(pl.Float32).alias("score"),
    )
    measures = scored(write, limits, "net", rows).measures
    assert measures.log_loss is not None and measures.constant_rate_gap is not None
    constant_loss = measures.log_loss.value - measures.constant_rate_gap.value
    assert measures.log_loss.high > constant_loss
    is_better, phrase = compare_with_constant_rate(measures)
    assert is_better and f"against {constant_loss:.4f} of a constant rate" in phrase
    (crawler,) = measures.heavy_users
    assert (crawler.user, crawler.share, crawler.label_rate) == ("-1", 0.25, 0.0)
    useless = scored(write, limits, "rate", rows.with_columns(pl.col("label").mean().cast(pl.Float32).alias("score")))
    assert not compare_with_constant_rate(useless.measures)[0]


def constant(rows: pl.DataFrame) -> pl.DataFrame:
    rate = float(np.asarray(rows["label_like"].mean()))
    return rows.with_columns(pl.lit(rate).cast(pl.Float32).alias("score_like"))


def test_a_good_score_of_every_label_passes(labelled: pl.DataFrame, write: Write, limits: Gates) -> None:
    candidate, baseline = (
        scored(write, limits, "net", labelled),
        scored(write, limits, "popularity", constant(labelled)),
    )
    gate_result = labels_gate(candidate, baseline, None, limits, LabelLimits())
    assert gate_result.passed, gate_result.reason
    assert (
        "like: AUC, lower bound 0." in gate_result.reason
        and "gain +0." in gate_result.reason
        and "over popularity" in gate_result.reason
    )
    assert gate_result.numbers["like"]["auc"]["value"] > 0.6


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (1 - pl.col("score_like"), r"like: AUC, lower bound 0\.\d+ < 0\.5200 \(min_auc\)"),
        (pl.lit(0.9).cast(pl.Float32), r"log loss 1\.\d+ against 0\.\d+ of a constant rate \(difference \+1"),
        (pl.col("score_like") / 2, r"rate error \d\d\.\d% > 20\.0%"),
        (pl.lit(float("nan")).cast(pl.Float32), r"like: no numbers: .*NaN|like: no numbers: .*finite"),
    ],
)
def test_a_collapsed_head_holds_the_candidate(
    labelled: pl.DataFrame, write: Write, limits: Gates, score: pl.Expr, reason: str
) -> None:
    candidate = scored(write, limits, "net", labelled.with_columns(score.alias("score_like")))
    assert candidate.measures.auc is not None  # the label's own score is as good as before
    gate_result = labels_gate(candidate, candidate, None, limits, LabelLimits(min_gain_over_baseline=-0.1))
    assert not gate_result.passed
    assert pl.Series([gate_result.reason]).str.contains(reason).item(), gate_result.reason


def test_label_gate_holds_a_head_that_does_not_beat_the_baselines_head(
    labelled: pl.DataFrame, write: Write, limits: Gates
) -> None:
    same = scored(write, limits, "popularity", labelled)
    gate_result = labels_gate(scored(write, limits, "net", labelled), same, None, limits, LabelLimits())
    assert not gate_result.passed
    assert (
        "of popularity, a difference of +0.0000, lower bound +0.0000 <= +0.0000 (min_gain_over_baseline)"
        in gate_result.reason
    )


def test_label_gate_holds_a_head_behind_the_champions_head(labelled: pl.DataFrame, write: Write, limits: Gates) -> None:
    noise = np.random.default_rng(3).random(labelled.height).astype(np.float32) / 4
    worse = labelled.with_columns((pl.col("score_like") / 2 + pl.Series(noise)).alias("score_like"))
    candidate, baseline = scored(write, limits, "net", worse), scored(write, limits, "popularity", constant(labelled))
    champion = scored(write, limits, "champion", labelled)
    assert labels_gate(candidate, baseline, None, limits, LabelLimits(max_rate_error=1.0)).passed
    gate_result = labels_gate(candidate, baseline, champion, limits, LabelLimits(max_rate_error=1.0))
    assert not gate_result.passed
    assert "of champion, a difference of -0." in gate_result.reason and "(max_auc_drop)" in gate_result.reason


def test_label_gate_holds_a_label_with_one_class(labelled: pl.DataFrame, write: Write, limits: Gates) -> None:
    candidate = scored(write, limits, "net", labelled.with_columns(pl.lit(0).cast(pl.Int8).alias("label_like")))
    gate_result = labels_gate(candidate, candidate, None, limits, LabelLimits())
    assert not gate_result.passed
    assert "like: no numbers: " in gate_result.reason and "class" in gate_result.reason


def test_labels_are_read_from_the_scores_file(labelled: pl.DataFrame, write: Write, limits: Gates) -> None:
    path = write("net", labelled) / "scores.parquet"
    assert further_labels(path) == ("like",)
    assert further_labels(path.with_name("nothing.parquet")) == ()
    rows = read_scores(path, "test", "like")
    assert (rows.labels.tolist(), rows.scores.tolist()) == (
        labelled["label_like"].to_list(),
        labelled["score_like"].cast(pl.Float64).to_list(),
    )
    with pytest.raises(UnmeasurableError, match=r"scores\.parquet has no column 'label_share'"):
        read_scores(path, "test", "share")


def test_the_summary_has_a_line_per_model_and_label(labelled: pl.DataFrame, write: Write, limits: Gates) -> None:
    measures = scored(write, limits, "net", labelled).measures
    (line,) = label_numbers([measures])
    head = measures.labels["like"]
    assert head.auc is not None
    assert (line.model, line.label, line.auc, line.label_rate) == ("net", "like", head.auc.value, head.label_rate)
    assert head.curves is None
    assert line.best_possible is None


def test_best_possible_of_a_further_label_uses_its_planted_probability(
    labelled: pl.DataFrame, write: Write, limits: Gates
) -> None:
    planted = pl.col("score_like").cast(pl.Float64).alias("true_probability_like")
    turned = (1 - pl.col("score_like")).alias("score_like")
    rows = labelled.with_columns(planted, turned, true_probability=0.5)
    measures = scored(write, limits, "net", rows).measures
    head = measures.labels["like"]
    assert head.auc is not None and head.best_possible is not None
    assert head.best_possible.auc == pytest.approx(1 - head.auc.value, abs=1e-6)  # the score is turned round
    (line,) = label_numbers([measures])
    assert line.best_possible == head.best_possible
