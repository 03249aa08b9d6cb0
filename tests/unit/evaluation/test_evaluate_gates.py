"""Evaluation of all gates on small scored logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import Field, ValidationError

from shortlist.evaluation.blessing import read_blessing, verify_blessing
from shortlist.evaluation.evaluate_gates import Candidate, evaluate_gates
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import GATES, Case, Gate
from shortlist.evaluation.verdict import GateVerdict
from shortlist.report.assembly import gate_lines
from shortlist.spec.base import Section
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import write_json, write_manifest
from shortlist.system import registry

ROOT = Path(__file__).parents[3]
Frame = Callable[..., pl.DataFrame]


class Run:
    """Folders as the steps before the gates write them."""

    def __init__(self, root: Path, frame: pl.DataFrame, limits: Gates, prover: Callable[..., None]) -> None:
        self.root, self.frame, self.limits, self.prover = root, frame, limits, prover
        notes = {"raw_rows": 9_000, "valid_rows": 8_990, "quarantined_rows": 10}
        self.write("log", "log.json", {"days": [], "notes": notes})
        counts = {"rows_checked": 500, "historical_mismatches": 0, "online_mismatches": 0}
        self.write("skew", "skew.json", {**counts, "columns": {}, "row_count_ok": True})
        self.write("champion", "champion.json", {"version": ""})
        self.score("popularity", frame.with_columns(score=pl.lit(0.25)))
        self.model("xgboost", 0.51)
        self.score("xgboost", frame)

    def write(self, folder: str, name: str, content: dict[str, object]) -> None:
        (self.root / folder).mkdir(exist_ok=True)
        write_json(self.root / folder / name, content)

    def model(self, name: str, *losses: float) -> None:
        history = [{"epoch": n, "validation_log_loss": loss} for n, loss in enumerate(losses)]
        self.write(f"{name}_model", "model.json", {"kind": name, "history": history})
        write_manifest(self.root / f"{name}_model")
        self.validate_export(name)

    def validate_export(self, name: str, candidate: str = "") -> None:
        self.prover(self.root / f"{name}_model", self.root / f"{name}_proof", self.limits, candidate)

    def score(self, name: str, frame: pl.DataFrame) -> None:
        (self.root / name).mkdir(exist_ok=True)
        frame.write_parquet(self.root / name / "scores.parquet")

    def evaluate_gates(self) -> tuple[str | None, GateVerdict]:
        candidates = {
            name: Candidate(self.root / f"{name}_model", self.root / name, self.root / f"{name}_proof", members)
            for name, members in (("xgboost", ()), ("dlrm", ()), ("both", ("xgboost", "dlrm")))
            if (self.root / name).is_dir()
        }
        evidence = (self.root / name for name in ("log", "skew", "champion", "popularity"))
        blessed = evaluate_gates(self.limits, 7, candidates, *evidence, self.root / "verdict")
        return blessed, GateVerdict.read(self.root / "verdict")

    def held_by(self) -> set[str]:
        blessed, verdict = self.evaluate_gates()
        assert blessed is None
        return {gate.name for gate in verdict.reports[0].gates if not gate.passed}


@pytest.fixture
def run(tmp_path: Path, frame: Frame, limits: Gates, validate_export: Callable[..., None]) -> Run:
    return Run(tmp_path, frame(), limits, validate_export)


def test_a_good_first_model_is_blessed_and_verified(run: Run) -> None:
    blessed, verdict = run.evaluate_gates()
    assert blessed == "xgboost"
    assert [report.model for report in verdict.reports] == ["xgboost"]
    assert verify_blessing(run.root / "verdict/blessing.json", run.root / "xgboost_model").blessed is not None


def test_the_planted_probability_scores_the_best_possible(run: Run) -> None:
    _, verdict = run.evaluate_gates()
    xgboost = verdict.models[0]
    assert verdict.best_possible is not None
    assert xgboost.auc is not None
    assert verdict.best_possible.auc == pytest.approx(xgboost.auc.value, abs=1e-6)


def test_of_two_the_lower_validation_loss_of_the_kept_epoch_is_blessed(run: Run) -> None:
    run.model("dlrm", 0.55, 0.50, 0.53)
    run.score("dlrm", run.frame)
    assert run.evaluate_gates()[0] == "dlrm"


def noisy(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    noise = np.random.default_rng(seed).normal(0, 0.3, frame.height).astype(np.float32)
    return frame.with_columns(score=(pl.col("score") + pl.Series(noise)).clip(0.01, 0.99))


@pytest.mark.parametrize(("of", "blessed"), [("the mean", "both"), ("one member", "dlrm")])
def test_an_ensemble_is_blessed_only_if_it_beats_every_member(run: Run, of: str, blessed: str) -> None:
    run.limits = run.limits.model_copy(
        update={"max_calibration_error": 1.0, "max_rate_error": 1.0, "max_log_loss": 2.0}
    )
    first_scores, second_scores = noisy(run.frame, 1), noisy(run.frame, 2)
    mean = first_scores.with_columns(score=(first_scores["score"] + second_scores["score"]) / 2)
    for name, loss, scores in (("xgboost", 0.6, first_scores), ("dlrm", 0.5, second_scores), ("both", 0.4, mean)):
        run.model(name, loss)
        run.score(name, second_scores if (name, of) == ("both", "one member") else scores)
    blessed_model, verdict = run.evaluate_gates()
    assert blessed_model == blessed
    failed_messages = [gate.message for gate in verdict.reports[-1].gates if not gate.passed]
    if of == "one member":
        assert (
            len(failed_messages) == 1
            and "AUC lead +0.0000, lower bound +0.0000 <= 0" in failed_messages[0]
            and "dlrm alone would do" in failed_messages[0]
        )
    else:
        assert failed_messages == []


def test_the_same_evidence_gives_the_same_verdict(run: Run) -> None:
    first = run.evaluate_gates()[1].model_dump_json()
    assert run.evaluate_gates()[1].model_dump_json() == first


def test_a_candidate_without_scores_fails_every_gate_on_scores(run: Run) -> None:
    (run.root / "xgboost/scores.parquet").unlink()
    assert run.held_by() == {"data", "absolute", "calibration", "slices"}


def test_a_candidate_without_a_model_fails_the_gates(run: Run) -> None:
    for path in (run.root / "xgboost_model").iterdir():
        path.unlink()
    (run.root / "xgboost_model").rmdir()
    assert run.held_by() == {"integrity", "parity", "infra", "unknown_values"}


@pytest.mark.parametrize(
    ("folder", "file", "gates"),
    [
        ("log", "log.json", {"data"}),
        ("skew", "skew.json", {"skew"}),
        ("champion", "champion.json", {"champion"}),
        ("popularity", "scores.parquet", {"absolute", "slices"}),
    ],
)
def test_missing_evidence_holds(run: Run, folder: str, file: str, gates: set[str]) -> None:
    (run.root / folder / file).unlink()
    assert run.held_by() == gates


@pytest.mark.parametrize("content", [None, "not a proof"])
def test_a_missing_or_broken_proof_holds(run: Run, content: str | None) -> None:
    proof = run.root / "xgboost_proof/export_validation.json"
    proof.unlink() if content is None else proof.write_text(content)
    assert run.held_by() == {"parity", "infra", "unknown_values"}


def test_the_proof_of_another_model_holds(run: Run) -> None:
    run.validate_export("xgboost", candidate="0123456789abcdef")
    assert run.held_by() == {"parity", "infra", "unknown_values"}


def test_a_better_champion_holds(run: Run) -> None:
    run.write("champion", "champion.json", {"version": "3"})
    run.score("champion", run.frame)
    noisy = run.frame.with_columns(score=(pl.col("score") + pl.col("impression_id") % 7 * 0.1).clip(0, 1))
    run.score("xgboost", noisy)
    assert {"champion", "slices", "calibration"} <= run.held_by()


def test_a_champion_that_cannot_be_scored_holds(run: Run) -> None:
    run.write("champion", "champion.json", {"version": "3", "problem": "reads features that are gone"})
    assert run.held_by() == {"champion", "slices"}


def test_a_champion_on_other_rows_holds(run: Run) -> None:
    run.write("champion", "champion.json", {"version": "3"})
    run.score("champion", run.frame.head(2_900))
    assert run.held_by() == {"champion", "slices"}


def test_an_equal_champion_lets_pass(run: Run) -> None:
    run.write("champion", "champion.json", {"version": "3", "problem": "", "kind": "xgboost", "digest": "ab12"})
    run.score("champion", run.frame)
    blessed, verdict = run.evaluate_gates()
    assert blessed == "xgboost"
    assert verdict.slice_reference == "the champion"
    assert [model.role for model in verdict.models] == ["candidate", "baseline", "champion"]


def off(frame: pl.DataFrame, by: float) -> pl.DataFrame:
    noise = np.random.default_rng(4).normal(0, by, frame.height)
    return frame.with_columns(score=(pl.col("score") + noise).clip(0, 1))


def test_paired_bound_passes_a_candidate_that_an_unpaired_bound_holds(run: Run) -> None:
    run.limits = run.limits.model_copy(update={"metric": "auc"})
    run.score("popularity", off(run.frame, 0.05))
    blessed, verdict = run.evaluate_gates()
    candidate, baseline = verdict.models
    assert candidate.auc is not None and baseline.auc is not None
    assert candidate.auc.low < baseline.auc.value  # held until gates were paired: 3 000 rows leave wide intervals
    assert verdict.gains["xgboost"].differences["auc"].low > 0
    assert blessed == "xgboost"


def test_a_candidate_without_a_significant_lead_fails_the_gate(run: Run) -> None:
    run.limits = run.limits.model_copy(update={"metric": "auc"})
    run.score("popularity", off(run.frame, 0.001))
    assert run.held_by() == {"absolute"}


def test_gauc_decides_with_enough_users_and_holds_a_constant_order_within_users(run: Run) -> None:
    """Scores that are constant within each user."""
    user_rates = run.frame.with_columns(score=pl.col("label").mean().over("user").clip(0.01, 0.99))
    run.score("xgboost", user_rates)
    blessed, verdict = run.evaluate_gates()
    (absolute,) = (gate for gate in verdict.reports[0].gates if gate.name == "absolute")
    assert (blessed, verdict.metric) == (None, "gauc")
    assert absolute.reason.startswith("GAUC gain +0.0000, lower bound +0.0000 <= 0.0000")
    for name, frame in (("xgboost", run.frame), ("popularity", run.frame.with_columns(score=pl.lit(0.25)))):
        run.score(name, frame.with_columns(user=pl.col("user") % 40))  # 40 users
    assert run.evaluate_gates()[1].metric == "auc"


def test_labels_of_one_class_hold(run: Run) -> None:
    for name in ("xgboost", "popularity"):
        run.score(name, run.frame.with_columns(label=pl.lit(0, pl.Int8)))
    assert {"data", "absolute", "calibration", "slices"} <= run.held_by()


def test_without_candidates_no_model_is_blessed(run: Run) -> None:
    (run.root / "xgboost").rename(run.root / "elsewhere")
    blessed, verdict = run.evaluate_gates()
    assert blessed is None
    assert verdict.reports == ()


class Spread(Section):
    """Settings of a gate that is registered in this file."""

    min_deviation: float = Field(default=0.01, ge=0)
    """Least standard deviation of the scores."""


def spread_gate(case: Case) -> GateResult:
    """Hold when the deviation of the scores is too small."""
    limit = case.settings("spread", Spread).min_deviation
    if case.scored.read_rows is None:
        return GateResult.from_failures("spread", ["no scores"], "")
    deviation = float(case.scored.read_rows().scores.std())
    failures = [f"deviation {deviation:.3f} < {limit:.3f} (min_deviation)"] if deviation < limit else []
    return GateResult.from_failures(
        "spread", failures, f"deviation {deviation:.3f}", deviation=deviation, min_deviation=limit
    )


@pytest.fixture
def with_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GATES, "spread", Gate(spread_gate, Spread))


@pytest.mark.usefixtures("with_spread")
@pytest.mark.parametrize(("settings", "blessed"), [({}, "xgboost"), ({"spread": {"min_deviation": 0.4}}, None)])
def test_a_registered_custom_gate_decides_by_its_settings(
    run: Run, settings: dict[str, Any], blessed: str | None
) -> None:
    run.limits = Gates.model_validate({**run.limits.model_dump(), "custom": settings})
    blessed_model, verdict = run.evaluate_gates()
    assert blessed_model == blessed
    expected_reason = "deviation 0.194 < 0.400 (min_deviation)"
    reason = expected_reason if blessed is None else "deviation 0.194"
    assert [line.reason for line in gate_lines(verdict.reports) if line.name == "spread"] == [reason]  # summary.json
    reasons = read_blessing(run.root / "verdict/blessing.json").reasons["xgboost"]
    if blessed is None:
        assert reasons == (f"Gate 'spread' holds the candidate: {expected_reason}.",)
    else:
        assert verify_blessing(run.root / "verdict/blessing.json", run.root / "xgboost_model").blessed is not None


STRICT_SPREAD = Gate(lambda case: GateResult(name="spread", passed=False, reason="too even"))


def test_a_blessing_stays_valid_when_a_new_gate_is_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.evaluate_gates()
    monkeypatch.setitem(GATES, "spread", STRICT_SPREAD)
    blessing = verify_blessing(run.root / "verdict/blessing.json", run.root / "xgboost_model")
    assert (blessing.gates[0].passed, blessing.gates[0].holds) == (True, ())
    assert GateVerdict.read(run.root / "verdict").reports == blessing.gates


def test_a_gate_that_is_installed_later_holds_the_next_candidate(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.evaluate_gates()[0] == "xgboost"
    monkeypatch.setitem(GATES, "spread", STRICT_SPREAD)
    assert run.held_by() == {"spread"}


def test_a_blessing_stays_valid_when_a_gate_is_removed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as installed:
        installed.setitem(GATES, "spread", Gate(spread_gate, Spread))
        run.evaluate_gates()
    blessing = verify_blessing(run.root / "verdict/blessing.json", run.root / "xgboost_model")
    assert "spread" in blessing.gates[0].required


@pytest.mark.usefixtures("with_spread")
def test_the_settings_of_a_gate_of_ones_own_are_checked() -> None:
    with pytest.raises(ValidationError, match="'spred' is no gate with settings of its own; did you mean 'spread'"):
        Gates.model_validate({"custom": {"spred": {}}})
    with pytest.raises(ValidationError) as refusal:
        Gates.model_validate({"custom": {"spread": {"min_deviaton": 1}}})
    assert refusal.value.errors()[0]["loc"] == ("custom", "spread", "min_deviaton")


GATE_FILE = re.findall(r"```python\n(.*?)```", (ROOT / "docs/gates.md").read_text(), re.DOTALL)[0]
"""The example of the page."""


@pytest.fixture
def add_gate_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Return a function that adds a gate in a file of the project."""
    gates = dict(GATES)

    def add_gate_file(text: str) -> Path:
        path = tmp_path / "project/pipelines/gates/top_scores.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        monkeypatch.setattr(registry, "project_root", lambda: tmp_path / "project")
        monkeypatch.setattr(GATES, "_complete", False)
        monkeypatch.setattr(GATES, "added", {})
        return path

    yield add_gate_file
    GATES.clear()
    GATES.update(gates)


