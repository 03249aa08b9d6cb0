"""The job file of a distributed training, and the failures of its workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError
from shortlist.pods.failure import JobFailure
from shortlist.ranking.inputs import features_matching, learning_split
from shortlist.ranking.row_weighting import ROW_WEIGHTING, row_weighting
from shortlist.spec.base import Section
from shortlist.spec.cluster import Workers
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable, files_of_worker

FILE: Final = "job.json"
MODEL: Final = "model"


def write_failure(error: ShortlistError, folder: Path, rank: int) -> None:
    """Write the error of a process beside the job."""
    write_json(folder / f"failed-{rank}.json", JobFailure.from_error(error).model_dump())


def first_failure(folder: Path) -> JobFailure | None:
    """Return the failure that was written first; the other processes stopped because of it."""
    files = sorted(folder.glob("failed-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return JobFailure.model_validate(read_json(files[0])) if files else None


class DistributedJob(BaseModel):
    """A distributed training; `job.json` in a folder of its own, into which rank 0 writes the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """Kind of the model."""
    name: str = ""
    """Key of the model in the spec; empty: its kind."""
    section: dict[str, Any]
    """The model's section of the spec."""
    runtime: Runtime
    """Engine, memory budget and seed."""
    table: str
    """Folder of the feature table."""
    index: dict[str, Any]
    """Index of the table, with the days that are to be learnt."""
    shares: tuple[tuple[str, ...], ...]
    """Files of every process, relative to the table's folder."""
    champion: str = ""
    """Folder of the model to start from; empty: none."""
    wait_seconds: int = Workers().wait_seconds
    """Timeout of one exchange between processes."""

    @classmethod
    def plan(
        cls, kind: str, section: Section, table: DayTable, runtime: Runtime, champion: Path | None, world: int,
        name: str = "",
    ) -> Self:  # fmt: skip
        """Return the job of training a declared model by `world` processes.

        Raises:
            ShortlistError: The training or validation days have fewer files than there are processes.
        """
        patterns = getattr(section, "features", ())
        split = learning_split(table, features_matching(table, patterns) if patterns else ())
        files_by_rank: list[list[str]] = [[] for _ in range(world)]
        for days in (split.train, split.validation):
            for rank in range(world):
                files_by_rank[rank] += [
                    str(path.relative_to(table.folder)) for path in files_of_worker(table, rank, world, set(days))
                ]
        index = table.model_dump(mode="json")
        weighting = row_weighting(table, split.train, split.validation, getattr(section, "weights", None))
        index["notes"][ROW_WEIGHTING] = weighting and weighting.model_dump(mode="json")
        return cls(
            kind=kind, name=name, section=section.model_dump(mode="json"), runtime=runtime, table=str(table.folder),
            index=index, shares=tuple(map(tuple, files_by_rank)),
            champion=str(champion) if champion else "",
        )  # fmt: skip

    @property
    def day_table(self) -> DayTable:
        """The feature table."""
        return DayTable(folder=Path(self.table), **self.index)

    def files(self, rank: int) -> frozenset[Path]:
        """Return the files of the table that a process reads."""
        return frozenset(Path(self.table) / name for name in self.shares[rank])

    def write(self, folder: Path) -> Path:
        """Write `job.json` into a folder; return its path."""
        write_json(folder / FILE, json.loads(self.model_dump_json()))
        return folder / FILE

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the job in a file."""
        return cls.model_validate(read_json(path))
