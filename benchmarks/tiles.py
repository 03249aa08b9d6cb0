"""What finer tiles bring and cost on a real log: `tiles.py DATA [KIND ...]`, KuaiRand's files and kinds of models.

Every way of counting fits, builds the table and trains in a process of its own, so that its memory is its own. Measured
on the spec's test days: AUC, log loss, and GAUC (the mean AUC within a user, weighted by the user's impressions, over
users with clicks and non-clicks).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import polars as pl
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from shortlist.contracts import Columns, Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.measure import scores_file
from shortlist.evaluation.metrics import auc, log_loss
from shortlist.evaluation.scores import read_scores
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.training.train import train

WAYS: Final = (("1d", "0s"), ("1h", "0s"), ("1h", "1h"), ("10m", "0s"))
"""Tile and outcome delay."""
RESULTS: Final = Path(__file__).parent / "results" / "tiles.json"


def spec_of(tile: str, delay: str) -> Spec:
    """Return the shipped declaration, counted otherwise."""
    spec = load_spec(Path(__file__).parents[1] / "pipelines" / "specs" / "kuairand.yaml")
    data, features = spec.data.model_dump(mode="json"), spec.features.model_dump(mode="json")
    changed = {"data": data | {"outcome_delay": delay}, "features": features | {"tile": tile}}
    return Spec.model_validate(spec.model_dump(mode="json") | changed)


def grouped_auc(labels: pl.Series, scores: pl.Series, users: pl.Series) -> float:
    """Return the mean AUC within a user, weighted by rows; a user with one class counts nowhere."""
    rows = pl.DataFrame({"label": labels.cast(pl.Int64), "score": scores, "user": users})
    ranked = rows.with_columns(pl.col("score").rank().over("user").alias("rank"))
    clicks, others = pl.col("label").sum(), pl.len() - pl.col("label").sum()
    above = (pl.col("rank") * pl.col("label")).sum() - clicks * (clicks + 1) / 2
    by_user = ranked.group_by("user").agg(pl.len().alias("rows"), (above / (clicks * others)).alias("auc"))
    known = by_user.filter(pl.col("auc").is_finite())
    return float((known["auc"] * known["rows"]).sum() / known["rows"].sum())


def measured(tile: str, delay: str, kinds: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Return what one way of counting brings and costs, in a process of its own."""
    spec, own = spec_of(tile, delay), folder / f"{tile}-{delay}"
    sections = spec.data, spec.features, spec.gates
    log = folder / "log"
    began = time.process_time()
    fit(*sections, spec.runtime, log, own / "fitted")
    fitted = time.process_time()
    table = build_table(*sections, spec.runtime, log, own / "fitted", own / "table")
    built = time.process_time()
    views = list((own / "fitted" / "views").glob("by_*.parquet"))
    line: dict[str, Any] = {
        "tile": tile,
        "outcome_delay": delay,
        "fit_cpu_s": round(fitted - began, 1),
        "table_cpu_s": round(built - fitted, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "view_rows": sum(pq.read_metadata(path).num_rows for path in views),
        "statistics_mib": round(sum(f.stat().st_size for f in (own / "fitted").rglob("*.parquet")) / 2**20, 1),
        "models": {},
    }
    for kind in kinds:
        train(kind, spec.models[kind], table, spec.runtime, own / kind, own / f"scores-{kind}")
        scored = read_scores(scores_file(own / f"scores-{kind}"), "test")
        labels, scores = scored.labels, scored.scores
        users = scored.frame[Columns.USER]
        line["models"][kind] = {
            "rows": scored.rows,
            "auc": round(auc(labels, scores), 4),
            "log_loss": round(log_loss(labels, scores), 4),
            "gauc": round(grouped_auc(pl.Series(labels), pl.Series(scores), users), 4),
        }
    return line


def main() -> None:
    """Measure all ways, print them and write the results."""
    data, kinds = Path(sys.argv[1]), tuple(sys.argv[2:]) or ("xgboost", "dlrm")
    with TemporaryDirectory() as scratch:
        folder, spec = Path(scratch), spec_of("1d", "0s")
        ingest(spec.data, data, folder / "raw", spec.runtime)
        validate(spec.data, folder / "raw", folder / "log", folder / "bad", spec.runtime, datetime.now(UTC), None)
        rows = DayTable.open(folder / "log", Files.LOG).rows
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            lines = list(pool.map(measured, *zip(*((*way, kinds, folder) for way in WAYS), strict=True)))
    table = Table("tile", "delay", "fit s", "table s", "peak MiB", "view rows", "model", "AUC", "log loss", "GAUC")
    for line in lines:
        for kind, found in line["models"].items():
            costs = (f"{line[name]}" for name in ("fit_cpu_s", "table_cpu_s", "peak_mib"))
            quality = (f"{found[name]:.4f}" for name in ("auc", "log_loss", "gauc"))
            table.add_row(line["tile"], line["outcome_delay"], *costs, f"{line['view_rows']:,}", kind, *quality)
    Console().print(table)
    result = {"date": datetime.now(UTC).date().isoformat(), "log_rows": rows, "ways": lines}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
