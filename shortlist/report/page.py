"""What the page of a run shows: plain data and the folders that steps left."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from shortlist.evaluation.records import Measures, Record
from shortlist.report.summary import EngineNumbers, Failure


class PageStep(Record):
    """One step of the run, in the order they ran."""

    name: str
    title: str = ""
    """What it does, in a few words; its name when empty."""
    seconds: float | None = None
    cached: bool = False
    peak_mib: float | None = None
    rows: int | None = None
    rows_per_s: float | None = None
    engine: EngineNumbers | None = None


class RunPage(Record):
    """A run, finished or stopped; everything it did not reach is None or empty, and the page says so."""

    spec: str
    """Name of the spec."""
    started: str = ""
    """ISO 8601 moment."""
    seconds: float | None = None
    """Of the whole run."""
    steps: tuple[PageStep, ...] = ()
    notice: str = ""
    """What a reader must know first: which candidates are no better than a baseline. Empty when all are."""
    failure: Failure | None = None
    """Where and why the run stopped."""
    valid_log: Path | None = None
    """The validated log."""
    quarantine: Path | None = None
    """Folder of `quarantine.parquet`."""
    table: Path | None = None
    """The feature table."""
    verdict: Path | None = None
    """Folder of `gates.json` and `blessing.json`."""
    measures: tuple[Measures, ...] = ()
    """Models that the verdict does not hold, such as further baselines; see `measure`."""
    models: dict[str, Path] = Field(default_factory=dict)
    """Model folders by model."""
    version: str = ""
    """Registered version of the blessed model."""
    mlflow_runs: dict[str, str] = Field(default_factory=dict)
    """MLflow run id by model."""
    lineage: dict[str, str] = Field(default_factory=dict)
    """What the run was made from, such as the digests of spec, data and code."""
