"""Runs a graph of a spec on this machine with kfp.local; the child process of `shortlist.runs.local_training`."""

from __future__ import annotations

import json
import logging
import os
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from shortlist.contracts import Files
from shortlist.runs.step_server import STEP_COMMAND, step_server
from shortlist.storage.artefacts import read_json
from shortlist.system.progress import emit
from shortlist.tracking.pipeline_run import RUN_PROCESS_VARIABLE

if TYPE_CHECKING:  # kfp and the sections of a spec are imported beside the step server, which takes longest
    from pipelines.compile import GraphName
    from pipelines.graph import PipelineBuilder
    from shortlist.spec.spec import Spec

TIMED_STEPS: Final = frozenset({"validate_export"})
"""Steps that run alone, because they measure how fast a model answers."""


def roles_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the role of every model with steps of its own, by name and in the order of a graph's arguments."""
    from shortlist.ranking.kind import DeclaredModel

    models = [DeclaredModel.read(text) for text in arguments.get("models", ())]
    return {model.name: model.role for model in models if not model.members}


def depends_on_moment(output: Any) -> bool:
    """Return whether an output of a step has an export validation that another moment may change."""
    uri = getattr(output, "uri", "")
    validations = Path(uri).rglob(Files.EXPORT_VALIDATION) if uri else ()
    return any(json.loads(path.read_text())["depends_on_moment"] for path in validations)


def import_kfp() -> None:
    """Import kfp without its client of Kubeflow, with whose thousand modules no local run has to do.

    It would take as long as all the rest of kfp. In this process `kfp.Client` is missing; `kfp.client.Client` is not.
    """
    if "kfp" in sys.modules:
        return
    client = types.ModuleType("kfp.client")
    sys.modules[client.__name__], client.Client = client, None  # type: ignore[attr-defined] # kfp imports it
    import kfp

    del sys.modules[client.__name__], kfp.Client


def run_graph(name: GraphName, spec: Spec, arguments: Mapping[str, Any], root: Path) -> None:
    """Run a graph of a spec, inside `step_server`; a failing task raises.

    Args:
        name: Name of the graph.
        spec: The declaration; the graph has the steps that it needs.
        arguments: Values of its parameters; others are ignored.
        root: Folder for artefacts and the cache.
    """
    import_kfp()
    from pipelines.compile import GRAPHS

    builder = graph_builder(spec)
    run_pipeline(GRAPHS[name](builder), builder, arguments, root)


def graph_builder(spec: Spec) -> PipelineBuilder:
    """Return a builder of graphs whose steps are started by the step server."""
    from components.pod import MODULE
    from pipelines.graph import GraphTarget, PipelineBuilder

    target = GraphTarget()
    target.command, target.is_parallel = (*STEP_COMMAND, MODULE), True
    return PipelineBuilder(spec, target)


def run_pipeline(pipeline: Any, builder: PipelineBuilder, arguments: Mapping[str, Any], root: Path) -> None:
    """Run a pipeline with kfp.local, inside `step_server`; a failing task raises.

    Args:
        pipeline: kfp's pipeline.
        builder: Builder that added its steps.
        arguments: Values of its parameters; others are ignored.
        root: Folder for artefacts and the cache.
    """
    from kfp import local

    from shortlist.runs.concurrent_steps import StepSettings, concurrent_steps, count_later_tasks

    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(root / "artefacts"),
        workspace_root=str(root / "workspace"),
        enable_caching=True,
        cache_root=str(root / "cache"),
    )
    steps = {task: names[0] for task, names in builder.steps.items()}
    emit({"event": "graph", "steps": list(steps.values())})
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s")
    step_settings = StepSettings(
        steps=steps,
        at_once=builder.spec.runtime.steps_at_once,
        alone=frozenset(task for task, names in builder.steps.items() if TIMED_STEPS & {*names}),
        later_tasks=count_later_tasks(pipeline.pipeline_spec),
        on_cache_hit=lambda step: emit({"event": "cached", "step": step}),
        is_reusable=lambda output: not depends_on_moment(output),
    )
    with concurrent_steps(step_settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kfp warns about every image that is not a plain Python one
        pipeline(**{name: arguments[name] for name in pipeline.component_spec.inputs or {}})


def main() -> int:
    """Run `python -m shortlist.runs.runner GRAPH SPEC.json ARGUMENTS.json ROOT`; exit code 1 when a task failed."""
    name, spec, arguments, root = sys.argv[1:5]
    os.environ[RUN_PROCESS_VARIABLE] = str(os.getpid())  # steps end before the training that they record
    try:
        with step_server():  # it imports what steps need while this process imports the rest
            from shortlist.spec.load import parse_spec

            declared = parse_spec(Path(spec).read_text())
            run_graph(cast("GraphName", name), declared, read_json(Path(arguments)), Path(root))
    except RuntimeError as error:  # a failed task: its message is already in the log and in its event
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
