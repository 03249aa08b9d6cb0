"""A kind of model that nobody has told the project of goes from a spec to a blessed version."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_uri

ROOT = Path(__file__).parents[2]
MODULE = Path(__file__).parent / "new_kind"
FEATURES = ["*_log", "hour_*", "*_age", "user_rate", "item_rate", "creator_rate", "tags_rate", "surface_rate"]


class Ran(NamedTuple):
    """A run of the command line in an environment in which the kind is installed."""

    summary: dict[str, Any]
    runs: Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment with a package that declares the kind, as pip would leave it."""
    packages = tmp_path_factory.mktemp("packages")
    about = packages / "linear_kind-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: linear-kind\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[shortlist.model_kinds]\nlinear = linear_kind:KIND\n")
    (packages / "linear_kind.py").write_text((MODULE / "linear_kind.py").read_text())
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), *([before] if before else [])])}


def shortlist(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "shortlist"
    return subprocess.run([program, *arguments], cwd=ROOT, env=environment, text=True, capture_output=True, check=False)


@pytest.fixture(scope="module")
def ran(small_spec: dict[str, Any], installed: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    spec = copy.deepcopy(small_spec)
    del spec["models"]["xgboost"]
    spec["models"]["line"] = {"kind": "linear", "features": FEATURES}
    folder = tmp_path_factory.mktemp("new-kind")
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    done = shortlist(installed, "run", str(folder / "spec.yaml"), "--runs", str(folder / "runs"))
    assert done.returncode == 0, done.stdout + done.stderr
    return Ran(json.loads((folder / "runs/latest/summary.json").read_text()), folder / "runs")


def test_it_is_trained_validated_on_triton_judged_and_blessed(ran: Ran) -> None:
    line = ran.summary["models"]["line"]
    assert (line["kind"], line["role"]) == ("linear", "candidate")
    assert line["auc"] > ran.summary["models"]["popularity"]["auc"]
    gates = {gate["name"]: gate["passed"] for gate in ran.summary["gates"]}
    assert gates["parity"] and gates["infra"] and all(gates.values())
    assert ran.summary["blessed"] == {"model": "line", "version": "1"}
    assert {"train_line", "validate_export_line", "train_popularity", "train_logistic"} <= set(ran.summary["steps"])


def test_its_version_in_mlflow_says_name_and_kind(ran: Ran) -> None:
    champion = Tracker(tracking_uri(ran.runs / "stores"), "demo").registry.champion()
    assert champion is not None
    assert (champion.name, champion.kind) == ("line", "linear")
    signature = json.loads((champion.folder / "serving/signature.json").read_text())
    assert (signature["kind"], signature["runs_as"]) == ("linear", "graph")


def test_the_schema_and_the_messages_know_it(installed: dict[str, str], tmp_path: Path) -> None:
    schema = json.loads(shortlist(installed, "schema").stdout)
    assert "LinearModel" in schema["$defs"]
    spec = yaml.safe_load((ROOT / "tests/specs/valid/minimal.yaml").read_text())
    spec["models"] = {"line": {"kind": "liner", "features": ["*"]}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    wrong = shortlist(installed, "check", str(tmp_path / "spec.yaml"))
    assert wrong.returncode == 2
    assert "models.line: kind 'liner' is not one of" in wrong.stderr
    assert "did you mean 'linear'?" in wrong.stderr
