"""The whole judgement on small scored logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from shortlist.artefacts import write_json, write_manifest
from shortlist.config.gates import Gates
from shortlist.evaluation.blessing import verify_blessing
from shortlist.evaluation.judge import Candidate, judge
from shortlist.evaluation.verdict import Verdict

Frame = Callable[..., pl.DataFrame]


class Run:
    """The folders that the steps before the gates would have written."""

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
        self.prove(name)

    def prove(self, name: str, candidate: str = "") -> None:
        self.prover(self.root / f"{name}_model", self.root / f"{name}_proof", self.limits, candidate)

    def score(self, name: str, frame: pl.DataFrame) -> None:
        (self.root / name).mkdir(exist_ok=True)
        frame.write_parquet(self.root / name / "scores.parquet")

    def judge(self) -> tuple[str | None, Verdict]:
        candidates = {
            name: Candidate(self.root / f"{name}_model", self.root / name, self.root / f"{name}_proof")
            for name in ("xgboost", "dlrm")
        }
        evidence = (self.root / name for name in ("log", "skew", "champion", "popularity"))
        blessed = judge(self.limits, 7, candidates, *evidence, self.root / "verdict")
        return blessed, Verdict.read(self.root / "verdict")

    def held_by(self) -> set[str]:
        blessed, verdict = self.judge()
        assert blessed is None
        return {gate.name for gate in verdict.reports[0].gates if not gate.passed}


@pytest.fixture
def run(tmp_path: Path, frame: Frame, limits: Gates, prove: Callable[..., None]) -> Run:
    return Run(tmp_path, frame(), limits, prove)


def test_a_good_first_model_is_blessed_and_verified(run: Run) -> None:
    blessed, verdict = run.judge()
    assert blessed == "xgboost"
    assert [report.model for report in verdict.reports] == ["xgboost"]  # dlrm was not declared
    assert verify_blessing(run.root / "verdict/blessing.json", run.root / "xgboost_model").blessed is not None


def test_the_planted_probability_scores_the_best_possible(run: Run) -> None:
    _, verdict = run.judge()
    xgboost = verdict.models[0]
    assert verdict.best_possible is not None
    assert xgboost.auc is not None
    assert verdict.best_possible.auc == pytest.approx(xgboost.auc.value, abs=1e-6)


def test_of_two_the_lower_validation_loss_of_the_kept_epoch_is_blessed(run: Run) -> None:
    run.model("dlrm", 0.55, 0.50, 0.53)
    run.score("dlrm", run.frame)
    assert run.judge()[0] == "dlrm"


def test_the_same_evidence_gives_the_same_verdict(run: Run) -> None:
    first = run.judge()[1].model_dump_json()
    assert run.judge()[1].model_dump_json() == first


def test_a_candidate_without_scores_is_held_by_all_that_needs_them(run: Run) -> None:
    (run.root / "xgboost/scores.parquet").unlink()
    assert run.held_by() == {"data", "absolute", "calibration", "slices"}


def test_a_candidate_without_a_model_is_held(run: Run) -> None:
    for path in (run.root / "xgboost_model").iterdir():
        path.unlink()
    (run.root / "xgboost_model").rmdir()
    assert run.held_by() == {"integrity", "parity", "infra"}


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
    proof = run.root / "xgboost_proof/proof.json"
    proof.unlink() if content is None else proof.write_text(content)
    assert run.held_by() == {"parity", "infra"}


def test_the_proof_of_another_model_holds(run: Run) -> None:
    run.prove("xgboost", candidate="0123456789abcdef")
    assert run.held_by() == {"parity", "infra"}


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
    blessed, verdict = run.judge()
    assert blessed == "xgboost"
    assert verdict.slice_reference == "the champion"
    assert [one.role for one in verdict.models] == ["candidate", "baseline", "champion"]


def test_labels_of_one_class_hold(run: Run) -> None:
    for name in ("xgboost", "popularity"):
        run.score(name, run.frame.with_columns(label=pl.lit(0, pl.Int8)))
    assert {"data", "absolute", "calibration", "slices"} <= run.held_by()


def test_nobody_to_judge_blesses_nobody(run: Run) -> None:
    (run.root / "xgboost/scores.parquet").unlink()
    (run.root / "xgboost_model/model.json").unlink()
    blessed, verdict = run.judge()
    assert blessed is None
    assert verdict.reports == ()
