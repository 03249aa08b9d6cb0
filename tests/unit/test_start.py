"""What a step imports: every task of a run waits for it before it does anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "duckdb", "evidently", "feast", "fsspec", "kfp", "matplotlib", "mlflow", "numba", "pandas", "pyarrow.dataset",
    "rich", "scipy", "sklearn", "torch", "xgboost",
)  # fmt: skip
"""Packages that take 0.05 to 3 s to import."""
STEPS = (
    "shortlist.config.load",
    "shortlist.config.declared",
    "shortlist.config.engine",
    "shortlist.data.remote",
    "shortlist.data.ingest",
    "shortlist.data.until",
    "shortlist.data.validate",
    "shortlist.features.fit",
    "shortlist.features.groups",
    "shortlist.features.fan_out",
    "shortlist.features.table",
    "shortlist.tables",
    "shortlist.tracking.steps",
)
"""What the tasks from the log's text to the feature table import."""


def imported_by(*modules: str) -> set[str]:
    """Return the heavy packages that a fresh process imports together with some modules."""
    code = f"import sys, {', '.join(modules)}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(ran.stdout.split())


def test_steps_import_nothing_heavy() -> None:
    assert imported_by(*STEPS) == set()


@pytest.mark.parametrize(("module", "heavy"), [("shortlist.data.generate", "scipy"), ("shortlist.compiled", "numba")])
def test_a_heavy_import_would_be_seen(module: str, heavy: str) -> None:
    assert heavy in imported_by(module)
