"""Every kind of model goes through the compiled graph and every gate, and so does its successor.

One model of each serving path is rolled out.

The graph asks a real Triton; the rollouts go through Envoy, servers and Tritons to all users.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from models.registry import KINDS
from shortlist.contracts import Files
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.evaluation.blessing import bless, read_blessing, write_blessing
from shortlist.evaluation.metrics.records import Measures
from shortlist.ranking.registry import kind_of
from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.rollout.states.phases import Phase
from shortlist.rollout.verdict import EVIDENCE, RolloutVerdict
from shortlist.runs.local_training import run_locally
from shortlist.serving.processes.orphan_processes import orphan_processes
from shortlist.spec.load import parse_spec
from shortlist.spec.serving import Serving
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.run_context import RunContext
from shortlist.tracking.store_access import tracking_uri

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]  # two runs of ten models, each on a real Triton

POSITION, SURFACE = ["position_log", "surface_position_rate"], ["duration_log", "surface_rate", "item_rate"]
CONTEXT = ["*_log", "hour_*", "surface_rate"]
WARM = {"retrain": "warm", "retrain_epochs": 1, "retrain_days": 1}
CONTINUED = {"retrain": "continue", "retrain_rounds": 5, "retrain_days": 1}
NETWORK = {
    "features": [*CONTEXT, "user_rate", "item_rate", "surface_id", "device_id", "tags_id"],
    "embedding_dim": 4, "epochs": 2, "batch_size": 512, "learning_rate": 0.004, **WARM,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "grown_anew": {
        "kind": "xgboost", "features": [*CONTEXT, "item_rate"], "rounds": 40, "refit": True, "retrain": "refit",
        "labels": ["long_view"],
    },
    "by_position": {"kind": "xgboost", "features": POSITION, "rounds": 100, **CONTINUED},
    "by_surface": {"kind": "lightgbm", "features": SURFACE, "rounds": 100, **CONTINUED},
    "by_category": {"kind": "catboost", "features": ["surface_id", "device_id", "item_rate"], "rounds": 60},
    "dlrm": {"kind": "dlrm", **NETWORK},
    "dcn": {"kind": "dcn", **NETWORK},
    "wide_deep": {"kind": "wide_deep", **NETWORK},
    "finalnet": {"kind": "finalnet", **NETWORK},
    "din": {"kind": "din", **NETWORK, "history": "taken", "target": "item_id_id"},
    "both": {"kind": "blend", "models": ["by_position", "by_surface"]},
    "line": {"kind": "logistic", "role": "candidate", "features": ["*"], "bins": [0], "l2": [1e-5]},
    "popularity": {"kind": "popularity", "role": "baseline", "labels": ["long_view"]},
}  # fmt: skip
CANDIDATES = [name for name, section in MODELS.items() if section.get("role") != "baseline"]
ROLLED_OUT = ("grown_anew", "din", "both", "line")
"""One model of each serving path; the others differ from it in the ONNX graph alone, and the gates run it on Triton.

