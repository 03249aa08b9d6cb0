"""`shortlist init` and one run where checkout, log and runs lie under paths with blanks, quotes and accents."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.system.project import PACKAGES

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
ROWS = 20_000
COMMAND = "from shortlist.cli import main; main()"


def write_clicks(folder: Path) -> None:
    draw = np.random.default_rng(5)
    users, items = draw.integers(0, 90, ROWS), draw.integers(0, 30, ROWS)
    tastes = draw.normal(0, 1.5, (3, 3))[users % 3, items % 3]
    log_odds = -1 + draw.normal(0, 1, 30)[items] + draw.normal(0, 1, 90)[users] + tastes
    seconds = np.sort(draw.integers(0, 10 * 86_400, ROWS))
    folder.mkdir(parents=True)
    pl.DataFrame(
        {
            "user_id": users,
            "item_id": items,
            "user_group": users % 3,
            "item_group": items % 3,
            "clicked": (draw.random(ROWS) < 1 / (1 + np.exp(-log_odds))).astype(np.int8),
            "time": [datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=int(second)) for second in seconds],
        }
    ).write_csv(folder / "the log.csv")


def test_a_run_ends_with_a_blessed_model_under_any_path(tmp_path: Path) -> None:
    checkout = tmp_path / "my projects" / "d'été"
    for name in ("shortlist", *PACKAGES, "deploy"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    write_clicks(tmp_path / 'a "log"')
    environment = {**os.environ, "PYTHONPATH": str(checkout), "NO_COLOR": "1"}

    def run(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments], check=False, cwd=checkout, env=environment,
            capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-2_000:]
        return ended.stdout

    log, runs = tmp_path / 'a "log"', tmp_path / "all $RUNS; here"
    printed = run("init", str(log), "--out", "my spec.yaml", "--yes")
    assert f"make run SPEC='my spec.yaml' DATA='{log}'" in printed
    printed = run("run", "my spec.yaml", "--data", str(log), "--runs", str(runs))
    summary = json.loads((runs / "latest" / "summary.json").read_text())
    assert summary["blessed"] is not None, [gate["reason"] for gate in summary["gates"] if not gate["passed"]]
    assert f"DATA='{log}'" in printed
