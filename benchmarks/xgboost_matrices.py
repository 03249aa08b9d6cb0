"""Time and memory until XGBoost has grown its first trees, `make bench-xgboost`: ours, and the usual way by pandas.

Both begin at the feature table on disk and end with 20 trees, so that work which the usual way puts off until training
counts for it, too. Every way runs in processes of its own. It is checked first that all of them score alike.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
import xgboost as xgb
from rich.console import Console

from benchmarks.bench import Line, cost, peak_mib, record, show
from benchmarks.criteo_table import CHUNK_ROWS, write_table
from models.inputs import LearningTable, chosen
from models.matrix import float_matrix, float_names
from models.xgboost_matrices import binned_matrices
from shortlist.config.runtime import Runtime
from shortlist.contracts import Columns, Files
from shortlist.tables import DayTable

ROWS: Final = 2_000_000
TREES: Final = 20
ROUNDS: Final = 3
MAX_BIN: Final = 256
MUST_REACH: Final = 0.7
"""Times the usual way's time, and its memory."""
PARAMETERS: Final = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": MAX_BIN, "seed": 17}
IN_MEMORY_MIB: Final = 4_096
OUT_OF_CORE_MIB: Final = 64
"""Of memory budget: the rows' floats take five times as much."""


class Measured(NamedTuple):
    """What a way took, and how well its trees score."""

    wall_s: float
    cpu_s: float
    log_loss: float


def by_pandas(learning: LearningTable) -> xgb.Booster:
    """Return trees from a DMatrix of one pandas frame."""
    frame = pd.concat([frame.to_pandas() for frame in learning.frames("train")], ignore_index=True)
    labels = frame.pop(Columns.LABEL)
    return xgb.train(PARAMETERS, xgb.DMatrix(frame, labels), TREES)


def ours(learning: LearningTable, budget_mib: int = IN_MEMORY_MIB) -> xgb.Booster:
    """Return trees from the matrix that our ranker learns from."""
    with binned_matrices(learning, Runtime(engine="cpu", memory_budget_mib=budget_mib), MAX_BIN) as matrix:
        return xgb.train(PARAMETERS, matrix(("train",), None), TREES)


def out_of_core(learning: LearningTable) -> xgb.Booster:
    """Return trees from a matrix whose bins stay on disk."""
    return ours(learning, OUT_OF_CORE_MIB)


WAYS: Final[dict[str, Callable[[LearningTable], xgb.Booster]]] = {
    "DMatrix from pandas": by_pandas,
    "ours": ours,
    "ours, out of core": out_of_core,
}


def opened(folder: str) -> LearningTable:
    """Return the table."""
    table = DayTable.open(Path(folder), Files.TABLE)
    return LearningTable(table, chosen(table, ("*",)))


def grown(folder: str, way: str) -> None:
    """Grow the trees; what a process of its own is measured on."""
    WAYS[way](opened(folder))


def measured(folder: str, way: str) -> Measured:
    """Grow the trees, and score the validation day."""
    learning, kept = opened(folder), []
    taken = cost(lambda: kept.append(WAYS[way](learning)))
    frame = learning.read(learning.paths("validation")[0])
    rows, labels = float_matrix(frame, learning.features), frame[Columns.LABEL].to_numpy()
    assert kept[0].num_features() == len(float_names(learning.features))
    scores = kept[0].inplace_predict(rows, validate_features=False)
    return Measured(*taken, float(-np.log(np.where(labels == 1, scores, 1 - scores)).mean()))


def in_turn(folder: str) -> dict[str, list[Measured]]:
    """Run every way in fresh processes, A B C A B C."""
    found: dict[str, list[Measured]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[way].append(pool.apply(measured, (folder, way)))
    return found


def lines_of(found: dict[str, list[Measured]], peaks: dict[str, float]) -> list[Line]:
    """Return a line of time and one of memory for every way."""
    peer = "DMatrix from pandas"
    seconds = {way: median(one.wall_s for one in runs) for way, runs in found.items()}
    return [
        Line("xgboost", f"{way}, {what}", round(figures[way], 2), unit, peer, round(figures[way] / figures[peer], 3))
        for what, unit, figures in (("time", "s", seconds), ("peak memory", "MiB", peaks))
        for way in WAYS
    ]


def main() -> int:
    """Print the table and write the results; exit code 1 when ours takes more than it may."""
    with TemporaryDirectory() as scratch, Console().status("writing the table") as status:
        folder = str(Path(scratch) / "table")
        write_table(Path(folder), ROWS, CHUNK_ROWS)
        status.update("growing trees")
        found = in_turn(folder)
        losses = {way: runs[0].log_loss for way, runs in found.items()}
        assert max(losses.values()) - min(losses.values()) < 1e-4, f"the ways do not score alike: {losses}"
        status.update("memory")
        peaks = {way: peak_mib(grown, folder, way) for way in WAYS}
    lines = lines_of(found, peaks)
    show(f"XGBoost, {ROWS:,} rows of 39 features, from the table to {TREES} trees", lines)
    record(lines)
    within = all((line.ratio or 0) <= MUST_REACH for line in lines if line.name in ("ours, time", "ours, peak memory"))
    smaller = peaks["ours, out of core"] < peaks["ours"]
    return int(not (within and smaller))


if __name__ == "__main__":
    sys.exit(main())
