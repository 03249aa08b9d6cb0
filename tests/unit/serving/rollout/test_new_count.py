"""A count is declared in one place: from there it is counted, recorded, and shown on the page and in the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("new_count_program.py")


def test_a_count_that_is_declared_once_is_everywhere(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    places = json.loads(ended.stdout)
    assert (places["evidence"]["stable"]["slow"], places["evidence"]["canary"]["slow"]) == (2, 4)
    assert (places["step"], places["check"], places["page"], places["terminal"]) == (4, [False], True, True)
