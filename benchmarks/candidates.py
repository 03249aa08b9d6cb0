"""How much of what users take next the sources find, `make bench-candidates DATA=path/to/kuairand`.

The same days, users and metrics for all: every source is fitted on the days before the test days of the shipped spec
`kuairand`, and asked once per user of the test days. Recent popularity is the peer to beat; differences are paired by
user.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import polars as pl

from benchmarks.bench import Line, record, show
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.intervals import bootstrap_mean
from shortlist.evaluation.retrieval import EVALUATION, PER_USER
from shortlist.retrieval.step import build_retrieval
from shortlist.spec.load import load_spec
from shortlist.spec.retrieval import Retrieval

ROOT: Final = Path(__file__).parents[1]
PEER: Final = "popular"
SECTION: Final[dict[str, Any]] = {
    "candidates": 500,
    "sources": {
        "popular": {"kind": "popular", "window_days": 3},
        "popular_by_tab": {"kind": "popular", "window_days": 3, "keys": ["tab"]},
        "co_visitation": {"kind": "co_visitation", "nearby": 10},
        "two_tower": {"kind": "two_tower", "item_columns": ["author_id", "tag", "music_id"]},
        "sequence": {"kind": "sequence", "item_columns": ["author_id", "tag", "music_id"], "epochs": 5},
    },
}


def main() -> None:
    """Fit, evaluate, print and record."""
    spec = load_spec(ROOT / "pipelines/specs/kuairand.yaml")
    section = Retrieval.model_validate(SECTION)
    section.check(spec.data)
    with TemporaryDirectory() as scratch:
        raw, valid, quarantine = (Path(scratch) / name for name in ("raw", "valid", "quarantine"))
        ingest(spec.data, Path(sys.argv[1]), raw, spec.runtime)
        validate(spec.data, raw, valid, quarantine, spec.runtime, datetime.now(UTC))
        build_retrieval(section, spec.data, valid, Path(scratch) / "out", spec.runtime.seed)
        per_user = pl.read_parquet(Path(scratch) / "out" / EVALUATION / PER_USER)
    lines = []
    peer = per_user.filter(pl.col("list") == PEER)
    for name in per_user["list"].unique(maintain_order=True):
        rows = per_user.filter(pl.col("list") == name)
        for metric in ("recall", "ndcg_at_10"):
            ours, theirs = rows[metric].to_numpy(), peer[metric].to_numpy()
            gap = bootstrap_mean(ours - theirs, 0.95, 500, 1)
            text = "" if name == PEER else f"{PEER}: {gap.value:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})"
            ratio = None if name == PEER else float(ours.mean() / theirs.mean())
            work = "sequences" if name == "sequence" else "candidates"
            lines.append(Line(work, f"kuairand, {name}, {metric}", float(ours.mean()), "", text, ratio))
    show(f"Candidates of {len(peer)} users", lines)
    record(lines)


if __name__ == "__main__":
    main()
