"""Runs the steps of a graph with kfp.local: those that do not wait for each other at the same time (ADR 3).

kfp.local runs the tasks of a graph one after another and has no interface for another order. What it does for one task,
a condition or a loop is called here as it is; the order of tasks and the output of their processes are decided here.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kfp.local import graph_utils, logging_utils, subprocess_task_handler, task_dispatcher
from kfp.local.cache import LocalCache
from kfp.local.io import IOStore
from kfp.local.orchestrator import enhanced_dag_orchestrator, task_executor
from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils
from kfp.local.status import Status

from shortlist.ranking.kind import DeclaredModel
from shortlist.report.titles import PER_MODEL

Outputs = dict[str, Any]
"""Outputs of a task, by name."""
_LOOP_ITEM: Final = "loop-item"
"""Part of the name under which the tasks of a loop get their item."""
_MAX_ITERATIONS: Final = 64
"""Iterations of a loop that may wait for slots at the same time."""
_item: ContextVar[str] = ContextVar("item", default="")
"""Item of the loop whose iteration runs in this thread: a declared model, where steps are per model."""


class LocalStep(NamedTuple):
    """A step that runs in a thread."""

    name: str
    """Name, with its model's; empty where the step is not shown."""
    is_alone: bool
    """Whether no other step may run beside it."""
    later_tasks: int
    """Tasks that wait for it, one after another."""


_NO_STEP: Final = LocalStep("", is_alone=False, later_tasks=0)
_step: ContextVar[LocalStep] = ContextVar("step", default=_NO_STEP)


@dataclass(frozen=True)
class StepSettings:
    """Settings of the steps of a run.

    Args:
        steps: Step of every task, by the task's name.
        at_once: Most steps that run at the same time.
        alone: Tasks that run while no other one does, because they measure time.
        later_tasks: Most tasks that wait for a task, one after another, by its name; a task that most wait for goes
            first.
        on_cache_hit: Called with the name of each step that an earlier run's results answer.
        is_reusable: Whether an output may answer a step of a later run.
    """

    steps: Mapping[str, str]
    at_once: int
    alone: frozenset[str]
    later_tasks: Mapping[str, int]
    on_cache_hit: Callable[[str], None]
    is_reusable: Callable[[Any], bool]


class StepSlots:
    """Slots of the steps that run at the same time.

    Args:
        count: Number of slots.
    """

    def __init__(self, count: int) -> None:
        self._count = self._free_slots = count
        self._arrivals = itertools.count()
        self._queue: list[tuple[bool, int, int]] = []
        """A heap: steps that run alone are last; among the others those that most tasks wait for, then the first."""
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, *, alone: bool, later_tasks: int = 0) -> Iterator[None]:
        """Hold a slot during the block, or all of them; wait until there is one.

        Args:
            alone: Whether to wait until no other step runs or waits for a slot, and then to keep all of them waiting.
            later_tasks: Tasks that wait for the step, one after another; steps with more get a slot before.
        """
        slots = self._count if alone else 1
        with self._changed:
            position = alone, -later_tasks, next(self._arrivals)
            heapq.heappush(self._queue, position)
            self._changed.wait_for(lambda: slots <= self._free_slots and self._queue[0] == position)
            heapq.heappop(self._queue)
            self._free_slots -= slots
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free_slots += slots
                self._changed.notify_all()


def count_later_tasks(pipeline_spec: Any) -> dict[str, int]:
    """Return how many tasks wait for a task, one after another, by its name; in loops and conditions too.

    Args:
        pipeline_spec: kfp's description of a pipeline.
    """
    counts: dict[str, int] = {}

    def count_in(component: Any, after: int) -> None:
        tasks = component.dag.tasks
        for name in graph_utils.topological_sort_tasks(dict(tasks)):  # a task comes before those that it depends on
            waiting = [counts[task] + 1 for task in tasks if name in tasks[task].dependent_tasks]
            counts[name] = max([after, *waiting])
        for name, task in tasks.items():
            if task.component_ref.name in pipeline_spec.components:
                count_in(pipeline_spec.components[task.component_ref.name], counts[name])

    count_in(pipeline_spec.root, 0)
    return counts


@contextmanager
def concurrent_steps(step_settings: StepSettings) -> Iterator[None]:
    """Let kfp.local run the steps of graphs with these settings during the block.

    Args:
        step_settings: Settings of the steps.
    """
    slots = StepSlots(step_settings.at_once)
    execute, run_task = task_executor.execute_single_task, task_dispatcher.run_single_task_implementation
    cache_get, cache_put = LocalCache.get, LocalCache.put

    def execute_named(task_name: str, **arguments: Any) -> Any:
        name = _name_step(step_settings.steps.get(task_name, task_name))
        later_tasks = step_settings.later_tasks.get(task_name, 0)
        _step.set(LocalStep(name, is_alone=task_name in step_settings.alone, later_tasks=later_tasks))
        return execute(task_name=task_name, **arguments)

    def run_in_slot(**arguments: Any) -> Any:
        with slots.hold(alone=_step.get().is_alone, later_tasks=_step.get().later_tasks):
            return run_task(**arguments)

    def get_and_report(cache: LocalCache, key: str) -> Any:
        outputs = cache_get(cache, key)
        if outputs is not None and _step.get().name:
            step_settings.on_cache_hit(_step.get().name)
        return outputs

    def put_if_reusable(cache: LocalCache, key: str, outputs: Outputs) -> None:
        if all(map(step_settings.is_reusable, outputs.values())):
            cache_put(cache, key, outputs)

    task_executor.execute_single_task = execute_named
    task_dispatcher.run_single_task_implementation = run_in_slot
    LocalCache.get, LocalCache.put = get_and_report, put_if_reusable
    with _concurrent_order():
        try:
            yield
        finally:
            task_executor.execute_single_task, task_dispatcher.run_single_task_implementation = execute, run_task
            LocalCache.get, LocalCache.put = cache_get, cache_put


