"""Content of the page of a run: plain data and the folders that steps wrote."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from shortlist.evaluation.metrics.records import Measures, Record
from shortlist.report.summary import EngineNumbers, RunFailure


class PageStep(Record):
    """One step of the run."""

    name: str
    title: str = ""
    """Title of the step; empty: its name is shown."""
    seconds: float | None = None
    cached: bool = False
    peak_mib: float | None = None
    rows: int | None = None
    rows_per_s: float | None = None
    engine: EngineNumbers | None = None


class RunPage(Record):
    """The page of a run, finished or stopped; parts that it did not reach are None or empty."""

    spec: str
    """Name of the spec."""
    started: str = ""
    """ISO 8601 moment."""
    seconds: float | None = None
    """Time of the whole run."""
    steps: tuple[PageStep, ...] = ()
    notice: str = ""
    """Leaks that the spec allows, and candidates that are not significantly better than a baseline, as sentences."""
    failure: RunFailure | None = None
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
    """Measures of models that are not in the verdict, such as further baselines; see `measure`."""
    models: dict[str, Path] = Field(default_factory=dict)
    """Model folders by model."""
    version: str = ""
    """Registered version of the blessed model."""
    mlflow_runs: dict[str, str] = Field(default_factory=dict)
    """MLflow run id by model."""
    lineage: dict[str, str] = Field(default_factory=dict)
    """Inputs of the run by name, such as the digests of spec, data and code."""
