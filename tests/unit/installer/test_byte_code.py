"""The byte code that the set-up writes, and the lists of what a run imports."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from installer.byte_code import compiled_modules
from installer.command_line import LOCKS

from shortlist.runs.step_server import PRELOADED, PRELOADED_WHEN_IDLE

SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
LISTED = frozenset((LOCKS / "run-modules.txt").read_text().splitlines())
IMPORTED_FILES = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*{getattr(module, "__file__", None) or "" for module in sys.modules.values()}, sep="\\n")
"""


def test_modules_are_compiled_when_the_block_ends_and_missing_ones_are_left_out(tmp_path: Path) -> None:
    names = [f"module_{number}.py" for number in range(20)]
    for name in names:
        (tmp_path / name).write_text("value = 1\n")
    (tmp_path / "broken.py").write_text("value = \n")
    with compiled_modules(sys.executable, tmp_path, [*names, "broken.py", "missing.py"]):
        pass
    assert [name for name in names if not Path(cache_from_source(str(tmp_path / name))).exists()] == []


@pytest.mark.parametrize("name", ["run", "triton"])
def test_lists_of_modules_are_sorted_paths_below_the_packages(name: str) -> None:
    lines = (LOCKS / f"{name}-modules.txt").read_text().splitlines()
    assert lines == sorted(set(lines))
    assert [line for line in lines if line.startswith(("/", ".", "pip/")) or not line.endswith(".py")] == []


def test_first_imports_of_steps_are_in_the_list() -> None:
    """Where this fails after a change of versions: `make lock-modules`."""
    command = [sys.executable, "-c", IMPORTED_FILES, *PRELOADED, *PRELOADED_WHEN_IDLE, "xgboost"]
    variables = {**os.environ, "_KFP_RUNTIME": "true"}  # as in every step
    completed = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    files = completed.stdout.splitlines()
    imported = {
        str(Path(file).relative_to(SITE_PACKAGES))
        for file in files
        if file.endswith(".py") and Path(file).is_relative_to(SITE_PACKAGES)
    }
    assert len(imported) > 2_000
    assert len(imported - LISTED) < 0.02 * len(imported), sorted(imported - LISTED)[:20]
    assert [module for module in LISTED if not (SITE_PACKAGES / module).exists()][20:] == []
