"""No process of a program outlives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shortlist.serving.processes.program import Program

PROGRAM = """
import subprocess, time
backend = subprocess.Popen(["sleep", "600"])
print(backend.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("listens", [True, False])
def test_children_of_a_killed_program_are_ended(listens: bool, tmp_path: Path) -> None:
    """A Triton backend that waits for the end of a request does not end by itself."""
    path = tmp_path / "one.json"
    Program(name="one", command=(sys.executable, "-c", PROGRAM), dies_with_children=True).write(path)
    program = subprocess.Popen(
        [sys.executable, "-m", "shortlist.serving.processes.launch", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stderr is not None
    backend = psutil.Process(int(program.stdout.readline()))
    program.stdout.close()
    if not listens:
        program.stderr.close()
    program.kill()
    program.wait()
    try:
        backend.wait(timeout=30)
    except psutil.TimeoutExpired:
        backend.kill()
        raise
    finally:
        program.stderr.close()
