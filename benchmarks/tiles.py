"""What finer tiles bring on a real log, group of statistics by group: `tiles.py DATA`, KuaiRand's files.

All statistics are counted by the day and by the hour. Trees then read those of one group by the hour and all others by
the day, or all by the hour; rows, settings and seeds are the same. Measured on the validation days and on the test days
of the shipped spec, whose trees are trained with fewer and longer steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.bench import Line, console, record, show
from shortlist.contracts import Columns, Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.measure import scores_file
from shortlist.evaluation.metrics import auc, log_loss
from shortlist.evaluation.ranking import gauc
from shortlist.evaluation.scores import read_scores
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.train import train

WORK: Final = "tiles"
TREES: Final = {"rounds": 300, "early_stopping_rounds": 20, "learning_rate": 0.15, "refit": False}
SEEDS: Final = (1, 2)
COARSE: Final = "all by the day"
GROUPS: Final[Mapping[str, Callable[[frozenset[str]], bool]]] = {
    "users": lambda key: "user_id" in key,
    "videos": lambda key: "video_id" in key,
    "authors, music, tags": lambda key: bool(key & {"author_id", "music_id", "tag"}) and "user_id" not in key,
}
"""By the columns that a statistic is counted by; what is in no group is counted by contexts and groups of users."""


def spec_of(tile: str) -> Spec:
    """Return the shipped declaration, counted by such tiles."""
    spec = load_spec(Path(__file__).parents[1] / "pipelines" / "specs" / "kuairand.yaml")
    features = spec.features.model_validate(spec.features.model_dump(mode="json") | {"tile": tile})
    return spec.model_copy(update={"features": features})


def groups_of(spec: Spec) -> dict[str, tuple[str, ...]]:
    """Return which statistics each group has, by the names of the features; the last group has the rest."""
    found: dict[str, list[str]] = {name: [] for name in (*GROUPS, "contexts")}
    for feature in spec.features.columns:
        if feature.kind not in {"target", "count", "time_since"}:
            continue
        declared = feature.model_dump()["key"]
        key = frozenset([declared] if isinstance(declared, str) else declared)
        group = next((name for name, belongs in GROUPS.items() if belongs(key)), "contexts")
        found[group] += feature.outputs
    return {name: tuple(names) for name, names in found.items()}


def mixed(coarse: DayTable, fine: DayTable, names: tuple[str, ...], folder: Path) -> DayTable:
    """Write a feature table that has some columns by the hour, and all others by the day."""
    writer = DayTableWriter(folder, Files.TABLE, 250_000)
    for part in coarse.days:
        rows, other = (table.scan({part.day}).collect() for table in (coarse, fine))
        there = [name for name in names if name in rows.columns]
        taken = other.select(Columns.IMPRESSION, *there)
        joined = rows.drop(there).join(taken, Columns.IMPRESSION, "left", maintain_order="left", validate="1:1")
        writer.append(joined.select(rows.columns))
    return writer.close(coarse.notes)


def measured(spec: Spec, table: DayTable, folder: Path) -> dict[str, float]:
    """Return AUC, log loss and GAUC of trees on a table, in the mean of the seeds."""
    section = spec.models["xgboost"].model_copy(update=TREES)
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        own, runtime = folder / f"{seed}", spec.runtime.model_copy(update={"seed": seed})
        train("xgboost", section, table, runtime, own / "model", own / "scores")
        for split in ("validation", "test"):
            rows = read_scores(scores_file(own / "scores"), split)  # type: ignore[arg-type] # one of two
            assert rows.users is not None
            values = {
                "AUC": auc(rows.labels, rows.scores), "log loss": log_loss(rows.labels, rows.scores),
                "GAUC": gauc(rows.labels, rows.scores, rows.users) or 0.0,
            }  # fmt: skip
            for name, value in values.items():
                found.setdefault(f"{split} {name}", []).append(value)
    return {name: round(mean(values), 5) for name, values in found.items()}


def main() -> int:
    """Measure all groups, print them and write the results."""
    if len(sys.argv) != 2:
        print("Say where the KuaiRand files are: benchmarks/tiles.py DATA")
        return 2
    lines: list[Line] = []
    with TemporaryDirectory() as scratch, console().status("reading the log") as status:
        folder, spec = Path(scratch), spec_of("1d")
        ingest(spec.data, Path(sys.argv[1]), folder / "raw", spec.runtime)
        validate(spec.data, folder / "raw", folder / "log", folder / "bad", spec.runtime, datetime.now(UTC), None)
        tables = {}
        for tile in ("1d", "1h"):
            status.update(f"features by {tile}")
            began, counted = time.process_time(), spec_of(tile)
            sections = counted.data, counted.features, counted.gates, counted.runtime, folder / "log"
            fit(*sections, folder / f"fitted-{tile}")
            tables[tile] = build_table(*sections, folder / f"fitted-{tile}", folder / f"table-{tile}")
            lines.append(Line(WORK, f"fit and table by {tile}", round(time.process_time() - began, 1), "processor s"))
        groups = groups_of(spec)
        ways = {COARSE: ()} | groups | {"all by the hour": tuple(name for names in groups.values() for name in names)}
        usual: dict[str, float] = {}
        for number, (way, names) in enumerate(ways.items()):
            status.update(way)
            own = folder / f"way-{number}"
            table = mixed(tables["1d"], tables["1h"], names, own / "table") if names else tables["1d"]
            title = f"{way} by the hour" if way in groups else way
            found = measured(spec, table, own)
            usual = usual or found
            lines += [
                Line(WORK, f"{title}, {name}", value, name, COARSE, round(value / usual[name], 4))
                for name, value in found.items()
            ]
    show("What tiles of an hour bring, group of statistics by group", lines)
    record(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