@pytest.mark.parametrize(("max_share", "holds"), [(0.2, set()), (0.1, {"top_scores"})])
def test_a_gate_in_a_file_of_the_project_decides_by_its_settings(
    run: Run, add_gate_file: Callable[[str], Path], max_share: float, holds: set[str]
) -> None:
    add_gate_file(GATE_FILE)
    run.limits = Gates.model_validate({**run.limits.model_dump(), "custom": {"top_scores": {"max_share": max_share}}})
    _, verdict = run.evaluate_gates()
    assert {gate.name for gate in verdict.reports[0].gates if not gate.passed} == holds
    assert "top_scores" in verdict.reports[0].required


def test_a_gate_of_the_project_that_fails_holds_with_its_file_and_error(
    run: Run, add_gate_file: Callable[[str], Path]
) -> None:
    path = add_gate_file(GATE_FILE.replace("> 0.5).mean()", "> 0.5).mean()[0]"))
    _, verdict = run.evaluate_gates()
    (hold,) = verdict.reports[0].holds
    reason = f"the gate itself failed ({path}): IndexError: invalid index to scalar variable."
    assert hold == f"Gate 'top_scores' holds the candidate: {reason}."


def test_a_query_holds_a_candidate(run: Run) -> None:
    sql = "SELECT avg(score) FROM test_rows WHERE tab = 1"
    run.limits = Gates.model_validate({**run.limits.model_dump(), "queries": {"mean": {"sql": sql, "max": 0.1}}})
    assert run.held_by() == {"queries"}


