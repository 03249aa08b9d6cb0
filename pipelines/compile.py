"""Compiles the pipelines into the files that a cluster gets and that run on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMPILED = Path(__file__).parent / "compiled"
"""Folder of the committed files."""


def pipelines() -> dict[str, Callable[..., Any]]:
    """Return every pipeline by the name of its file."""
    from pipelines.backfill import backfill
    from pipelines.monitoring import monitoring, scheduled_retraining
    from pipelines.refresh import refresh
    from pipelines.submitted import submitted
    from pipelines.training import training
    from pipelines.tuning import tuning

    return {
        "training": training,
        "submitted": submitted,
        "monitoring": monitoring,
        "scheduled_retraining": scheduled_retraining,
        "refresh": refresh,
        "backfill": backfill,
        "tuning": tuning,
    }


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
