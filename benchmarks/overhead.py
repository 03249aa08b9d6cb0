"""What a pipeline costs beyond its work: a task that does nothing, a run with nothing changed.

A task's overhead is the time that ten more of them add to a pipeline, run as `make run` runs one. The peer is the same
task as kfp's own decorator makes it, which sees to kfp's installation in every task; it is spared the environment per
task that kfp's runner makes by default, which takes a network. The run is the shipped demo's, made anew; then nothing
changes, and every run must say what the first said.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from kfp import dsl

from benchmarks.bench import ROUNDS, Line, console, cost, in_turn, record, show
from benchmarks.targets import exit_code
from shortlist.runs.runner import graph_builder, run_pipeline
from shortlist.spec.load import load_spec
from shortlist.system.progress import EVENTS_VARIABLE

ROOT: Final = Path(__file__).parents[1]
ADDED_TASKS: Final = 10
"""Tasks of the longer pipeline beyond the one of the shorter."""
REPEATS: Final = 3
COMPARED_KEYS: Final = ("models", "gates", "blessed", "rows")
"""Parts of a run's summary that nothing but a change may change."""


def return_number(number: int) -> int:
    """Return the number."""
    return number


@dsl.component(base_image="python:3.11")
def nothing_by_default(number: int) -> int:
    """Return the number."""
    return number


def run_tasks(by_default: bool, task_count: int, cached: bool, root: Path) -> None:
    """Run a pipeline of some tasks, one after another, as a local run does.

    Args:
        by_default: Whether the tasks are made as kfp makes them; else as a graph's steps.
        task_count: Number of tasks.
        cached: Whether they may be found in the cache.
        root: Folder for artefacts and the cache.
    """
    builder = graph_builder(load_spec(ROOT / "pipelines/specs/demo.yaml"))

    @builder.pipeline("overhead", "Tasks in turn", ())
    def tasks_in_turn() -> None:
        previous = None
        for number in range(task_count):
            if by_default:
                current_task = nothing_by_default(number=number).set_caching_options(cached)
                if previous is not None:
                    current_task.after(previous)
                previous = current_task
            else:
                previous = builder.add(
                    return_number, cached=cached, after=[previous] if previous else (), number=number
                )

    run_pipeline(tasks_in_turn, builder, {}, root)


def run(root: Path, task_count: int, *, by_default: bool, cached: bool) -> None:
    """Run tasks in a process, and see that every task did what it should."""
    events = root / "events.jsonl"
    root.mkdir(exist_ok=True)
    events.write_text("")
    call = f"run_tasks({by_default}, {task_count}, {cached}, Path({str(root)!r}))"
    completed = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", f"from pathlib import Path; from benchmarks.overhead import run_tasks; {call}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, EVENTS_VARIABLE: str(events)},
    )
    reused, executed = (
        events.read_text().count('"cached"'),
        (completed.stdout + completed.stderr).count("Executing task"),
    )
    assert reused + executed == task_count, f"{executed} tasks ran, {reused} were reused"


def tasks(scratch: Path) -> list[Line]:
    """Measure what one more task adds: ours, ours from the cache, and as kfp makes it by default."""
    kinds = {
        "ours": (False, False),
        "from the cache": (False, True),
        "by default": (True, False),
    }
    works: dict[str, Callable[[], object]] = {}
    for kind, (by_default, cached) in kinds.items():
        for task_count in (1, 1 + ADDED_TASKS):
            name = f"{kind}, {task_count}"
            options = {"by_default": by_default, "cached": cached}
            run(scratch / name, task_count, **options)  # warms up; fills the cache
            works[name] = lambda name=name, task_count=task_count, options=options: run(
                scratch / name, task_count, **options
            )
    spent = {name: cost.wall_s for name, cost in in_turn(works, ROUNDS).items()}
    added = {kind: (spent[f"{kind}, {1 + ADDED_TASKS}"] - spent[f"{kind}, 1"]) / ADDED_TASKS for kind in kinds}
    default_seconds = added["by default"]
    names = {"ours": "a task that does nothing", "from the cache": "a task from the cache"}
    peer = f"as kfp makes it: {default_seconds:.2f} s"
    return [
        Line("overhead", name, round(added[kind], 4), "s", peer, round(added[kind] / default_seconds, 3))
        for kind, name in names.items()
    ]


def whole_runs(runs: Path) -> list[Line]:
    """Measure a run with nothing changed since the one before, and what the first one spent outside of its steps."""
    command = [Path(sys.executable).parent / "shortlist", "run", "demo", "--runs", runs]
    summaries: list[dict[str, Any]] = []

    def once() -> None:
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # noqa: S603 - our own program
        summaries.append(json.loads((runs / "latest" / "summary.json").read_text()))

    first = cost(once).wall_s
    seconds = median(cost(once).wall_s for _ in range(REPEATS))
    for repeated in summaries[1:]:
        assert all(repeated[part] == summaries[0][part] for part in COMPARED_KEYS), "an unchanged run said other things"
    steps = [step["seconds"] for step in summaries[0]["steps"].values() if not step["cached"]]
    # Of each step's process: what it imports before its own clock starts, and how it ends.
    outside, peer = (first - sum(steps)) / len(steps), f"inside: {sum(steps) / len(steps):.1f} s"
    ratio = first / sum(steps) - 1
    return [
        Line("overhead", "an unchanged run", seconds, "s", f"the first run: {first:.0f} s", seconds / first),
        Line("overhead", "a step of the first run, outside its clock", outside, "s", peer, ratio),
    ]


def main() -> int:
    """Print the table and write the results; exit code 1 when something takes longer than asked."""
    printing = console()
    with TemporaryDirectory(prefix="shortlist-bench-") as folder:
        with printing.status("tasks that do nothing"):
            lines = tasks(Path(folder))
        with printing.status("the demo, then the demo again"):
            lines += whole_runs(Path(folder) / "runs")
    show(f"Overhead, medians of {ROUNDS} and of {REPEATS}", lines)
    record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
