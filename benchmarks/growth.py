"""Time and memory of every step of a run at ten times the rows: Criteo's layout, XGBoost and DLRM.

2 M rows against 20 M (5 GB of text, 42 minutes on two cores); `OPTIONS="--rows 200000"` begins with fewer. A run's
steps take turns, so that each has the machine, and each figure is what the run's own summary says of the step. XGBoost
grows the same number of trees in both, and the logistic baseline passes over its rows equally often: where they stop
early, more rows get more trees and passes.

The memory of a step that holds a model is that beside `model_mib`, what the model itself is made of there: DLRM's
table, as more rows have more categories (in training its weights, the sums of its optimizer, and the copy of the best
epoch; in the validation of the export the exported graph), and what XGBoost keeps of each row that it learns, 40 bytes.
Neither is a buffer of ours, and both are in the figures of the summary.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import yaml

from benchmarks.bench import Line, console, record, show
from benchmarks.criteo import write_tsv
from benchmarks.targets import exit_code
from shortlist.serving.export.signature import FOLDER
from shortlist.spec.runtime import Runtime

ROWS: Final = 2_000_000
TIMES: Final = 10
TREES: Final = 100
PASSES: Final = 2
MODELS: Final = ("xgboost", "dlrm")
ROOT: Final = Path(__file__).parents[1]


class GrowthRun(NamedTuple):
    """What a run of some rows took."""

    rows: int
    steps: Mapping[str, Mapping[str, Any]]
    """`steps` of the run's summary."""
    model_mib: Mapping[str, float]
    """Memory of the model itself, by step; see `model_mib`."""

    def own_mib(self, step: str) -> float:
        """Return the memory of the model that a step holds; 0 where it holds none, or several."""
        return self.model_mib.get(step, 0.0)


XGBOOST_ROW_BYTES: Final = 8 + 4 + 4 + 8 + 16
"""What XGBoost 3.2 keeps of each row that it learns, whatever `memory_budget_mib` says: gradient and Hessian,
prediction, label, the row's number in the order of the leaves (RowSetCollection, 64 bits), and that number again on
both sides of a split (PartitionBuilder, whose blocks stay allocated)."""
XGBOOST_VALIDATION_ROW_BYTES: Final = 4 + 4
"""Of each row that it only scores: prediction and label."""
TABLE_COPIES: Final = 2
"""DLRM's table in training: the one that learns, and that of the best epoch."""


def model_mib(record: Mapping[str, Any], exported_bytes: int) -> dict[str, float]:
    """Return the memory of the model itself in each step that holds it, by step.

    Args:
        record: `model.json` of the model.
        exported_bytes: Size of its exported graph.
    """
    name, params = record["name"], record["params"]
    if record["kind"] == "xgboost":
        learnt, scored = record["train_rows"], record["validation_rows"]
        if params["refit"]:
            learnt, scored = learnt + scored, 0
        row_bytes = XGBOOST_ROW_BYTES * learnt + XGBOOST_VALIDATION_ROW_BYTES * scored
        return {f"train_{name}": row_bytes / 2**20}
    if record["kind"] == "dlrm":
        table_rows = sum(feature["size"] or 0 for feature in record["features"] if feature["kind"] == "id")
        table_bytes = 4 * table_rows * (params["embedding_dim"] + 1)  # a row has one sum of Adagrad
        return {
            f"train_{name}": TABLE_COPIES * table_bytes / 2**20,
            f"validate_export_{name}": exported_bytes / 2**20,
        }
    return {}


def growth_spec(rows: int) -> dict[str, Any]:
    """Return the shipped spec with the two models alone, one step after another.

    Args:
        rows: Rows of the smaller run; it is cut into several chunks too, or its memory would grow with its rows.
    """
    spec: dict[str, Any] = yaml.safe_load((ROOT / "pipelines/specs/criteo.yaml").read_text(encoding="utf-8"))
    spec["name"] = "growth"
    spec["models"] = {name: spec["models"][name] for name in MODELS}
    spec["models"]["xgboost"] |= {"rounds": TREES, "early_stopping_rounds": TREES}
    spec["models"]["logistic"] = {"kind": "logistic", "features": ["*"], "epochs": PASSES}
    spec["runtime"] = {"steps_at_once": 1, "chunk_rows": min(Runtime().chunk_rows, max(1, rows // 4))}
    return spec


def run(folder: Path, rows: int, spec: Mapping[str, Any]) -> GrowthRun:
    """Write a log of so many rows and run a spec on it, in an empty folder.

    Raises:
        subprocess.CalledProcessError: The run stopped.
    """
    log, spec_file, runs = folder / "log.tsv", folder / "growth.yaml", folder / "runs"
    write_tsv(log, rows)
    spec_file.write_text(yaml.safe_dump(dict(spec)), encoding="utf-8")
    command = [Path(sys.executable).parent / "shortlist", "run", spec_file, "--data", log, "--runs", runs]
    subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - our own program
    summary = json.loads((runs / "latest/summary.json").read_text(encoding="utf-8"))
    memory_by_step: dict[str, float] = {}
    for description in runs.glob("cache/artefacts/*/*/train/model/model.json"):
        exported_bytes = sum(path.stat().st_size for path in description.parent.glob(f"{FOLDER}/*"))
        memory_by_step |= model_mib(json.loads(description.read_text(encoding="utf-8")), exported_bytes)
    return GrowthRun(rows, summary["steps"], memory_by_step)


def growth_lines(small: GrowthRun, large: GrowthRun) -> list[Line]:
    """Return the seconds and the memory of every step of the larger run, beside those of the smaller one."""
    lines = []
    for step, numbers in large.steps.items():
        smaller = small.steps[step]
        for name, unit, small_value, large_value in (
            ("seconds", "s", smaller["seconds"], numbers["seconds"]),
            ("memory", "MiB", smaller["peak_mib"] - small.own_mib(step), numbers["peak_mib"] - large.own_mib(step)),
        ):
            peer = f"{small.rows:,} rows: {small_value:.4g} {unit}"
            ratio = round(large_value / small_value, 3)
            lines.append(Line("growth", f"{step}, {large.rows:,} rows, {name}", large_value, unit, peer, ratio))
    return lines


def main() -> int:
    """Print the table and write the results; exit code 1 when a step grows more than it may."""
    parser = argparse.ArgumentParser(prog="make bench NAME=growth")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of the smaller run; the larger has {TIMES} times")
    rows, runs = parser.parse_args().rows, []
    for size in (rows, TIMES * rows):
        console().print(f"{size:,} rows")
        with TemporaryDirectory(prefix="shortlist-bench-") as folder:
            runs.append(run(Path(folder), size, growth_spec(rows)))
    lines = growth_lines(*runs)
    show(f"A run of {TIMES * rows:,} rows", lines)
    record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
