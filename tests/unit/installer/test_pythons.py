"""All Pythons of a machine are found and asked what they can do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from installer.pythons import find_pythons, probe_python

ROOT = Path(__file__).parents[3]


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def write_stand_in(path: Path, version: str) -> Path:
    """Write a program that answers the probe as a Python of some version would."""
    facts = (
        f'{{"executable": "{path}", "version": {version}, "is_cpython": true, "has_venv": true,'
        ' "has_shared_library": false}'
    )
    return write_program(path, f"#!/bin/sh\necho '{facts}'\n")


def test_pythons_of_the_path_of_pyenv_of_uv_and_of_the_checkout_are_candidates(tmp_path: Path) -> None:
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    stand_ins = [
        write_stand_in(tmp_path / "bin" / "python3.13", "[3, 13, 5]"),
        write_stand_in(home / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3.12", "[3, 12, 1]"),
        write_stand_in(home / ".local/share/uv/python/cpython-3.11.14-linux/bin/python3.11", "[3, 11, 14]"),
        write_stand_in(checkout / ".python/cpython-3.11.13-linux/bin/python3.11", "[3, 11, 13]"),
    ]
    executables = [python.executable for python in find_pythons(checkout, str(tmp_path / "bin"), home)]
    assert executables[0] == str(stand_ins[0])
    assert set(executables) >= {str(path) for path in stand_ins}


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho no answer\n", "no program"])
def test_a_program_that_is_no_python_is_ignored(tmp_path: Path, text: str) -> None:
    assert probe_python(write_program(tmp_path / "python3", text)) is None


def test_this_python_is_read() -> None:
    python = probe_python(Path(sys.executable))
    assert python is not None
    assert python.version == sys.version_info[:3]


def test_the_check_takes_under_two_seconds_and_downloads_no_file(tmp_path: Path) -> None:
    """The time is the issue of the check; it asks each Python once, at the same time."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHON": str(tmp_path / "nothing")}
    completed = subprocess.run(
        [sys.executable, "requirements/installer", "run", "--venv", str(tmp_path / "venv")],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert completed.returncode == 1
    assert completed.stderr == (
        f"PYTHON={tmp_path / 'nothing'}: no Python runs there; point to one: PYTHON=/path/to/python3.11\n"
    )
    assert not (tmp_path / "venv").exists()
    assert time.monotonic() - started < 20  # a busy machine; on a quiet one 0.1 to 0.9 s
