"""A pod's process starts with the import of one module: each must be importable by itself, in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(f"components.{path.stem}" for path in (ROOT / "components").glob("*.py") if path.stem != "__init__")


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_a_component_is_importable_in_a_new_process(module: str, tmp_path: Path) -> None:
    """As in the image: nothing but the root of the project is on the path, and the folder is another."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHORTLIST_ROOT": str(ROOT)}
    command = [sys.executable, "-c", f"import {module}"]
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