LightGBM's trees are rolled out in `tests/serving/rollouts`, and of the networks the one that reads histories, too.
"""
MODES = {name: MODELS[name]["retrain"] for name in CANDIDATES if "retrain" in MODELS[name]}
# Long enough to prove that the servers answer; how fast, on a machine that is busy, is no property of a kind.
INFRA = {"seconds": 0.5, "max_p50_ms": 5_000, "max_p99_ms": 10_000, "max_cold_start_seconds": 600}
SERVING = {
    "batching": {"threads": 1},
    "log": {"flush_seconds": 0.3},
    "overload": {"max_wait_ms": 60_000, "max_waiting": 10_000},
    "traffic": {"kind": "replay", "rate": 75, "days": 2, "outcome_delay_seconds": 0.1},
    "canary": {
        "steps": [50, 100], "interval_seconds": 1, "min_requests": 25, "min_users": 25, "deadline_seconds": 240,
        "drain_seconds": 0,
        # Models of few rows differ in what users like. Who would be rolled back for that is tested with the rollouts.
        "kpi": {"max_drop": 0.5, "scale": 0.1, "alpha": 1e-4},
        "guardrails": {
            "latency_floor_ms": 2_000, "max_p99_ms": 2_000,  # far from what a busy machine does to good models
            "max_score_shift": 5.0,  # every champion is of another kind, and spreads its scores otherwise
        },
    },
}  # fmt: skip
"""Rollouts of a few seconds that ask every question of a canary."""


class Runs(NamedTuple):
    """Two runs of one spec, the second a day later."""

    spec: Spec
    folder: Path
    summaries: tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def runs(small_spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    spec = copy.deepcopy(small_spec)
    past = {"kind": "sequence", "of": "item_id", "key": "user_id", "name": "taken", "last": 5, "min_rows": 150}
    spec["features"]["columns"].append(past)
    spec["data"]["labels"] = {"long_view": {"column": "watch_seconds", "positive": {"at_least": 15}}}
    spec["models"] = MODELS
    # What is tested is that nothing on the way stops a kind; on so few rows models are weak and badly calibrated.
    spec["gates"] |= {
        "min_auc": 0.5, "max_log_loss": 2, "min_gain_over_baseline": 0, "min_gauc_gain": None, "metric": "auc",
        "max_calibration_error": 0.5, "max_rate_error": 1, "max_auc_drop": 0.1, "max_slice_auc_drop": 0.5,
        "parity_rows": 500, "confidence": 0.6, "infra": INFRA,
        "custom": {
            "labels": {"min_auc": 0.5, "min_gain_over_baseline": -0.1, "max_auc_drop": 0.2, "max_rate_error": 1},
            "unknown_values": {"max_shift": 5},
        },
    }  # fmt: skip
    text, folder, finished_runs = yaml.safe_dump(spec), tmp_path_factory.mktemp("every-kind") / "runs", []
    for day in (12, 13):
        assert run_locally(parse_spec(text), None, folder, until=datetime(2026, 1, day, tzinfo=UTC)) == 0
        finished_runs.append(json.loads((folder / "latest/summary.json").read_text()))
    return Runs(parse_spec(text), folder, (finished_runs[0], finished_runs[1]))


def test_every_kind_and_every_retrain_mode_is_tested() -> None:
    assert {section["kind"] for section in MODELS.values()} == set(KINDS)
    modes_by_kind = {
        (name, mode)
        for name in KINDS
        if (field := kind_of(name).section.model_fields.get("retrain"))
        for mode in getattr(field.annotation, "__args__", ())
    }
    assert {(MODELS[name]["kind"], mode) for name, mode in MODES.items()} == {
        pair for pair in modes_by_kind if pair[1] != "scratch"
    }


@pytest.mark.parametrize("number", [0, 1], ids=["from scratch", "from the earlier one"])
@pytest.mark.parametrize("name", CANDIDATES)
def test_each_passes_every_gate(runs: Runs, number: int, name: str) -> None:
    summary = runs.summaries[number]
    assert summary["models"][name]["kind"] == MODELS[name]["kind"]
    assert summary["reasons"][name][0].startswith("passes every gate")


def test_one_of_them_is_blessed_each_time(runs: Runs) -> None:
    first, second = (summary["blessed"] for summary in runs.summaries)
    assert {first["model"], second["model"]} <= set(CANDIDATES)
    assert (first["version"], second["version"]) == ("1", "2")


def test_the_blend_is_better_than_each_of_its_members(runs: Runs) -> None:
    models = runs.summaries[0]["models"]
    assert models["both"]["auc"] > max(models[member]["auc"] for member in MODELS["both"]["models"])


@pytest.mark.parametrize(("name", "mode"), MODES.items())
def test_each_goes_on_from_the_earlier_one_as_declared(runs: Runs, name: str, mode: str) -> None:
    tracker = Tracker(tracking_uri(runs.folder / "stores"), "demo")
    second, first = tracker.passed_runs(name, MODELS[name]["kind"])
    assert second.tags["continued_from.run"] == first.run_id
    assert mode in (runs.folder / "latest/report.html").read_text().split(f"beginning of {name}")[1][:80]


class Live(NamedTuple):
    """The stack, and a version of every candidate."""

    deployer: LocalDeployer
    versions: dict[str, int]


@pytest.fixture(scope="module")
def live(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Bless every candidate of the second run, as would be done if it were the only one; serve the first champion."""
    spec, folder = runs.spec, tmp_path_factory.mktemp("every-kind-blessings")
    origin = RunContext(name=spec.name, stores=str(runs.folder / "stores"), input_digest="", code="")
    versions, verdict = {}, origin.tracker.registry.blessing_of(2)
    for report in read_blessing(verdict).gates:
        assert report.passed
        blessing = folder / report.model / Files.BLESSING
        blessing.parent.mkdir()
        write_blessing(blessing, bless([report], [Measures(model=report.model, role="candidate")]))
        run = origin.tracker.passed_runs(report.model, MODELS[report.model]["kind"])[0].run_id
        origin.tracker.log_blessing(run, blessing)
        versions[report.model] = origin.tracker.registry.register(run, {"blessed": "true"})
    deployer = LocalDeployer(origin, Serving.model_validate(SERVING), spec.gates, spec.runtime, spec.data.labels)
    try:
        deployer.serve()
        yield Live(deployer, versions)
    finally:
        stop_stack(deployer.paths)
        assert orphan_processes(deployer.paths.programs) == {}


@pytest.mark.parametrize("name", ROLLED_OUT)
def test_each_serving_path_is_rolled_out_to_all_users(live: Live, name: str) -> None:
    record = live.deployer.canary(live.versions[name])
    assert record.state.phase is Phase.PROMOTED, record.state.reason
    evidence = RolloutVerdict.model_validate(read_json(live.deployer.rollouts.rollout_folder(record.id) / EVIDENCE))
    assert (evidence.verdict, evidence.candidate) == ("promoted", live.versions[name])
    assert [(step.weight, step.decision) for step in evidence.steps] == [(50, "proceed"), (100, "promote")]
    assert all(step.failed == 0 and step.requests >= 25 for step in evidence.steps)
    requests = evidence.requests
    assert (requests.stable.failed, requests.canary.failed, requests.lost) == (0, 0, 0)