def test_a_slice_by_a_condition_holds_a_candidate_that_every_other_gate_passes(run: Run) -> None:
    worse = pl.when((pl.col("slice_tab") == 2) & ~pl.col("cold_user")).then(0.25).otherwise("score")
    loose = {"max_calibration_error": 1.0, "max_rate_error": 1.0, "max_slice_auc_drop": 0.5, "slices": ()}
    run.limits = Gates.model_validate({**run.limits.model_dump(), **loose})
    run.score("xgboost", run.frame.with_columns(score=worse))
    assert run.evaluate_gates()[0] == "xgboost"
    condition = {"where": "tab = 2 AND NOT cold_user", "min_auc": 0.6}
    run.limits = Gates.model_validate({**run.limits.model_dump(), "slices": [condition]})
    assert run.held_by() == {"slices"}


def test_a_declared_model_without_files_fails_the_gates(run: Run) -> None:
    (run.root / "xgboost/scores.parquet").unlink()
    (run.root / "xgboost_model/model.json").unlink()
    assert {"absolute", "integrity", "parity"} <= run.held_by()


def test_the_declared_baseline_is_the_one_to_beat(run: Run) -> None:
    run.limits = run.limits.model_copy(update={"baseline": "yesterday"})
    _, verdict = run.evaluate_gates()
    assert [model.model for model in verdict.models] == ["xgboost", "yesterday"]
    (absolute,) = (gate for gate in verdict.reports[0].gates if gate.name == "absolute")
    assert "yesterday" in absolute.reason
    assert verdict.slice_reference == "yesterday"
