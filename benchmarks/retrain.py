"""A day is appended to the demo's log: from scratch against going on from what there is.

Before anything is timed: features fitted onto earlier ones are byte for byte those fitted from scratch, and every model
that went on is within `TOLERANCE` of the one from scratch, by AUC on the test day, which none of them has seen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import polars as pl

from benchmarks.bench import Line, console, record, show
from benchmarks.targets import exit_code
from models.dlrm.section import DLRMModel
from models.xgboost.section import XGBoostModel
from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.ranking.record import read_record
from shortlist.ranking.saved_models import ranker_class
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.tables import DayTable
from shortlist.training.continued_training import PreviousModel
from shortlist.training.export import pack
from shortlist.training.train import train

ROWS, DAYS, ROUNDS = 200_000, 15, 3
TOLERANCE = 0.005


class TrainingVariant(NamedTuple):
    """One declared way of training again."""

    kind: str
    changes: dict[str, Any]


VARIANTS = {
    "refit": TrainingVariant("xgboost", {"retrain": "refit"}),
    "continue": TrainingVariant("xgboost", {"retrain": "continue", "retrain_rounds": 50, "retrain_days": 3}),
    "warm": TrainingVariant("dlrm", {"retrain": "warm", "retrain_epochs": 1, "retrain_days": 3}),
}


class World:
    """The demo's log a day before its end (old) and at its end (new), and what is made of both."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec = spec
        self.folder = folder
        self.declared = DeclaredSections(spec.data, spec.features, spec.gates)

    def read(self) -> None:
        """Generate the log, and validate it with and without its last day."""
        source = self.spec.data.source
        assert source.kind == "generated"
        last = datetime.combine(source.start + timedelta(days=DAYS - 1), datetime.min.time(), UTC)
        ingest(self.spec.data, Path(), self.folder / "raw", self.spec.runtime)
        for age, until in (("old", last), ("new", None)):
            paths = self.folder / "raw", self.folder / f"log-{age}", self.folder / "quarantine"
            validate(self.spec.data, *paths, self.spec.runtime, last, until)

    def fit(self, age: str, name: str, previous: str = "") -> float:
        """Fit features; return the seconds."""
        log, out = self.folder / f"log-{age}", self.folder / name
        return _seconds(
            lambda: fit(*self.declared, self.spec.runtime, log, out, self.folder / previous if previous else None)
        )

    def table(self, age: str) -> DayTable:
        """Build the feature table."""
        paths = self.folder / f"log-{age}", self.folder / f"fitted-{age}", self.folder / f"table-{age}"
        return build_table(*self.declared, self.spec.runtime, *paths)

    def section(self, kind: str, **changes: Any) -> XGBoostModel | DLRMModel:
        """Return a model's section with changes."""
        section: Any = self.spec.models[kind]
        return type(section).model_validate({**section.model_dump(), **changes})

    def train(self, kind: str, age: str, out: str, **changes: Any) -> float:
        """Train from scratch, or go on from the old model as `changes` declare; return the seconds."""
        section, champion = self.section(kind, **changes), None
        table = DayTable.open(self.folder / f"table-{age}", Files.TABLE)
        fitted = self.folder / f"fitted-{age}"
        if changes:
            champion = self.folder / f"{kind}-old"
            table = PreviousModel("", "", champion, read_record(champion)).days_left_to_train(
                section, ranker_class(kind), table, fitted
            )
        outputs = self.folder / out, self.folder / f"{out}-scores"
        seconds = _seconds(lambda: train(kind, section, table, self.spec.runtime, *outputs, champion=champion))
        pack(outputs[0], fitted)
        return seconds

    def auc(self, out: str) -> float:
        """Return the AUC on the test day."""
        scores = pl.read_parquet(self.folder / f"{out}-scores" / Files.SCORES).filter(pl.col("split") == "test")
        return auc(scores["label"].to_numpy().astype(float), scores["score"].to_numpy().astype(float))


class Comparison(NamedTuple):
    """One step done both ways."""

    name: str
    scratch: float
    """Seconds, a median."""
    scratch_auc: float
    """Likewise."""
    auc_scratch: float | None = None
    auc: float | None = None

    def lines(self) -> list[Line]:
        """Return it as results: the time, and for a model its AUC."""
        peer = f"from scratch: {self.scratch:.2f} s"
        time = Line(
            "retrain", self.name, round(self.scratch_auc, 3), "s", peer, round(self.scratch_auc / self.scratch, 3)
        )
        if self.auc is None or self.auc_scratch is None:
            return [time]
        peer, ratio = f"from scratch: {self.auc_scratch:.4f}", self.auc / self.auc_scratch
        return [time, Line("retrain", f"AUC of {self.name}", round(self.auc, 5), "AUC", peer, round(ratio, 5))]


def compare(world: World, note: Callable[[str], None]) -> list[Comparison]:
    """Do every step both ways; the first time says whether they agree, and warms up what all later ones use."""
    note("reading the log, making the old features and models")
    world.read()
    world.fit("old", "fitted-old")
    world.table("old")
    for kind in ("xgboost", "dlrm"):
        world.train(kind, "old", f"{kind}-old")
    fits = [_fits(world, note, number) for number in range(ROUNDS)]
    whole, onto = (median(seconds) for seconds in zip(*fits, strict=True))
    world.table("new")
    seconds = _trained(world, note)
    compared = [Comparison("features", whole, onto)]
    for name, variant in VARIANTS.items():
        scratch = f"{variant.kind}-scratch"
        aucs = world.auc(scratch), world.auc(name)
        assert abs(aucs[0] - aucs[1]) <= TOLERANCE, f"{name}: AUC {aucs[1]:.4f}, from scratch {aucs[0]:.4f}"
        compared.append(Comparison(name, median(seconds[scratch]), median(seconds[name]), *aucs))
    return compared


def _fits(world: World, note: Callable[[str], None], number: int) -> tuple[float, float]:
    note(f"features, round {number + 1}")
    seconds = world.fit("new", "fitted-new"), world.fit("new", "fitted-onto", "fitted-old")
    digests = {folder_digest(world.folder / name) for name in ("fitted-new", "fitted-onto")}
    assert len(digests) == 1, "features fitted onto earlier ones differ from those fitted from scratch"
    return seconds


def _trained(world: World, note: Callable[[str], None]) -> dict[str, list[float]]:
    """Train every model in every way, round by round: what else the machine does then hits all of them alike."""
    work: dict[str, tuple[str, dict[str, Any]]] = {f"{kind}-scratch": (kind, {}) for kind in ("xgboost", "dlrm")}
    work |= {name: (variant.kind, variant.changes) for name, variant in VARIANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(ROUNDS):
        for name, (kind, changes) in work.items():
            note(f"{name}, round {number + 1}")
            seconds[name].append(world.train(kind, "new", name, **changes))
    return seconds


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def demo() -> Spec:
    """Return the demo with the benchmark's size."""
    spec = load_spec(Path(__file__).parents[1] / "pipelines" / "specs" / "demo.yaml")
    source = spec.data.source.model_copy(update={"rows": ROWS, "days": DAYS})
    return spec.model_copy(update={"data": spec.data.model_copy(update={"source": source})})


def main() -> int:
    """Print the table and write the results; exit code 1 when a way takes more of the time than it may."""
    with TemporaryDirectory() as scratch, console().status("") as status:
        compared = compare(World(demo(), Path(scratch)), status.update)
    lines = [line for comparison in compared for line in comparison.lines()]
    show(f"One day appended to {DAYS - 1}, {ROWS:,} rows, medians of {ROUNDS}", lines)
    record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
