"""Time and memory of every step of a run at ten times the rows: Criteo's layout, XGBoost and DLRM.

2 M rows against 20 M (5 GB of text, an hour on two cores); `OPTIONS="--rows 200000"` begins with fewer. A run's steps
take turns, so that each has the machine, and each figure is what the run's own summary says of the step. The memory of
a step that holds a model is that beside the model's own files: more categories are more rows of its tables.
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
from shortlist.spec.runtime import Runtime

ROWS: Final = 2_000_000
TIMES: Final = 10
MODELS: Final = ("xgboost", "dlrm")
ROOT: Final = Path(__file__).parents[1]


class GrowthRun(NamedTuple):
    """What a run of some rows took."""

    rows: int
    steps: Mapping[str, Mapping[str, Any]]
    """`steps` of the run's summary."""
    model_mib: Mapping[str, float]
    """Size of each model's files, by its name."""

    def own_mib(self, step: str) -> float:
        """Return the size of the model that a step holds; 0 where it holds none, or several."""
        return next((size for name, size in self.model_mib.items() if step.endswith(f"_{name}")), 0.0)


def growth_spec(rows: int) -> dict[str, Any]:
    """Return the shipped spec with the two models alone, one step after another.

    Args:
        rows: Rows of the smaller run; it is cut into several chunks too, or its memory would grow with its rows.
    """
    spec: dict[str, Any] = yaml.safe_load((ROOT / "pipelines/specs/criteo.yaml").read_text(encoding="utf-8"))
    spec["name"] = "growth"
    spec["models"] = {name: spec["models"][name] for name in MODELS}
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
    sizes = {}
    for description in runs.glob("cache/artefacts/*/*/train/model/model.json"):
        kind = json.loads(description.read_text(encoding="utf-8"))["kind"]
        sizes[kind] = sum(path.stat().st_size for path in description.parent.rglob("*") if path.is_file()) / 2**20
    return GrowthRun(rows, summary["steps"], sizes)


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
