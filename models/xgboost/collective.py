"""XGBoost's communication between processes that grow the same trees, each from its share of the rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import xgboost as xgb
from xgboost.tracker import RabitTracker

from shortlist.ranking.process_group import current_group


@contextmanager
def xgboost_collective() -> Iterator[None]:
    """Let XGBoost exchange histograms and sketches with the other processes, where there are any.

    Every process then grows the same trees. Bins are cut at the quantiles of all processes' merged sketches; where a
    feature has more values than a sketch holds, they differ from one process's cuts in the last few rows of a bin.
    """
    group = current_group()
    if group is None:
        yield
        return
    tracker = None
    if group.rank == 0:
        tracker = RabitTracker(n_workers=group.world, host_ip=os.environ["MASTER_ADDR"], sortby="task")
        tracker.start()
    arguments = json.loads(group.broadcast_from_first(json.dumps(tracker.worker_args() if tracker else {})))
    rank_arguments = {"dmlc_task_id": f"{group.rank:06d}", "dmlc_timeout": group.wait_seconds}
    with xgb.collective.CommunicatorContext(**arguments, **rank_arguments):
        yield
    if tracker is not None:
        tracker.wait_for(group.wait_seconds)


def all_gather_rows(rows: np.ndarray) -> np.ndarray:
    """Return the rows of all processes, by rank; where there is one process, its rows."""
    group = current_group()
    return rows if group is None else np.concatenate(group.gather(rows))
