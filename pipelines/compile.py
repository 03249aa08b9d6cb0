"""Builds the graphs of a spec, and compiles the committed examples: the graphs of the demo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from pipelines.backfill import build_backfill
from pipelines.graph import GraphTarget, PipelineBuilder
from pipelines.monitoring import build_monitoring, build_scheduled_retraining
from pipelines.refresh import build_refresh
from pipelines.submitted import build_submitted
from pipelines.training import build_training
from pipelines.tuning import build_tuning
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec

GraphName = Literal["training", "submitted", "monitoring", "scheduled_retraining", "refresh", "backfill", "tuning"]
GRAPHS: Final[dict[GraphName, Callable[..., Any]]] = {
    "training": build_training,
    "submitted": build_submitted,
    "monitoring": build_monitoring,
    "scheduled_retraining": build_scheduled_retraining,
    "refresh": build_refresh,
    "backfill": build_backfill,
    "tuning": build_tuning,
}
"""Function that builds each graph, by name."""
COMPILED: Final = Path(__file__).parent / "compiled"
"""Folder of the committed examples."""
_EXAMPLE: Final = Path(__file__).parent / "specs/demo.yaml"


def build_graph(name: GraphName, spec: Spec, target: GraphTarget | None = None) -> Any:
    """Return a graph of a spec, with the steps that the spec needs.

    Args:
        name: Name of the graph.
        spec: The declaration.
        target: What runs it.
    """
    return GRAPHS[name](PipelineBuilder(spec, target))


def compile_all(folder: Path = COMPILED) -> list[Path]:
    """Compile the graphs of the demo into a folder; return the files."""
    from kfp import compiler

    folder.mkdir(parents=True, exist_ok=True)
    spec, paths = load_spec(_EXAMPLE), []
    for name in GRAPHS:
        paths.append(folder / f"{name}.yaml")
        compiler.Compiler().compile(build_graph(name, spec), str(paths[-1]))
    return paths


def out_of_date(folder: Path = COMPILED) -> list[Path]:
    """Return the committed files that differ from what the code compiles to now."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = compile_all(Path(scratch))
        return [
            folder / path.name
            for path in fresh
            if not (folder / path.name).exists() or (folder / path.name).read_text() != path.read_text()
        ]
