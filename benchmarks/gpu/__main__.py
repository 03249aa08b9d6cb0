"""`python -m benchmarks.gpu [names...] [--device cuda|cpu] [--small]`: check, measure, print, and keep the results.

At full size every program has a process of its own: one that breaks the device's context breaks only itself, and none
finds memory taken. Exit code 2: no GPU; 1: a check failed, or less was reached than must be.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import torch

from benchmarks.bench import console, hardware, record, show
from benchmarks.gpu.machine import NO_GPU, RESULTS, gpu_hardware
from benchmarks.gpu.setting import Findings, Setting

PROGRAMS: Final = (
    "roofs", "training", "inference", "width", "cached", "parity", "loading", "features", "xgboost",
)  # fmt: skip
"""In this order: what a short lease must bring home comes first."""
LIMIT_S: Final = 180
ROOT: Final = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """Run the programs that are named; all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(PROGRAMS)}; all by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="toy sizes: everything runs, no figure means anything")
    options = parser.parse_args(arguments)
    unknown_names = [name for name in options.names if name not in PROGRAMS]
    if unknown_names:
        parser.error(f"no program '{unknown_names[0]}'; there are {', '.join(PROGRAMS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(f"{NO_GPU}\n")
        return 2
    if options.device == "cpu" and not options.small:
        parser.error("--device cpu runs at toy size alone: add --small")
    names = options.names or list(PROGRAMS)
    setting = Setting(options.device, options.small)
    if len(names) == 1 or options.small:
        return max(measure(name, setting) for name in names)
    return max(_in_own_process(name) for name in names)


def measure(name: str, setting: Setting) -> int:
    """Run one program; print what it found, and keep it where the figures mean something."""
    program = import_module(f"benchmarks.gpu.{name}")
    findings = Findings(setting)
    with findings.attempt("the program"):
        findings = program.run(setting)
    if findings.lines:
        show(f"{program.TITLE}; {gpu_hardware() if setting.on_gpu else hardware()}", findings.lines)
    printing = console()
    for note in findings.notes:
        printing.print(f"  {note}", markup=False, soft_wrap=True)
    for failure in findings.failed:
        printing.print(f"  FAILED {name}: {failure}", markup=False, soft_wrap=True)
    if setting.on_gpu and not setting.small:
        record(findings.lines, RESULTS, gpu_hardware())
    return int(bool(findings.failed))


def _in_own_process(name: str) -> int:
    command = [sys.executable, "-m", "benchmarks.gpu", name]
    try:
        ran = subprocess.run(command, timeout=LIMIT_S, check=False, cwd=ROOT)  # noqa: S603 - ourselves
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"  FAILED {name}: not done after {LIMIT_S} s\n")
        return 1
    return int(ran.returncode != 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
