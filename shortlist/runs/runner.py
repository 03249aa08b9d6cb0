"""Runs a graph of a spec on this machine with kfp.local; the child process of `shortlist.runs.local_training`."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from monitoring.store.process_identity import RUN_PROCESS_VARIABLE
from shortlist.contracts import Files
from shortlist.ranking.kind import DeclaredModel
from shortlist.report.titles import PER_MODEL
from shortlist.runs.step_server import STEP_COMMAND, step_server
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json
from shortlist.system.progress import EVENTS_VARIABLE, emit

if TYPE_CHECKING:  # importing kfp takes seconds, which only the child process needs
    from pipelines.compile import GraphName
    from pipelines.graph import PipelineBuilder

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


def run_graph(name: GraphName, spec: Spec, arguments: Mapping[str, Any], root: Path) -> None:
    """Run a graph of a spec; a failing task raises.

    Args:
        name: Name of the graph.
        spec: The declaration; the graph has the steps that it needs.
        arguments: Values of its parameters; others are ignored.
        root: Folder for artefacts and the cache.
    """
    from pipelines.compile import GRAPHS

    builder = graph_builder(spec)
    run_pipeline(GRAPHS[name](builder), builder, arguments, root)


def graph_builder(spec: Spec) -> PipelineBuilder:
    """Return a builder of graphs whose steps are started by the step server."""
    from components.pod import MODULE
    from pipelines.graph import GraphTarget, PipelineBuilder

    target = GraphTarget()
    target.command = (*STEP_COMMAND, MODULE)
    return PipelineBuilder(spec, target)


def run_pipeline(pipeline: Any, builder: PipelineBuilder, arguments: Mapping[str, Any], root: Path) -> None:
    """Run a pipeline with kfp.local; a failing task raises.

    Args:
        pipeline: kfp's pipeline.
        builder: Builder that added its steps.
        arguments: Values of its parameters; others are ignored.
        root: Folder for artefacts and the cache.
    """
    from kfp import local

    os.environ[RUN_PROCESS_VARIABLE] = str(os.getpid())  # steps end before the training that they record
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(root / "artefacts"),
        workspace_root=str(root / "workspace"),
        enable_caching=True,
        cache_root=str(root / "cache"),
    )
    skip_verdicts_of_moment()
    steps = {task: names[0] for task, names in builder.steps.items()}
    emit({"event": "graph", "steps": list(steps.values())})
    logging.getLogger().setLevel(logging.INFO)  # kfp.local logs cache hits at this level
    logging.getLogger().addHandler(CacheHits(steps, roles_of(arguments)))
    with step_server(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kfp warns about every image that is not a plain Python one
        pipeline(**{name: arguments[name] for name in pipeline.component_spec.inputs or {}})


def main() -> int:
    """Run `python -m shortlist.runs.runner GRAPH SPEC.json ARGUMENTS.json ROOT`; exit code 1 when a task failed."""
    name, spec, arguments, root = sys.argv[1:5]
    try:
        run_graph(cast("GraphName", name), parse_spec(Path(spec).read_text()), read_json(Path(arguments)), Path(root))
    except RuntimeError as error:  # a failed task: its message is already in the log and in its event
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