@contextmanager
def _concurrent_order() -> Iterator[None]:
    """Replace kfp's order of tasks, and its printing of their processes' output, during the block."""
    run_graph, run_process = enhanced_dag_orchestrator.run_enhanced_dag, subprocess_task_handler.run_local_subprocess
    log_context, indented = logging_utils.local_logger_context, logging_utils.indented_print
    enhanced_dag_orchestrator.run_enhanced_dag = _run_graph
    subprocess_task_handler.run_local_subprocess = _run_process
    # Both change what all threads print; lines have the name of their step instead.
    logging_utils.local_logger_context = logging_utils.indented_print = nullcontext
    try:
        yield
    finally:
        enhanced_dag_orchestrator.run_enhanced_dag = run_graph
        subprocess_task_handler.run_local_subprocess = run_process
        logging_utils.local_logger_context, logging_utils.indented_print = log_context, indented


def _name_step(step: str) -> str:
    """Return a step's name with its model's; empty where the step is not shown."""
    if step not in PER_MODEL or not _item.get():
        return step
    model = DeclaredModel.read(_item.get())
    return f"{step}_{model.name}" if step == PER_MODEL[0] or model.role == "candidate" else ""


def _run_process(full_command: Sequence[str], env_vars: Mapping[str, str] | None = None) -> int:
    """Run the process of a step; print its lines with the step's name, and return its exit code."""
    prefix = f"{_step.get().name} | "
    with subprocess.Popen(  # noqa: S603 - the client of the step server
        full_command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **(env_vars or {})},
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(f"{prefix}{line}")
            sys.stdout.flush()
    return process.returncode


def _run_graph(
    *,
    dag_component_spec: Any,
    dag_arguments: Mapping[str, Any],
    fail_stack: list[str],
    parent_io_store: IOStore | None = None,
    **settings: Any,
) -> tuple[Outputs, Status]:
    """Run the tasks of a graph or of a part of it, each once its upstream tasks have ended; the exit handler last.

    In place of kfp's `run_enhanced_dag`, with its arguments and its return value.
    """
    io_store = IOStore(parent=parent_io_store)
    inputs = OrchestratorUtils.join_user_inputs_and_defaults(dag_arguments, dag_component_spec.input_definitions)
    for name, value in inputs.items():
        io_store.put_parent_input(name, value)
        if _LOOP_ITEM in name:
            _item.set(value if isinstance(value, str) else "")
    tasks = dag_component_spec.dag.tasks
    # Only exit handlers read the final status of other tasks.
    exit_tasks = [
        name
        for name, task in tasks.items()
        if any(source.HasField("task_final_status") for source in task.inputs.parameters.values())
    ]
    body = {name: task for name, task in tasks.items() if name not in exit_tasks}
    graph = _GraphRun(io_store, fail_stack, settings)
    successes: dict[str, Future[bool]] = {}
    with ThreadPoolExecutor(max(1, len(body))) as threads:
        for name in reversed(graph_utils.topological_sort_tasks(body)):
            upstream = [successes[task] for task in body[name].dependent_tasks]
            successes[name] = threads.submit(copy_context().run, graph.run_task, name, body[name], upstream)
    has_succeeded = all(success.result() for success in successes.values())
    for name in exit_tasks:
        has_succeeded &= graph.run_task(name, tasks[name], [])
    if not has_succeeded:
        return {}, Status.FAILURE
    return OrchestratorUtils.get_dag_outputs(dag_component_spec.dag.outputs, io_store), Status.SUCCESS


@dataclass(frozen=True)
class _GraphRun:
    """A run of the tasks of a graph."""

    io_store: IOStore
    """Inputs of the graph, and the outputs of its tasks."""
    fail_stack: list[str]
    """Names of the failed tasks, those of inner graphs first."""
    settings: dict[str, Any]
    """Arguments of kfp's functions that are the same for all tasks."""

    def run_task(self, name: str, task: Any, upstream: Sequence[Future[bool]]) -> bool:
        """Run a task; return whether it succeeded, or is left out by its condition.

        Args:
            name: Name of the task.
            task: kfp's description.
            upstream: Whether each of its upstream tasks succeeded; where one did not, this one fails without being run.
        """
        if not all(success.result() for success in upstream):
            logging.info("Task %s is not run: an upstream task failed", name)
            self.io_store.put_task_status(name, "FAILED")
            return False
        condition = task.trigger_policy.condition
        if condition and not enhanced_dag_orchestrator.ConditionEvaluator.evaluate_condition(condition, self.io_store):
            return True
        arguments = {
            "task_name": name, "task_spec": task, "io_store": self.io_store, "fail_stack": self.fail_stack,
        } | self.settings  # fmt: skip
        if task.WhichOneof("iterator"):
            executor = enhanced_dag_orchestrator.ParallelExecutor()
            executor.conservative_max = executor.max_workers = _MAX_ITERATIONS  # slots limit what runs
            has_failed = enhanced_dag_orchestrator._run_parallel_for_task(**arguments, parallel_executor=executor)
        else:
            outputs, status = enhanced_dag_orchestrator.execute_task(**arguments)
            has_failed = status is Status.FAILURE
            for key, output in outputs.items():
                self.io_store.put_task_output(name, key, output)
        if has_failed:
            self.fail_stack.append(name)
        self.io_store.put_task_status(name, "FAILED" if has_failed else "SUCCEEDED")
        return not has_failed
