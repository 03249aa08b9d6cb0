"""The framework as a wheel: installed without a checkout around it, it runs a project that lies elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from shortlist.system.project import PACKAGES

ROOT = Path(__file__).parents[2]
OTHERS = ("requirements",)
"""What else of a checkout a project reads."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    shutil.copytree(ROOT / "shortlist", source / "shortlist", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", *command], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_framework_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.partition("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"shortlist"}
    kept = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "shortlist").rglob("*.*")
        if "__pycache__" not in path.parts
    }
    assert kept <= set(names)


def test_a_project_without_the_framework_beside_it_runs_by_the_wheel(
    wheel: Path, small_spec: dict[str, Any], tmp_path: Path
) -> None:
    installed, project = tmp_path / "installed", tmp_path / "project"
    command = ["pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run([sys.executable, "-m", *command], check=True)
    for name in (*PACKAGES, *OTHERS):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    spec = {**small_spec, "name": "wheel"}
    spec["data"] = {**spec["data"], "source": {**spec["data"]["source"], "rows": 12_000}}
    (project / "small.yaml").write_text(yaml.safe_dump(spec))
    own = {name: value for name, value in os.environ.items() if name != "SHORTLIST_ROOT"}
    own |= {"PYTHONPATH": str(installed), "SHORTLIST_TRITON_VENV": str(ROOT / ".venv-triton")}
    program = "import shortlist, sys; sys.stderr.write(shortlist.__file__); from shortlist.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "run", "small.yaml"],
        check=False,
        cwd=project,
        env=own,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr[-2_000:]
    assert ran.stderr.startswith(str(installed))
    assert "Done in" in ran.stdout + ran.stderr
    summary = json.loads((project / "runs/latest/summary.json").read_text())
    assert summary["models"]["xgboost"]["auc"] > 0.5
