"""Which of several candidates that pass is chosen, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.evaluation.blessing import Blessing, bless
from shortlist.evaluation.choice import choose
from shortlist.evaluation.gate_report import GateReport
from shortlist.evaluation.gate_result import GateResult
from shortlist.evaluation.gates import GATES
from shortlist.evaluation.records import Measures
from shortlist.spec.gates import Gates

Frame = Callable[..., pl.DataFrame]
Write = Callable[[str, pl.DataFrame], Path]
LOSSES = {"trees": 0.52, "network": 0.51}


def chosen(limits: Gates, **scores: Path) -> Blessing:
    passes = [GateResult(name=name, passed=True, reason="fine") for name in GATES]
    reports = [GateReport.from_results(name, "00", passes) for name in scores]
    measures = [Measures(model=name, role="candidate", validation_log_loss=LOSSES[name]) for name in scores]
    return bless(reports, measures, choose(scores, "gauc", limits, 1))


@pytest.fixture
def validation(frame: Frame) -> pl.DataFrame:
    return frame(split="validation")


@pytest.fixture
def noisy(validation: pl.DataFrame) -> pl.DataFrame:
    noise = np.random.default_rng(1).normal(0, 0.3, validation.height)
    return validation.with_columns(score=(pl.col("score") + noise).clip(0, 1))


def test_the_better_one_on_validation_days_is_chosen_though_its_log_loss_is_higher(
    validation: pl.DataFrame, noisy: pl.DataFrame, write: Write, limits: Gates
) -> None:
    found = chosen(limits, trees=write("trees", validation), network=write("network", noisy))
    assert found.blessed is not None and found.blessed.model == "trees"
    assert found.reasons["trees"][0].startswith("passes every gate, best: GAUC on the validation days 0.")
    assert found.reasons["trees"][0].endswith("over 'network'")
    assert found.reasons["network"][0].startswith("passes every gate, but is behind 'trees': GAUC on the validation")


def test_of_two_that_chance_may_have_parted_the_lower_log_loss_is_chosen_and_said_to_be_a_toss(
    validation: pl.DataFrame, write: Write, limits: Gates
) -> None:
    noise = np.random.default_rng(1).normal(0, 0.005, validation.height)
    nearly = validation.with_columns(score=(pl.col("score") + noise).clip(0, 1))
    found = chosen(limits, trees=write("trees", validation), network=write("network", nearly))
    assert found.choice is not None and found.choice.tied == {"trees", "network"}
    assert found.blessed is not None and found.blessed.model == "network"
    losses = "because the lowest validation log loss decides (0.5100 of 'network', 0.5200 of 'trees')"
    assert (
        "a statistical tie with" in found.reasons["network"][0]
        and "a statistical tie with" in found.reasons["trees"][0]
    )
    assert found.reasons["network"][0].endswith(f"; chosen, {losses}")
    assert found.reasons["trees"][0].endswith(f"; not chosen, {losses}")


def test_rows_that_a_candidate_has_learnt_do_not_choose(
    validation: pl.DataFrame, noisy: pl.DataFrame, write: Write, limits: Gates
) -> None:
    learnt = write("trees", validation.with_columns(learnt=pl.lit(value=True)))
    found = chosen(limits, trees=learnt, network=write("network", noisy))
    assert found.choice is None
    assert found.blessed is not None and found.blessed.model == "network"  # by its log loss, as it knew no other way
    assert found.reasons["network"] == ("passes every gate, lowest validation log loss 0.5100",)


@pytest.mark.parametrize("left", ["nothing", "another row"])
def test_without_common_validation_rows_the_log_loss_chooses(
    left: str, validation: pl.DataFrame, frame: Frame, write: Write, limits: Gates
) -> None:
    other = frame() if left == "nothing" else validation.head(2_999)
    assert choose({"a": write("a", validation), "b": write("b", other)}, "gauc", limits, 1) is None
    assert choose({"a": write("a", validation)}, "gauc", limits, 1) is None
