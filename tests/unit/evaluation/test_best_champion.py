"""The champion gate stops a chain of promotions, each slightly worse and within the margin, by the best champion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.evaluation.evaluate_gates import Candidate, evaluate_gates
from shortlist.evaluation.gates.gates import champion_gate
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.evaluation.metrics.records import Champion, PairedComparison
from shortlist.evaluation.verdict import GateVerdict
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import write_json, write_manifest

Frame = Callable[..., pl.DataFrame]
STEP = 0.001


class Spec:
    """A spec whose every blessed candidate is promoted."""

    def __init__(self, root: Path, limits: Gates, prover: Callable[..., None]) -> None:
        self.root, self.limits, self.prover = root, limits, prover
        self.declared_then = False
        self.champion, self.versions, self.best = 0, dict[int, pl.DataFrame](), dict[int, str]()
        self.write("log", "log.json", {"notes": {"raw_rows": 9, "valid_rows": 9, "quarantined_rows": 0}})
        none = {"historical_mismatches": 0, "online_mismatches": 0, "columns": {}, "row_count_ok": True}
        self.write("skew", "skew.json", {"rows_checked": 500, **none})

    def write(self, folder: str, name: str, content: dict[str, object]) -> Path:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        write_json(self.root / folder / name, content)
        return self.root / folder

    def score(self, folder: str, frame: pl.DataFrame) -> Path:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        frame.write_parquet(self.root / folder / "scores.parquet")
        return self.root / folder

    def train(self, frame: pl.DataFrame) -> GateVerdict:
        """Evaluate the gates for a candidate as a run does; promote it when it is blessed."""
        place = f"run-{len(list(self.root.glob('run-*')))}"
        model = self.write(f"{place}/model", "model.json", {"history": [{"validation_log_loss": 0.5}]})
        write_manifest(model)
        self.prover(model, self.root / f"{place}/proof", self.limits)
        best = self.best.get(self.champion, "")
        champion_fields = {"version": str(self.champion or ""), "best": best, "declared_then": self.declared_then}
        champion = self.write(f"{place}/champion", "champion.json", champion_fields)
        if self.champion:
            self.score(f"{place}/champion", self.versions[self.champion])
        if best:
            self.score(f"{place}/champion/best", self.versions[int(best)])
        candidate = Candidate(model, self.score(f"{place}/scores", frame), self.root / f"{place}/proof")
        popular = self.score(f"{place}/popularity", frame.with_columns(score=pl.lit(0.25)))
        evidence = self.root / "log", self.root / "skew", champion, popular
        blessed = evaluate_gates(self.limits, 7, {"trees": candidate}, *evidence, self.root / place / "verdict")
        verdict = GateVerdict.read(self.root / place / "verdict")
        if blessed:
            self.champion = len(self.versions) + 1
            self.versions[self.champion] = frame
            self.best[self.champion] = verdict.best_version_after_promotion("trees")
        return verdict


def worse(frame: pl.DataFrame, drop: float) -> pl.DataFrame:
    """The same rows, with so much noise in their scores that the AUC is lower by `drop`."""
    labels, scores = frame["label"].cast(pl.Float64).to_numpy(), frame["score"].cast(pl.Float64).to_numpy()
    noise, odds = np.random.default_rng(5).normal(size=scores.size), np.log(scores / (1 - scores))
    low, high = 0.0, 3.0
    for _ in range(40):
        middle = (low + high) / 2
        noisy = 1 / (1 + np.exp(-(odds + middle * noise)))
        low, high = (middle, high) if auc(labels, noisy) > auc(labels, scores) - drop else (low, middle)
    return frame.with_columns(score=pl.Series(noisy, dtype=pl.Float32))


@pytest.fixture
def chain(frame: Frame) -> list[pl.DataFrame]:
    """Candidates, each worse than the one before by 0.001 of AUC."""
    rows = frame(3_000, 1_000).with_columns(pl.col("score").clip(1e-6, 1 - 1e-6))
    return [worse(rows, number * STEP) for number in range(6)]


def of(tmp_path: Path, validate_export: Callable[..., None], **limits: object) -> Spec:
    # The chain is about the champion's gate; noisier scores are also calibrated worse, which is not asked here.
    loose = {"max_calibration_error": 0.5, "max_rate_error": 1.0, "max_slice_auc_drop": 0.5, "max_auc_drop": 0.003}
    loose |= {"metric": "auc"}
    return Spec(tmp_path, Gates.model_validate({"bootstrap_rounds": 60, "baseline": "popularity", **loose, **limits}),
                validate_export)  # fmt: skip


def failed_messages(verdict: GateVerdict) -> list[str]:
    return [gate.name for gate in verdict.reports[0].gates if not gate.passed]


def test_repeated_small_drops_are_stopped_at_the_margin_of_the_best_champion(
    tmp_path: Path, chain: list[pl.DataFrame], validate_export: Callable[..., None]
) -> None:
    spec = of(tmp_path, validate_export)
    verdicts = [spec.train(frame) for frame in chain]
    promoted = len(spec.versions)
    assert 2 <= promoted <= 3  # the first, and those within 0.003 of it
    assert all(best in ("", "1") for best in spec.best.values())
    assert [failed_messages(verdict) for verdict in verdicts[:promoted]] == [[]] * promoted
    assert [failed_messages(verdict) for verdict in verdicts[promoted:]] == [["champion"]] * (6 - promoted)
    (reason,) = [gate.reason for gate in verdicts[promoted].reports[0].gates if not gate.passed]
    assert "of version 1, the best champion so far): small steps down add up" in reason


def test_without_the_best_champion_small_drops_pass(
    tmp_path: Path, chain: list[pl.DataFrame], validate_export: Callable[..., None]
) -> None:
    spec = of(tmp_path, validate_export, compare_with_best=False)
    for frame in chain:
        assert failed_messages(spec.train(frame)) == []
    assert set(spec.best.values()) == {""}


def test_a_candidate_that_is_not_worse_becomes_the_best_champion(
    tmp_path: Path, chain: list[pl.DataFrame], validate_export: Callable[..., None]
) -> None:
    spec = of(tmp_path, validate_export)
    for frame in (chain[1], chain[2], chain[0], chain[1]):
        assert failed_messages(spec.train(frame)) == []
    assert spec.best == {1: "", 2: "1", 3: "", 4: "3"}


def test_a_best_champion_that_cannot_be_scored_holds() -> None:
    champion = Champion(version="9", best="4", best_problem="column 'tab' is not declared any more")
    same = PairedComparison.model_validate(
        {"reference": "champion", "differences": {"auc": {"candidate": 0.7, "reference": 0.7, "value": 0.0,
                                                          "low": -0.0001, "error": 0.0001, "rows": 4_000}}}
    )  # fmt: skip
    gate_result = champion_gate(
        champion, same, "auc", Gates(), PairedComparison(reference="version 4", problem="not scored")
    )
    assert (gate_result.passed, gate_result.reason) == (
        False,
        "version 4, the best champion so far: no comparison, column 'tab' is not declared any more;"
        " gates.compare_with_best: false compares with the champion alone",
    )


def test_a_champion_of_an_earlier_declaration_is_compared_on_common_rows(
    tmp_path: Path, chain: list[pl.DataFrame], validate_export: Callable[..., None]
) -> None:
    spec = of(tmp_path, validate_export, compare_with_best=False, min_test_rows=500)
    assert failed_messages(spec.train(chain[0])) == []
    spec.versions[1] = spec.versions[1].filter(pl.int_range(pl.len()) % 4 > 0)  # a quarter was no valid row then
    assert failed_messages(spec.train(chain[0])) == ["champion", "slices"]
    spec.declared_then = True
    verdict = spec.train(chain[0])
    assert failed_messages(verdict) == []
    (reason,) = [gate.reason for gate in verdict.reports[0].gates if gate.name == "champion"]
    common_rows = spec.versions[1].filter(pl.col("split") == "test").height
    assert "AUC difference +0.0000" in reason
    assert f"{common_rows:,} test rows of the log as it was declared for that version)".replace(",", " ") in reason
    spec.champion, spec.versions[1] = 1, spec.versions[1].filter(pl.int_range(pl.len()) < 300)
    (reason,) = [gate.reason for gate in spec.train(chain[0]).reports[0].gates if gate.name == "champion"]
    assert "test rows are valid as the log was declared then and now; min_test_rows is 500" in reason
