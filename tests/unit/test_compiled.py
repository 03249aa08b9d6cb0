"""The cache folder of compiled loops, also without a writable folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOOP = """
import os
os.access = lambda folder, mode: False
from shortlist.system.compiled import compiled
@compiled
def doubled(value: int) -> int:
    return value + value
print(doubled(21), os.environ["NUMBA_CACHE_DIR"])
"""


def test_without_a_writable_folder_the_cache_is_private_to_the_process(tmp_path: Path) -> None:
    program = tmp_path / "loop.py"  # a compiled function needs a source
    program.write_text(LOOP)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    outputs = [
        subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    answers, folders = zip(*(line.split() for line in outputs), strict=True)
    assert answers == ("42", "42")
    assert folders[0] != folders[1]  # nobody can know the name before
    assert not any(Path(folder).exists() for folder in folders)
