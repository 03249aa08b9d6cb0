"""Choice among several candidates that pass, and its reasons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.evaluation.blessing import Blessing, bless
from shortlist.evaluation.choice import choose_candidate
from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import GATES
from shortlist.evaluation.metrics.records import Measures
from shortlist.spec.gates import Gates

Frame = Callable[..., pl.DataFrame]
Write = Callable[[str, pl.DataFrame], Path]
LOSSES = {"trees": 0.52, "network": 0.51}


def choose_blessing(limits: Gates, **scores: Path) -> Blessing:
    passes = [GateResult(name=name, passed=True, reason="fine") for name in GATES]
    reports = [GateReport.from_results(name, "00", passes) for name in scores]
    measures = [Measures(model=name, role="candidate", validation_log_loss=LOSSES[name]) for name in scores]
    return bless(reports, measures, choose_candidate(scores, "gauc", limits, 1))


@pytest.fixture
def validation(frame: Frame) -> pl.DataFrame:
    return frame(split="validation")


@pytest.fixture
def noisy(validation: pl.DataFrame) -> pl.DataFrame:
    noise = np.random.default_rng(1).normal(0, 0.3, validation.height)
    return validation.with_columns(score=(pl.col("score") + noise).clip(0, 1))


def test_the_better_candidate_on_validation_days_is_chosen_despite_a_higher_log_loss(
    validation: pl.DataFrame, noisy: pl.DataFrame, write: Write, limits: Gates
) -> None:
    blessing = choose_blessing(limits, trees=write("trees", validation), network=write("network", noisy))
    assert blessing.blessed is not None and blessing.blessed.model == "trees"
    assert blessing.reasons["trees"][0].startswith("passes every gate, best: GAUC on the validation days 0.")
    assert blessing.reasons["trees"][0].endswith("over 'network'")
    assert blessing.reasons["network"][0].startswith("passes every gate, but is behind 'trees': GAUC on the validation")


def test_statistically_tied_candidates_are_decided_by_validation_log_loss(
    validation: pl.DataFrame, write: Write, limits: Gates
) -> None:
    noise = np.random.default_rng(1).normal(0, 0.005, validation.height)
    nearly = validation.with_columns(score=(pl.col("score") + noise).clip(0, 1))
    blessing = choose_blessing(limits, trees=write("trees", validation), network=write("network", nearly))
    assert blessing.choice is not None and blessing.choice.tied == {"trees", "network"}
    assert blessing.blessed is not None and blessing.blessed.model == "network"
    losses = "because the lowest validation log loss decides (0.5100 of 'network', 0.5200 of 'trees')"
    assert (
        "a statistical tie with" in blessing.reasons["network"][0]
        and "a statistical tie with" in blessing.reasons["trees"][0]
    )
    assert blessing.reasons["network"][0].endswith(f"; chosen, {losses}")
    assert blessing.reasons["trees"][0].endswith(f"; not chosen, {losses}")


def test_learnt_validation_rows_are_not_used_for_the_choice(
    validation: pl.DataFrame, noisy: pl.DataFrame, write: Write, limits: Gates
) -> None:
    learnt = write("trees", validation.with_columns(learnt=pl.lit(value=True)))
    blessing = choose_blessing(limits, trees=learnt, network=write("network", noisy))
    assert blessing.choice is None
    assert (
        blessing.blessed is not None and blessing.blessed.model == "network"
    )  # by its log loss, as it knew no other way
    assert blessing.reasons["network"] == (
        "passes every gate, validation log loss 0.5100, the lowest of those that pass",
    )


@pytest.mark.parametrize("other_rows", ["nothing", "another row"])
def test_without_common_validation_rows_the_log_loss_decides(
    other_rows: str, validation: pl.DataFrame, frame: Frame, write: Write, limits: Gates
) -> None:
    other_frame = frame() if other_rows == "nothing" else validation.head(2_999)
    assert choose_candidate({"a": write("a", validation), "b": write("b", other_frame)}, "gauc", limits, 1) is None
    assert choose_candidate({"a": write("a", validation)}, "gauc", limits, 1) is None
