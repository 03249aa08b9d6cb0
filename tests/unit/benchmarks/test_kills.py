"""Results of runs whose processes are killed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harm import Rollouts
from benchmarks.kills import kill_in_runs

STAND_IN = """
import json, pathlib, subprocess, sys
runs, auc = pathlib.Path(sys.argv[1]), float(sys.argv[2])
(runs / "latest").mkdir(parents=True, exist_ok=True)
attempts = runs / "attempts"
attempts.write_text(attempts.read_text() + "a" if attempts.exists() else "a")
is_undisturbed, is_first = runs.name == "undisturbed", len(attempts.read_text()) == 1
seconds = 600 if is_first and not is_undisturbed else 0
if subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"]).returncode:
    sys.exit(1)
if is_undisturbed:
    auc = 0.7
summary = {"rows": 3, "models": {"m": {"auc": auc, "train_rows_per_s": len(attempts.read_text())}}, "gates": [],
           "blessed": {"version": 1}}
(runs / "latest" / "summary.json").write_text(json.dumps(summary))
"""
"""A run with one child, whose killing fails it; a run that has to be killed waits for that."""


@pytest.mark.parametrize(("auc", "differences"), [(0.7, []), (0.71, ["runs-0: other models", "runs-1: other models"])])
def test_a_run_with_other_results_after_kills_is_named(tmp_path: Path, auc: float, differences: list[str]) -> None:
    def command(runs: Path) -> Sequence[str]:
        return sys.executable, "-c", STAND_IN, str(runs), str(auc)

    outcome = kill_in_runs(command, tmp_path, kills=2, seed=1, per_run=1)
    assert (outcome.kills, outcome.runs, outcome.survived) == (2, 2, 0)
    assert outcome.differences == differences
    assert sum(outcome.programs.values()) == 2


def test_the_command_of_the_rollouts_of_a_soak_can_be_imported(tmp_path: Path) -> None:
    deployer: Any = SimpleNamespace()
    program = Rollouts(deployer, tmp_path / "spec.yaml", tmp_path, (1, 2))._command[2]
    exec(program.partition(";")[0], {})  # noqa: S102 - our own import
