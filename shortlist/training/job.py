"""What several processes are told to train together, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

from models.inputs import MEAN_WEIGHT, chosen, days_learnt, mean_weight
from models.ranker import IncompatibleModelError
from shortlist.contracts import ShortlistError
from shortlist.spec.base import Section
from shortlist.spec.cluster import Workers
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable, share_of

FILE: Final = "job.json"
MODEL: Final = "model"


class Failure(BaseModel):
    """Why a process stopped for the user's mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    message: str
    misfit: bool
    """Whether the model cannot start from the earlier one; from scratch it can."""

    @classmethod
    def of(cls, error: ShortlistError) -> Self:
        """Return what to tell of an error."""
        return cls(message=str(error), misfit=isinstance(error, IncompatibleModelError))

    def write(self, folder: Path, rank: int) -> None:
        """Write it beside the job."""
        write_json(folder / f"failed-{rank}.json", self.model_dump())

    def error(self) -> ShortlistError:
        """Return the error again."""
        return IncompatibleModelError(self.message) if self.misfit else ShortlistError(self.message)


def first_failure(folder: Path) -> Failure | None:
    """Return what the first process wrote that stopped for the user's mistake; the others followed it."""
    files = sorted(folder.glob("failed-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return Failure.model_validate(read_json(files[0])) if files else None


class Job(BaseModel):
    """One training; `job.json` in a folder of its own, beside which rank 0 leaves the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """As the registry names it."""
    name: str = ""
    """What the user calls the model; empty: as its kind."""
    section: dict[str, Any]
    """The model's section of the spec."""
    runtime: Runtime
    """Engine, memory budget and seed."""
    table: str
    """Folder of the feature table."""
    index: dict[str, Any]
    """Its index, with the days that are to be learnt."""
    shares: tuple[tuple[str, ...], ...]
    """Files of every process, relative to the table's folder."""
    champion: str = ""
    """Folder of the model to start from; empty: none."""
    wait_seconds: int = Workers().wait_seconds
    """How long a process waits for the others."""

    @classmethod
    def of(
        cls, kind: str, section: Section, table: DayTable, runtime: Runtime, champion: Path | None, world: int,
        name: str = "",
    ) -> Self:  # fmt: skip
        """Return the job of training a declared model by so many processes.

        Raises:
            ShortlistError: The training or validation days have fewer files than there are processes.
        """
        patterns = getattr(section, "features", ())
        split = days_learnt(table, chosen(table, patterns) if patterns else ())
        own: list[list[str]] = [[] for _ in range(world)]
        for days in (split.train, split.validation):
            for rank in range(world):
                own[rank] += [str(path.relative_to(table.folder)) for path in share_of(table, rank, world, set(days))]
        index = table.model_dump(mode="json")
        index["notes"][MEAN_WEIGHT] = mean_weight(table, split)
        return cls(
            kind=kind, name=name, section=section.model_dump(mode="json"), runtime=runtime, table=str(table.folder),
            index=index, shares=tuple(map(tuple, own)),
            champion=str(champion) if champion else "",
        )  # fmt: skip

    @property
    def opened(self) -> DayTable:
        """The feature table."""
        return DayTable(folder=Path(self.table), **self.index)

    def files(self, rank: int) -> frozenset[Path]:
        """Return the files that a process reads."""
        return frozenset(Path(self.table) / name for name in self.shares[rank])

    def write(self, folder: Path) -> Path:
        """Write `job.json` into a folder; return its path."""
        write_json(folder / FILE, json.loads(self.model_dump_json()))
        return folder / FILE

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the job in a file."""
        return cls.model_validate(read_json(path))
