"""Order, failures and cache hits of the steps that kfp.local runs at the same time."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, local

from shortlist.ranking.kind import DeclaredModel
from shortlist.runs.concurrent_steps import StepSettings, StepSlots, concurrent_steps, count_later_tasks

step = dsl.component(base_image="python", install_kfp_package=False)


@step
def meet(folder: str, name: str, others: list) -> str:  # type: ignore[type-arg]
    """Wait until the other steps run, too."""
    import time
    from pathlib import Path

    (Path(folder) / name).touch()
    deadline = time.monotonic() + 60
    while not all((Path(folder) / other).exists() for other in others):
        assert time.monotonic() < deadline, f"{others} did not start"
        time.sleep(0.02)
    return name


@step
def measure(folder: str) -> None:
    """Fail where another step runs at the same time."""
    import time
    from pathlib import Path

    for _ in range(20):
        assert not list(Path(folder).glob("busy-*")), "another step runs"
        time.sleep(0.05)


@step
def work(folder: str, text: str) -> str:
    """Leave a marker while it runs."""
    import time
    from pathlib import Path

    marker = Path(folder) / f"busy-{text}"
    marker.touch()
    time.sleep(1)
    marker.unlink()
    return text


@step
def train(folder: str, declared: str) -> str:
    """Stand for the training of a model."""
    return declared


@step
def validate_export(folder: str, model: str) -> None:
    """Stand for the validation of a model."""


@step
def fail(folder: str) -> str:
    """Fail."""
    raise SystemExit(1)


@step
def close(folder: str, status: dsl.PipelineTaskFinalStatus) -> None:
    """Write how the graph ended."""
    from pathlib import Path

    (Path(folder) / "status").write_text(status.state)


def run(graph: Any, root: Path, *alone: str, at_once: int = 2) -> list[str]:
    """Run a graph; return the steps that were answered from the cache."""
    hits: list[str] = []
    local.init(
        runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(root / "artefacts"),
        workspace_root=str(root / "workspace"), enable_caching=True, cache_root=str(root / "cache"),
    )  # fmt: skip
    steps = {"train": "train", "validate-export": "validate_export", "work": "work"}
    later_tasks = count_later_tasks(graph.pipeline_spec)
    with concurrent_steps(
        StepSettings(steps, at_once, frozenset(alone), later_tasks, hits.append, lambda output: output != "newest")
    ):
        graph(folder=str(root))
    return hits


@pytest.mark.long
def test_steps_run_at_the_same_time_unless_they_measure_time(tmp_path: Path) -> None:
    @dsl.pipeline
    def graph(folder: str) -> None:
        with dsl.ExitHandler(close(folder=folder)):
            pair = [meet(folder=folder, name=name, others=["a", "b"]) for name in ("a", "b")]
            for number in range(3):
                work(folder=folder, text=f"{number}").after(*pair)
                measure(folder=folder).after(*pair)

    run(graph, tmp_path, "measure", "measure-2", "measure-3")
    assert (tmp_path / "status").read_text() == "SUCCEEDED"
    (tmp_path / "again").mkdir()
    with pytest.raises(RuntimeError, match="measure"):  # nothing says that it runs alone
        run(graph, tmp_path / "again", at_once=6)


@pytest.mark.long
def test_a_failure_stops_what_comes_after_it_and_nothing_else(tmp_path: Path) -> None:
    @dsl.pipeline
    def graph(folder: str) -> None:
        with dsl.ExitHandler(close(folder=folder)):
            failed = fail(folder=folder)
            later = meet(folder=folder, name="later", others=[]).after(failed)
            meet(folder=folder, name="latest", others=[]).after(later)
            meet(folder=folder, name="independent", others=[])

    with pytest.raises(RuntimeError, match="fail"):
        run(graph, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"independent", "status"}
    assert not {path.name for path in tmp_path.iterdir()} & {"later", "latest"}
    assert (tmp_path / "status").read_text() == "FAILED"


@pytest.mark.long
def test_a_cached_step_of_a_model_has_the_name_of_the_model(tmp_path: Path) -> None:
    roles = {"trees": "candidate", "network": "candidate", "popularity": "baseline"}
    models = [DeclaredModel(name=name, section={"kind": "xgboost", "role": role}).text for name, role in roles.items()]

    @dsl.pipeline
    def graph(folder: str) -> None:
        with dsl.ParallelFor(items=models) as declared:
            trained = train(folder=folder, declared=declared)
            validate_export(folder=folder, model=trained.output)
        work(folder=folder, text="newest")

    assert run(graph, tmp_path) == []
    hits = ["train_network", "train_popularity", "train_trees", "validate_export_network", "validate_export_trees"]
    assert sorted(run(graph, tmp_path)) == hits  # a baseline is not validated; `newest` may not be reused


def test_a_step_that_runs_alone_overlaps_no_other_step() -> None:
    slots, running, steps = StepSlots(2), [0], []
    lock, has_begun, may_end = threading.Lock(), threading.Event(), threading.Event()

    def start(name: str, *, alone: bool) -> threading.Thread:
        def work() -> None:
            with slots.hold(alone=alone):
                with lock:
                    running[0] += 1
                    steps.append((name, running[0]))
                has_begun.set()
                may_end.wait(30)
                with lock:
                    running[0] -= 1

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    threads = [start("first", alone=False)]
    assert has_begun.wait(30)
    threads += [start("timed", alone=True), start("second", alone=False), start("third", alone=False)]
    deadline = time.monotonic() + 30
    while len(steps) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(steps) == 2 and steps[1][0] in ("second", "third")  # two slots; the timed step waits longest
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert {name for name, _ in steps} == {"first", "timed", "second", "third"}
    assert dict(steps)["timed"] == 1 and max(count for _, count in steps) <= 2


def test_the_step_that_most_tasks_wait_for_gets_the_next_slot() -> None:
    slots, order, may_end = StepSlots(1), [], threading.Event()

    def start(name: str, later_tasks: int, *, alone: bool = False) -> threading.Thread:
        def work() -> None:
            with slots.hold(alone=alone, later_tasks=later_tasks):
                order.append(name)
                may_end.wait(30)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    threads = [start("first", 0)]
    for number, (name, later_tasks) in enumerate({"alone": 9, "short": 2, "long": 7, "as long": 7}.items(), start=1):
        threads.append(start(name, later_tasks, alone=name == "alone"))
        deadline = time.monotonic() + 30
        while len(slots._queue) < number and time.monotonic() < deadline:
            time.sleep(0.01)
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first", "long", "as long", "short", "alone"]


def test_the_tasks_after_a_task_are_counted_through_loops() -> None:
    @dsl.pipeline
    def graph(folder: str) -> None:
        work(folder=folder, text="alone")
        begin = work(folder=folder, text="begin")
        with dsl.ParallelFor(items=["a", "b"]) as declared:
            trained = train(folder=folder, declared=declared).after(begin)
            validate_export(folder=folder, model=trained.output)
        work(folder=folder, text="end").after(trained)

    counts = {"work": 0, "work-2": 2, "for-loop-2": 1, "train": 2, "validate-export": 1, "work-3": 0}
    assert count_later_tasks(graph.pipeline_spec).items() >= counts.items()
