"""What a step imports: every task of a run waits for it before it does anything."""

from __future__ import annotations

import ast
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
    "shortlist.spec.load",
    "shortlist.spec.declared",
    "shortlist.spec.engine",
    "shortlist.data.remote_input",
    "shortlist.data.ingest",
    "shortlist.data.until",
    "shortlist.data.validate",
    "shortlist.features.fit",
    "shortlist.storage.groups",
    "shortlist.features.fan_out",
    "shortlist.features.table",
    "shortlist.storage.tables",
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


def test_trees_are_trained_without_torch() -> None:
    assert "torch" not in imported_by("models.xgboost.ranker")


def test_feast_is_loaded_without_torch_and_leaves_typeguard_as_it_was() -> None:
    code = """
import sys, typeguard
before = typeguard.typechecked
from shortlist.features import store
store._feast()
print("feast" in sys.modules, "torch" in sys.modules, typeguard.typechecked is before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.split() == ["True", "False", "True"]


def test_judging_loads_neither_sklearn_nor_all_of_scipys_statistics() -> None:
    code = """
import sys
import numpy as np
from shortlist.evaluation.calibration import wilson_interval
from shortlist.evaluation.metrics import auc, roc_points
labels, scores = np.array([0.0, 1.0]), np.array([0.2, 0.3])
print(auc(labels, scores), roc_points(labels, scores), wilson_interval(1, 2, 0.9))
print(*({"sklearn", "scipy.stats", "pandas"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    measured, loaded = ran.stdout.splitlines()
    assert measured.startswith("1.0 [(0.0, 0.0)")
    assert loaded == ""


@pytest.mark.parametrize(
    ("module", "heavy"), [("shortlist.data.generate", "scipy"), ("shortlist.system.compiled", "numba")]
)
def test_a_heavy_import_would_be_seen(module: str, heavy: str) -> None:
    assert heavy in imported_by(module)


def test_programs_begin_when_all_of_their_module_is_defined() -> None:
    """`python -m` runs a module from its top: what stands below the call of `main` is not there yet."""
    packages = ("shortlist", "models", "monitoring", "components", "pipelines", "benchmarks")
    texts = {path: path.read_text() for name in packages for path in (ROOT / name).rglob("*.py")}
    bodies = {path: ast.parse(text).body for path, text in texts.items() if "if __name__ == " in text}
    programs = {path: [ast.unparse(one).startswith("if __name__ == ") for one in body] for path, body in bodies.items()}
    assert sum(any(runs) for runs in programs.values()) > 10
    assert [str(path) for path, runs in programs.items() if any(runs[:-1])] == []
