"""Runs whose processes are killed, compared with an undisturbed run: `make bench NAME=kills`.

A random process of a run (of its graph, a step, or a server that a step started) is killed by SIGKILL at a random
moment, and the command is given again until it succeeds. Every run must then report what the undisturbed run reports:
rows, every metric, every gate, and the version that it registered. `OPTIONS="--kills 20"` is a short form.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil
import yaml

from benchmarks.bench import Line, console, record, show
from benchmarks.soak import small_spec
from benchmarks.targets import exit_code
from shortlist.storage.artefacts import read_json

KILLS: Final = 200
KILLS_PER_RUN: Final = 10
HUNG_SECONDS: Final = 900.0
"""A run that has not ended by then hangs."""
_TIMED: Final = "train_rows_per_s"
"""Figure of a model that differs from run to run."""


@dataclass
class KilledRuns:
    """Counts of kills and runs, and the runs whose results differ."""

    kills: int = 0
    runs: int = 0
    """Runs that succeeded after their kills."""
    survived: int = 0
    """Kills after which the command succeeded without being given again."""
    differences: list[str] = field(default_factory=list)
    """Runs that report something else than the undisturbed run, or that failed without a kill."""
    programs: Counter[str] = field(default_factory=Counter)
    """Kills by name of the killed process."""


def read_results(runs: Path) -> dict[str, Any]:
    """Return the figures of the newest run that must not depend on kills."""
    summary = read_json(runs / "latest" / "summary.json")
    models = {
        name: {key: value for key, value in model.items() if key != _TIMED} for name, model in summary["models"].items()
    }
    gates = [(gate["name"], gate["model"], gate["passed"]) for gate in summary["gates"]]
    return {"rows": summary["rows"], "models": models, "gates": gates, "blessed": summary["blessed"]}


def kill_in_runs(
    command: Callable[[Path], Sequence[str]], folder: Path, kills: int, seed: int, per_run: int = KILLS_PER_RUN,
    at_once: int = 1,
) -> KilledRuns:  # fmt: skip
    """Kill processes of runs, and compare their results with those of an undisturbed run.

    Args:
        command: Returns the command of a run, given its folder of runs.
        folder: Folder in which the folders of runs are made.
        kills: Number of kills in all.
        seed: Seed of the moments and of the choice of processes.
        per_run: Most kills of one run.
        at_once: Most processes that are killed at one moment, as where the memory of a machine is used up.
    """
    generator, outcome = random.Random(seed), KilledRuns()
    began = time.monotonic()
    assert _finish(_start(command(folder / "undisturbed"), folder)) == 0, f"{folder}/commands.log says why"
    seconds = time.monotonic() - began
    expected = read_results(folder / "undisturbed")
    while outcome.kills < kills:
        runs, remaining_kills, code = folder / f"runs-{outcome.runs}", min(per_run, kills - outcome.kills), 1
        while code:
            process = _start(command(runs), folder)
            delay_seconds, max_kills = generator.uniform(0, seconds), min(at_once, remaining_kills)
            if max_kills and (names := _kill_processes(process, generator, delay_seconds, max_kills)):
                remaining_kills, outcome.kills = remaining_kills - len(names), outcome.kills + len(names)
                outcome.programs.update(names)
                code = _finish(process)
                outcome.survived += code == 0
            else:
                code = _finish(process)
                if code:
                    outcome.differences.append(f"{runs.name}: exit code {code} without a kill")
                    break
        outcome.runs += 1
        if not code and (results := read_results(runs)) != expected:
            differing = [key for key, value in expected.items() if results[key] != value]
            outcome.differences.append(f"{runs.name}: other {', '.join(differing)}")
    return outcome


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "commands.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - ourselves


def _kill_processes(
    process: subprocess.Popen[bytes], generator: random.Random, delay_seconds: float, max_kills: int
) -> list[str]:
    """Kill processes of a command some seconds after its start; return their names, none where it ended first."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(delay_seconds)
        return []
    names: list[str] = []
    while process.poll() is None and not names:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
            for child in generator.sample(children, min(max_kills, len(children))):
                name = child.name()
                child.kill()
                names.append(name)
        time.sleep(0.01)
    return names


def _finish(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(HUNG_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"a run hangs: no end after {HUNG_SECONDS:g} s") from None


def main() -> int:
    """Print and record the counts; exit code 1 when a run's results differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="shortlist-") as name:
        folder = Path(name)
        spec = folder / "kills.yaml"
        spec.write_text(yaml.safe_dump(small_spec(1).model_dump(mode="json")), encoding="utf-8")

        def command(runs: Path) -> Sequence[str]:
            program = "from shortlist.cli import main; main()"
            return sys.executable, "-c", program, "run", str(spec), "--runs", str(runs)

        outcome = kill_in_runs(command, folder, options.kills, options.seed)
    for line in (*outcome.differences, ", ".join(f"{count} x {name}" for name, count in outcome.programs.items())):
        console().print(line)
    lines = [
        Line("kills", "killed processes", outcome.kills, "kills"),
        Line("kills", "commands that succeeded all the same", outcome.survived, "kills"),
        Line("kills", "runs that succeeded in the end", outcome.runs, "runs"),
        Line("kills", "other results", len(outcome.differences), "runs"),
    ]
    show("Runs of which processes are killed", lines)
    if options.kills >= KILLS:
        record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
