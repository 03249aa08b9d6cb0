"""Compiles the pipelines into the files that a cluster gets and that run on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shortlist.spec.spec import Spec

COMPILED = Path(__file__).parent / "compiled"
"""Folder of the committed files."""


def pipelines() -> dict[str, Callable[..., Any]]:
    """Return every pipeline by the name of its file."""
    from pipelines.backfill import backfill
    from pipelines.monitoring import (
        monitoring,
        monitoring_wide,
        scheduled_retraining,
        scheduled_retraining_wide,
    )
    from pipelines.refresh import refresh
    from pipelines.submitted import submitted, submitted_wide
    from pipelines.training import training, training_wide
    from pipelines.tuning import tuning

    return {
        "training": training,
        "training_wide": training_wide,
        "submitted": submitted,
        "submitted_wide": submitted_wide,
        "monitoring": monitoring,
        "monitoring_wide": monitoring_wide,
        "scheduled_retraining": scheduled_retraining,
        "scheduled_retraining_wide": scheduled_retraining_wide,
        "refresh": refresh,
        "backfill": backfill,
        "tuning": tuning,
    }


def training_pipeline(spec: Spec) -> str:
    """Return the name of a spec's training graph: the wide one when days are divided among pods."""
    return "training_wide" if spec.runtime.cluster.partitions > 1 else "training"


def submitted_pipeline(spec: Spec) -> str:
    """Return the name of a spec's graph for a submitted training; see `training_pipeline`."""
    return "submitted_wide" if spec.runtime.cluster.partitions > 1 else "submitted"


def monitoring_pipeline(spec: Spec) -> str:
    """Return the name of a spec's monitoring graph; see `training_pipeline`."""
    return "monitoring_wide" if spec.runtime.cluster.partitions > 1 else "monitoring"


def scheduled_pipeline(spec: Spec) -> str:
    """Return the name of a spec's graph for scheduled trainings; see `training_pipeline`."""
    return "scheduled_retraining_wide" if spec.runtime.cluster.partitions > 1 else "scheduled_retraining"


def compile_all(folder: Path = COMPILED) -> list[Path]:
    """Compile every pipeline into a folder; return the files."""
    from kfp import compiler

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, pipeline in pipelines().items():
        paths.append(folder / f"{name}.yaml")
        compiler.Compiler().compile(pipeline, str(paths[-1]))
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
