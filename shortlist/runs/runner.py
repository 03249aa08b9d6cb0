"""Runs one compiled pipeline on this machine with kfp.local; the child process of `shortlist.runs.local_training`."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from monitoring.store.process_identity import RUN_PROCESS_VARIABLE
from shortlist.contracts import Files
from shortlist.ranking.kind import DeclaredModel
from shortlist.report.titles import PER_MODEL
from shortlist.runs.step_server import step_server, with_client
from shortlist.system.progress import EVENTS_VARIABLE, emit

_CACHE_HIT = re.compile(r"^Task (?P<task>[\w-]+) cache hit")


class CacheHits(logging.Handler):
    """Turns kfp.local's log line about a cache hit into an event for the parent process."""

    def __init__(self, steps: dict[str, str], models: Mapping[str, str]) -> None:
        """Create the handler of one graph.

        Args:
            steps: Step of every task, by the task's name.
            models: Role of every declared model, by name, in the declared order.
        """
        super().__init__()
        self._steps = steps
        self._roles = dict(models)

    def emit(self, record: logging.LogRecord) -> None:
        """Emit an event for a task that was found in the cache; ignore other records."""
        match = _CACHE_HIT.match(record.getMessage())
        if not match:
            return
        step = self._steps.get(match["task"], match["task"])
        name = self._name_with_model(step) if step in PER_MODEL else step
        if name:
            emit({"event": "cached", "step": name})

    def _name_with_model(self, step: str) -> str:
        """Return the step's name with its model's, which kfp.local does not log; empty where the step is not shown.

        Models are trained one after another in the declared order.
        """
        first = f"{PER_MODEL[0]}_"
        started_models = [name.removeprefix(first) for name in _started_steps() if name.startswith(first)]
        if step == PER_MODEL[0]:
            return f"{step}_{list(self._roles)[len(started_models)]}" if len(started_models) < len(self._roles) else ""
        return (
            f"{step}_{started_models[-1]}"
            if started_models and self._roles.get(started_models[-1]) == "candidate"
            else ""
        )


def _started_steps() -> list[str]:
    """Return the steps that this run started or found in the cache, in their order."""
    path = Path(os.environ.get(EVENTS_VARIABLE, ""))
    events = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    return [event["step"] for event in events if event["event"] in ("step", "cached")]


def task_steps(compiled: Path) -> dict[str, str]:
    """Return the step of every task in a compiled pipeline, by task name, in the order they are declared."""
    # With libyaml: 0.02 s instead of 0.13, in this process and in the one with the display.
    pipeline = next(yaml.load_all(compiled.read_text(), yaml.CSafeLoader))
    groups = [pipeline["root"], *pipeline["components"].values()]
    tasks = [task for group in groups for task in group.get("dag", {}).get("tasks", {}).items()]
    executors = {name: component.get("executorLabel") for name, component in pipeline["components"].items()}
    labels = {name: executors[task["componentRef"]["name"]] for name, task in tasks}
    return {name: _step_of(pipeline, label) for name, label in labels.items() if label}


def _step_of(pipeline: Mapping[str, Any], executor: str) -> str:
    arguments: list[str] = pipeline["deploymentSpec"]["executors"][executor]["container"]["args"]
    return arguments[arguments.index("--function_to_execute") + 1]


def roles_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the role of every model with steps of its own, by name and in the order of a graph's arguments."""
    models = [DeclaredModel.read(text) for text in arguments.get("models", ())]
    return {model.name: model.role for model in models if not model.members}


def depends_on_moment(output: Any) -> bool:
    """Return whether an output of a step has an export validation that another moment may change."""
    uri = getattr(output, "uri", "")
    validations = Path(uri).rglob(Files.EXPORT_VALIDATION) if uri else ()
    return any(json.loads(path.read_text())["depends_on_moment"] for path in validations)


def skip_verdicts_of_moment() -> None:
    """Keep what depends on the moment out of kfp.local's cache, so that the next run measures again."""
    from kfp.local.cache import LocalCache

    put = LocalCache.put

    def put_if_reusable(cache: LocalCache, key: str, outputs: dict[str, Any]) -> None:
        if not any(map(depends_on_moment, outputs.values())):
            put(cache, key, outputs)

    LocalCache.put = put_if_reusable


def run_pipeline(pipeline: Path, arguments: dict[str, Any], root: Path) -> None:
    """Run a compiled pipeline; a failing task raises.

    Args:
        pipeline: File with the compiled graph.
        arguments: Values of its parameters.
        root: Folder for artefacts and the cache.
    """
    from kfp import components, local

    os.environ[RUN_PROCESS_VARIABLE] = str(os.getpid())  # steps end before the training that they record
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(root / "artefacts"),
        workspace_root=str(root / "workspace"),
        enable_caching=True,
        cache_root=str(root / "cache"),
    )
    skip_verdicts_of_moment()
    steps = task_steps(pipeline)
    graph = components.load_component_from_text(with_client(pipeline.read_text()))
    logging.getLogger().setLevel(logging.INFO)  # kfp.local logs cache hits at this level
    logging.getLogger().addHandler(CacheHits(steps, roles_of(arguments)))
    with step_server(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kfp warns about every image that is not a plain Python one
        graph(**arguments)


def main() -> int:
    """Run `python -m shortlist.runs.runner PIPELINE ARGUMENTS.json ROOT`; exit code 1 when a task failed."""
    pipeline, arguments, root = (Path(argument) for argument in sys.argv[1:4])
    try:
        run_pipeline(pipeline, json.loads(arguments.read_text()), root)
    except RuntimeError as error:  # a failed task: its message is already in the log and in its event
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
