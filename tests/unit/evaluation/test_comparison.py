"""Comparison of a run's models, and the command that shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from models.registry import KINDS
from shortlist.cli.compare import compare as shown
from shortlist.cli.compare import newest_comparison
from shortlist.contracts import ShortlistError
from shortlist.evaluation.comparison import ModelComparison, TrainedFiles, compare_models
from shortlist.evaluation.metrics.records import Role
from shortlist.ranking.registry import kind_of
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import write_json

Frame = Callable[..., pl.DataFrame]
LIMITS = Gates(bootstrap_rounds=60)
MINIMAL = Path(__file__).parents[2] / "specs/valid/minimal.yaml"


class Models:
    def __init__(self, root: Path, frame: pl.DataFrame, prover: Callable[..., None]) -> None:
        self.root, self.frame, self.prover = root, frame, prover
        self.files: dict[str, TrainedFiles] = {}

    def add(
        self, name: str, role: Role, noise: float, seconds: float, weights: int = 10, *, as_baseline: bool = False
    ) -> None:
        folder, scores, proof = (self.root / f"{name}-{part}" for part in ("model", "scores", "proof"))
        for path in (folder, scores, proof):
            path.mkdir()
        record = {"kind": "xgboost", "train_seconds": seconds, "compared_as_baseline": as_baseline}
        write_json(folder / "model.json", record)
        (folder / "weights").write_bytes(bytes(weights))
        off = np.random.default_rng(3).normal(0, 1, self.frame.height) * noise
        scored = self.frame.with_columns(score=(pl.col("score") + off).clip(0, 1))
        scored.write_parquet(scores / "scores.parquet")
        if role == "candidate":
            self.prover(folder, proof, LIMITS, "00")
        self.files[name] = TrainedFiles(role, folder, scores, proof)

    def compared(self, blessed: str = "") -> ModelComparison:
        return compare_models("minimal", self.files, LIMITS, 7, blessed)


@pytest.fixture
def models(tmp_path: Path, frame: Frame, validate_export: Callable[..., None]) -> Models:
    return Models(tmp_path, frame(), validate_export)


def test_models_are_ranked_and_compared_in_pairs_with_the_best(models: Models) -> None:
    models.add("popularity", "baseline", noise=0.5, seconds=0.1)
    models.add("trees", "candidate", noise=0.0, seconds=3.0, weights=5_000)
    comparison = models.compared()
    assert (comparison.metric, comparison.best, list(comparison.models)) == ("gauc", "trees", ["trees", "popularity"])
    trees, popularity = comparison.models.values()
    assert trees.against_best == {} and set(popularity.against_best) == {"auc", "log_loss", "gauc", "ndcg_at_10"}
    assert popularity.against_best["gauc"].high < 0 < popularity.against_best["log_loss"].low
    assert (trees.serving_p50_ms, trees.train_seconds, popularity.serving_p50_ms) == (3.0, 3.0, None)
    assert trees.size_bytes is not None and trees.size_bytes >= 5_000
    assert comparison.notice == ""


def test_a_model_is_dominated_by_a_significantly_better_model_at_no_higher_cost(models: Models) -> None:
    models.add("good", "candidate", noise=0.0, seconds=1.0)
    models.add("bad", "candidate", noise=0.5, seconds=2.0)
    models.add("quick", "candidate", noise=0.5, seconds=0.5)
    models.add("alike", "candidate", noise=0.02, seconds=2.0)
    dominated_by = {name: line.dominated_by for name, line in models.compared().models.items()}
    assert dominated_by == {"good": (), "bad": ("good", "alike"), "quick": (), "alike": ()}


@pytest.mark.parametrize(
    ("noise", "notice"),
    [(0.0, "No candidate beats the baseline 'linear': GAUC 0."), (0.02, "by more than chance: GAUC 0.")],
)
def test_notice_names_a_baseline_that_no_candidate_beats(models: Models, noise: float, notice: str) -> None:
    models.add("linear", "baseline", noise=noise, seconds=1.0)
    models.add("trees", "candidate", noise=0.0 if noise else 0.5, seconds=1.0)
    assert notice in models.compared().notice


def test_notice_names_every_candidate_that_does_not_beat_the_baseline(models: Models) -> None:
    models.add("linear", "baseline", noise=0.3, seconds=1.0)
    models.add("trees", "candidate", noise=0.0, seconds=1.0)
    models.add("network", "candidate", noise=0.6, seconds=1.0)
    models.add("twin", "candidate", noise=0.3, seconds=1.0)
    comparison = models.compared()
    assert comparison.best == "trees" and "'trees'" not in comparison.notice
    assert "Candidate 'network' does not beat the baseline 'linear': GAUC 0." in comparison.notice
    assert "Candidate 'twin' does not beat the baseline 'linear': GAUC 0." in comparison.notice
    assert "(+0.0000 [+0.0000, +0.0000])" in comparison.notice


def test_candidates_that_are_not_above_one_that_is_compared_as_a_baseline_are_named(models: Models) -> None:
    models.add("blend", "candidate", noise=0.0, seconds=1.0)
    models.add("line", "candidate", noise=0.3, seconds=1.0, as_baseline=True)
    models.add("network", "candidate", noise=0.6, seconds=1.0)
    models.add("twin", "candidate", noise=0.3, seconds=1.0)
    blend = models.compared("blend").notice
    assert blend.startswith("Candidates not better than 'line' (GAUC 0.")
    assert " on the same test rows): 'twin' 0." in blend and ", 'network' 0." in blend
    assert "(+0.0000 [+0.0000, +0.0000])" in blend
    assert "'blend' is blessed, and beats it: " in blend and "no candidate" not in blend.lower()
    assert models.compared("line").notice.endswith("'line' itself is blessed.")
    assert "'twin' is blessed, and does not beat it by more than chance: " in models.compared("twin").notice
    assert "blessed" not in models.compared().notice


def test_no_notice_where_all_candidates_beat_the_one_compared_as_a_baseline(models: Models) -> None:
    models.add("line", "candidate", noise=0.6, seconds=1.0, as_baseline=True)
    models.add("trees", "candidate", noise=0.0, seconds=1.0)
    models.add("network", "candidate", noise=0.2, seconds=1.0)
    assert models.compared("trees").notice == ""


def test_the_logistic_regression_is_compared_as_a_baseline() -> None:
    compared_kinds = {name for name in KINDS if kind_of(name).section.compared_as_baseline}
    assert compared_kinds == {"logistic"}


def test_a_model_without_scores_is_listed_with_the_reason(models: Models) -> None:
    models.add("good", "candidate", noise=0.0, seconds=1.0)
    models.add("lost", "candidate", noise=0.0, seconds=1.0)
    (models.root / "lost-scores/scores.parquet").unlink()
    comparison = models.compared()
    assert list(comparison.models) == ["good", "lost"]
    assert "scores.parquet is missing" in comparison.models["lost"].problem
    assert comparison.models["lost"].auc is None


def test_the_command_shows_the_specs_last_run(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # no figure is cut
    models.add("xgboost", "candidate", noise=0.5, seconds=3.0)
    models.add("linear", "baseline", noise=0.0, seconds=1.0)
    runs = tmp_path / "runs"
    for name, spec in (("20260101-a", "minimal"), ("20260102-b", "other")):
        (runs / name).mkdir(parents=True)
        comparison = models.compared().model_copy(update={"spec": spec})
        write_json(runs / name / "compare.json", comparison.model_dump(mode="json"))
    (runs / "latest").symlink_to("20260102-b")
    shown(str(MINIMAL), runs)
    text = capsys.readouterr().out
    assert text.startswith("No candidate beats the baseline 'linear'")
    assert all(text_part in text for text_part in ("GAUC decides", "nDCG@10", "baseline", "calibration", "p50", "] │"))
    assert "…" not in text
    assert "Not in that run: logistic, popularity." in " ".join(text.split())
    shown(str(MINIMAL), runs, as_json=True)
    assert json.loads(capsys.readouterr().out)["best"] == "linear"


def test_command_without_a_run_names_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match=r"no run of 'minimal' finished here. Run it first: make run SPEC=minimal"):
        newest_comparison(tmp_path, yaml.safe_load(MINIMAL.read_text())["name"])
