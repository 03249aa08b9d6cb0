"""The benchmark of growth compares every step of two runs, and finds one that grows faster than its rows."""

from __future__ import annotations

import yaml

from benchmarks.growth import GrowthRun, growth_lines, growth_spec, model_mib
from benchmarks.targets import TARGETS
from shortlist.spec.load import parse_spec


def growth_run(rows: int, model_mib: float, **steps: tuple[float, float]) -> GrowthRun:
    numbers = {step: {"seconds": seconds, "peak_mib": mib} for step, (seconds, mib) in steps.items()}
    return GrowthRun(rows, numbers, {"train_dlrm": model_mib})


def test_steps_are_compared_beside_their_own_models() -> None:
    small = growth_run(200, ingest=(2.0, 300.0), train_dlrm=(4.0, 410.0), model_mib=10.0)
    large = growth_run(2_000, ingest=(24.0, 330.0), train_dlrm=(40.0, 620.0), model_mib=120.0)
    lines = growth_lines(small, large)
    assert {line.name: line.ratio for line in lines} == {
        "ingest, 2,000 rows, seconds": 12.0, "ingest, 2,000 rows, memory": 1.1,
        "train_dlrm, 2,000 rows, seconds": 10.0, "train_dlrm, 2,000 rows, memory": 1.25,
    }  # fmt: skip
    measurements = [line._asdict() for line in lines]
    missed = [
        entry["name"]
        for target in TARGETS
        if target.program == "growth"
        for entry in target.select(measurements)
        if not target.reached_by(entry)
    ]
    assert missed == ["ingest, 2,000 rows, seconds"]


def test_its_spec_is_the_shipped_one_with_two_models() -> None:
    spec = parse_spec(yaml.safe_dump(growth_spec(200_000)))
    assert {name for name, model in spec.models.items() if model.role == "candidate"} == {"xgboost", "dlrm"}
    assert (spec.runtime.steps_at_once, spec.runtime.chunk_rows) == (1, 50_000)


def test_the_memory_of_a_model_is_its_table_and_its_copy_or_what_xgboost_keeps_of_rows() -> None:
    ids = [{"kind": "id", "size": 3 * 2**18}, {"kind": "id", "size": 2**18}]
    dlrm = {
        "kind": "dlrm",
        "name": "net",
        "params": {"embedding_dim": 16},
        "features": [*ids, {"kind": "dense", "size": None}],
    }
    # 2^20 rows of 16 weights and a sum, of four bytes each, twice; the exported graph has no sums.
    assert model_mib(dlrm, 70 * 2**20) == {"train_net": 2 * 4 * 17, "validate_export_net": 70}
    trees = {"kind": "xgboost", "name": "trees", "train_rows": 3 * 2**20, "validation_rows": 2**20, "features": []}
    assert model_mib({**trees, "params": {"refit": True}}, 5) == {"train_trees": 4 * 40}
    assert model_mib({**trees, "params": {"refit": False}}, 5) == {"train_trees": 3 * 40 + 8}
    assert model_mib({"kind": "popularity", "name": "popularity", "params": {}}, 0) == {}
