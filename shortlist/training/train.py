"""Trains, saves and scores one declared model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from shortlist.ranking.ranker import MemberFiles
from shortlist.ranking.record import TrainedModel
from shortlist.ranking.registry import require_packages
from shortlist.ranking.saved_models import load_ranker, ranker_class
from shortlist.spec.cluster import Workers
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.distributed.job import DistributedJob
from shortlist.training.scores import score


class DistributedLaunch(NamedTuple):
    """Launcher of a distributed training."""

    world: int
    """Number of processes."""
    run: Callable[[DistributedJob, Path], None]
    """run(job, out_model) trains and writes the model's folder atomically."""
    wait_seconds: int = Workers().wait_seconds
    """Timeout of one exchange between processes."""


def train(  # noqa: PLR0913, PLR0917 - inputs of a training
    kind: str, section: ModelSection | None, table: DayTable, runtime: Runtime, out_model: Path, out_scores: Path,
    champion: Path | None = None, launch: DistributedLaunch | None = None, name: str = "",
    members: Mapping[str, MemberFiles] = MappingProxyType({}),
) -> TrainedModel:  # fmt: skip
    """Train a model, write its folder, and write the scores of validation and test days into another.

    Args:
        kind: Kind of the model.
        section: The model's section of the spec; None: the kind's defaults.
        table: The feature table.
        runtime: Engine, memory budget and seed.
        out_model: Model folder to write.
        out_scores: Folder that gets `scores.parquet`.
        champion: Folder of a model of the same kind and features to start from.
        launch: Launcher of a distributed training; None: this process trains.
        name: Key of the model in the spec; empty: its kind.
        members: Files of an ensemble's members, by name.

    Raises:
        ShortlistError: Table, section and champion are incompatible, training diverged, or a package of the kind is not
            installed.
    """
    require_packages({name or kind: kind})
    ranker_type = ranker_class(kind)
    section = section or ranker_type.section_type(kind=kind)
    if launch is None:
        ranker = ranker_type(section, name)
        ranker.fit(table, runtime, champion=champion, members=members)
        ranker.save(out_model)
    else:
        job = DistributedJob.plan(kind, section, table, runtime, champion, launch.world, name)
        launch.run(job.model_copy(update={"wait_seconds": launch.wait_seconds}), out_model)
        ranker = load_ranker(out_model)
        if section.calibration != "none":
            ranker.calibrate(table)
            ranker.save(out_model)
    score(ranker, table, out_scores)
    return ranker.record
