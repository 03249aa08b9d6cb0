"""A search from deliberately bad settings: how near it comes to the best possible score; `make bench-tuning`.

The world is generated, so the planted probabilities say what the best possible AUC of the validation days is. A second
search begins where `shortlist tune` does, at the settings of the shipped spec, and must not end below them.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import polars as pl

from benchmarks.bench import Line, console, record, show
from benchmarks.targets import exit_code
from models.inputs import split_of
from shortlist.contracts import Columns
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.metrics import auc
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.load import load_spec
from shortlist.spec.models import ModelSection
from shortlist.spec.spec import Spec
from shortlist.spec.tune import apply_section_changes
from shortlist.storage.tables import DayTable
from shortlist.training.tuning.search import Result, Search, search

MODEL: Final = "xgboost"
MINUTES: Final = 20.0
SHIPPED_TRIALS: Final = 5
"""Of the search that begins at the shipped settings."""
SHIPPED: Final = Path(__file__).parents[1] / "pipelines" / "specs" / "demo.yaml"
WORLD: Final = ("rows=300000", "users=300", "items=150", "taste=0.2")
"""Few users and items and weak tastes: the log says enough of each, so what is missing lies in the settings."""
BAD: Final[dict[str, Any]] = {
    "learning_rate": 0.9,
    "max_depth": 12,
    "min_child_weight": 0,
    "subsample": 1.0,
    "colsample_bytree": 1.0,
    "reg_lambda": 0,
}
"""Large steps of deep trees without any penalty."""


class Found(NamedTuple):
    """AUCs on the validation days, and what the search took."""

    bad: float
    """Of the settings that the search began with."""
    best: float
    """Of the best trial."""
    shipped: float
    """Of the shipped spec's settings, the first trial of a search of its own."""
    from_shipped: float
    """Of the best trial of that search."""
    possible: float
    """Of the planted probabilities."""
    trials: int
    cpu_minutes: float
    """User and system time of all trials."""

    def lines(self) -> list[Line]:
        """Return the results: distances, so that one limit holds for every world."""
        cost = f"{self.trials} trials, {self.cpu_minutes:.1f} processor minutes"
        return [
            Line("tuning", "AUC found from bad settings", round(self.best, 5), "AUC", f"bad: {self.bad:.4f}; {cost}"),
            Line("tuning", "below the best possible", round(self.possible - self.best, 5), "AUC",
                 f"planted: {self.possible:.4f}"),
            Line("tuning", "from bad settings, below the shipped ones", round(self.shipped - self.best, 5), "AUC",
                 f"shipped: {self.shipped:.4f}"),
            Line("tuning", "from the shipped settings, above them", round(self.from_shipped - self.shipped, 5), "AUC",
                 f"shipped: {self.shipped:.4f}; {SHIPPED_TRIALS} trials"),
        ]  # fmt: skip


def measure(spec: Spec, folder: Path, minutes: float | None, trials: int | None) -> Found:
    """Search from the bad settings, and a little from the shipped ones.

    Args:
        spec: The declaration; its model is `MODEL`.
        folder: Where everything is written.
        minutes: Of the search, at most.
        trials: Likewise.
    """
    table, shipped = feature_table(spec, folder), spec.models[MODEL]
    before = _children_cpu_s()
    found = _searched(spec, apply_section_changes(shipped, BAD), table, folder / "bad-study", minutes, trials)
    cpu_minutes = (_children_cpu_s() - before) / 60
    as_shipped = _searched(spec, shipped, table, folder / "shipped-study", None, SHIPPED_TRIALS)
    return Found(
        bad=_auc(found.shipped), best=_auc(found.best), shipped=_auc(as_shipped.shipped),
        from_shipped=_auc(as_shipped.best), possible=_best_possible(table), trials=len(found.trials),
        cpu_minutes=cpu_minutes,
    )  # fmt: skip


def feature_table(spec: Spec, folder: Path) -> DayTable:
    """Generate the log and return its feature table.

    Args:
        spec: The declaration.
        folder: Where everything is written.
    """
    declared = DeclaredSections(spec.data, spec.features, spec.gates)
    raw, log, quarantine, fitted, table = (folder / name for name in ("raw", "log", "refused", "fitted", "table"))
    ingest(spec.data, Path(), raw, spec.runtime)
    validate(spec.data, raw, log, quarantine, spec.runtime, datetime.now(UTC), None)
    fit(*declared, spec.runtime, log, fitted, None)
    return build_table(*declared, spec.runtime, log, fitted, table)


def world(sizes: Sequence[str] = WORLD) -> Spec:
    """Return the demo's declaration with the benchmark's world."""
    return load_spec(SHIPPED, [f"data.source.{size}" for size in sizes])


def _searched(
    spec: Spec, section: ModelSection, table: DayTable, folder: Path, minutes: float | None, trials: int | None
) -> Result:
    tune = spec.tune.model_copy(update={"metric": "auc", "minutes": minutes, "trials": trials})
    return search(Search.of(tune, MODEL, section, spec.runtime, table.folder), folder)


def _auc(trial: Any) -> float:
    assert trial is not None and trial.auc is not None, "the trial failed"
    return float(trial.auc)


def _best_possible(table: DayTable) -> float:
    paths = table.paths(set(split_of(table).validation))
    rows = pl.scan_parquet(paths, hive_partitioning=False).select(Columns.LABEL, Columns.BEST).collect()
    return auc(rows[Columns.LABEL].to_numpy().astype(float), rows[Columns.BEST].to_numpy().astype(float))


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Print the table and write the results; exit code 1 where the search ends too low."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--trials", type=int, default=None)
    options = parser.parse_args()
    with TemporaryDirectory() as scratch, console().status(f"searching for {options.minutes:g} minutes"):
        found = measure(world(), Path(scratch), options.minutes, options.trials)
    lines = found.lines()
    show(f"A search of {MODEL} from bad settings, validation days of a generated log", lines)
    record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
