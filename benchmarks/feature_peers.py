"""Whole programs that make the same features of the same text as ours, one after another.

NVTabular on the CPU, when `requirements/peers.txt` is installed (`NAME=peers OPTIONS=features`), and the preprocessing
of facebookresearch/dlrm, written again after its design: as it is by default and, where all peers are asked for, with
its option of a process per day. They take minutes for 2 M rows, so each runs once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PEERS_PYTHON: Final = ROOT / ".venv-peers" / "bin" / "python"


def times(
    own_command: Sequence[str], log: Path, out: Path, min_rows: int, *, all_peers: bool = False
) -> tuple[float, dict[str, float]]:
    """Return the seconds that our program takes, the median of runs before, between and after the peers', and theirs.

    Args:
        own_command: Our command, which reads `log` and writes below `out`.
        log: The text.
        out: Folder for what programs write; it is emptied before each.
        min_rows: Occurrences that give a category an id.
        all_peers: Whether a peer's other ways to run count as peers, too.
    """
    fb_dlrm = [sys.executable, _peer("fb_dlrm_features"), log, out]
    programs = {
        "facebookresearch/dlrm's design": fb_dlrm,
        **({"fb/dlrm's, a process per day": [*fb_dlrm, "--processes"]} if all_peers else {}),
        "NVTabular 23.8 on the CPU": [PEERS_PYTHON, _peer("nvtabular_features"), log, out, min_rows],
    }
    own_seconds, peer_seconds = [_run_s(own_command, out)], {}
    for name, command in programs.items():
        if Path(command[0]).exists():
            peer_seconds[name] = _run_s(list(map(str, command)), out)
            own_seconds.append(_run_s(own_command, out))
    return median(own_seconds), peer_seconds


def _peer(name: str) -> Path:
    return ROOT / "benchmarks" / "peers" / f"{name}.py"


def _run_s(command: Sequence[str], out: Path) -> float:
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)  # noqa: S603 - our own programs
    return time.perf_counter() - started
