"""Imports of the steps, which delay the start of every task."""

from __future__ import annotations

import ast
import os
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
    "shortlist.data.reading.remote_input",
    "shortlist.data.ingest",
    "shortlist.data.until",
    "shortlist.data.validate",
    "shortlist.features.fits.fit",
    "shortlist.features.rows.table",
    "shortlist.storage.tables",
    "shortlist.tracking.steps",
)
"""Modules that the tasks from the log to the feature table import."""


def heavy_imports(*modules: str) -> set[str]:
    """Return the heavy packages that a new process imports with some modules."""
    code = f"import sys, {', '.join(modules)}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(completed.stdout.split())


def test_steps_import_nothing_heavy() -> None:
    assert heavy_imports(*STEPS) == set()


def test_the_command_line_imports_nothing_heavy_with_gates_and_ordering() -> None:
    assert heavy_imports("shortlist.evaluation.gates.gates", "shortlist.slates.ordering.exploration") == set()


def test_trees_are_trained_without_torch() -> None:
    assert "torch" not in heavy_imports("models.xgboost.ranker")


def test_loading_feast_imports_no_torch_patches_no_typeguard_and_makes_no_folder(tmp_path: Path) -> None:
    code = """
import os, sys, typeguard
before = typeguard.typechecked
from shortlist.features.feast import store
store.import_feast()
print("feast" in sys.modules, "torch" in sys.modules, typeguard.typechecked is before)
typeguard.typechecked = None  # whatever the stores import later must not be rewritten either
import feast.infra.offline_stores.duckdb, feast.infra.offline_stores.ibis, feast.infra.online_stores.sqlite
source = feast.FileSource(name="a", path="a", timestamp_field="t")
feast.infra.offline_stores.ibis.read_mlflow_data_source(source)
print(*(name for name in os.environ if name.startswith("PROMETHEUS_")), flush=True)
os._exit(0)  # as a process ends that is killed
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    assert completed.stdout.split() == ["True", "False", "True"]
    assert list(tmp_path.iterdir()) == []


def test_a_local_run_imports_no_client_of_a_cluster() -> None:
    code = """
import sys
from shortlist.runs.runner import import_kfp
import_kfp()
from pipelines.compile import GRAPHS
from kfp import local
import kfp
print(len(GRAPHS) > 4, {"kubernetes", "kfp_server_api", "kfp.client"} & set(sys.modules), hasattr(kfp, "Client"))
from kfp.client import Client
print(Client.__name__)
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert completed.stdout.split() == ["True", "set()", "False", "Client"]


def test_evaluation_imports_neither_sklearn_nor_scipy_stats() -> None:
    code = """
import sys
import numpy as np
from shortlist.evaluation.metrics.calibration import wilson_interval
from shortlist.evaluation.metrics.pointwise import auc, roc_points
labels, scores = np.array([0.0, 1.0]), np.array([0.2, 0.3])
print(auc(labels, scores), roc_points(labels, scores), wilson_interval(1, 2, 0.9))
print(*({"sklearn", "scipy.stats", "pandas"} & set(sys.modules)))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    measured, loaded = completed.stdout.splitlines()
    assert measured.startswith("1.0 [(0.0, 0.0)")
    assert loaded == ""


@pytest.mark.parametrize(
    ("module", "heavy"), [("shortlist.data.world.generate", "scipy"), ("shortlist.system.compiled", "numba")]
)
def test_heavy_imports_are_detected(module: str, heavy: str) -> None:
    assert heavy in heavy_imports(module)


def test_main_blocks_are_the_last_statement_of_their_module() -> None:
    """`python -m` runs a module from its top, so that statements after the call of `main` are not yet executed."""
    packages = ("shortlist", "models", "monitoring", "components", "pipelines", "benchmarks")
    texts = {path: path.read_text() for name in packages for path in (ROOT / name).rglob("*.py")}
    bodies = {path: ast.parse(text).body for path, text in texts.items() if "if __name__ == " in text}
    programs = {
        path: [ast.unparse(statement).startswith("if __name__ == ") for statement in body]
        for path, body in bodies.items()
    }
    assert sum(any(runs) for runs in programs.values()) > 10
    assert [str(path) for path, runs in programs.items() if any(runs[:-1])] == []
