"""Lists of implicit's ALS and BPR and of RecTools' EASE: what `benchmarks.candidates` compares sources with.

Runs in an environment of its own (`make bench NAME=peers OPTIONS=recommend`).

    python recommenders.py TRAIN.npz LISTS.npz

TRAIN.npz holds `user` and `item`, a positive row each, numbered from 0, `of_log`, which rows are of the log and not of
histories before it, `asked`, the users that get a list, `items`, the number of items, and `models`: JSON, by name a
`kind` (`als`, `bpr`, `ease`), whether it learns from `histories`, and its settings. LISTS.npz holds an array (asked, at
most 500) of items for every model, best first; -1 where a user has no row to learn from. What a user took is left out.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
from implicit.als import AlternatingLeastSquares
from implicit.bpr import BayesianPersonalizedRanking
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import EASEModel
from scipy import sparse
from threadpoolctl import threadpool_limits

MOST = 500


def main() -> None:
    """Train and ask every model."""
    given = np.load(sys.argv[1])
    models: dict[str, dict[str, Any]] = json.loads(str(given["models"]))
    shape = int(max(given["user"].max(), given["asked"].max())) + 1, int(given["items"])
    lists = {}
    for name, settings in models.items():
        began = time.process_time()
        rows = np.ones(len(given["user"]), bool) if settings.pop("histories") else given["of_log"]
        at = given["user"][rows], given["item"][rows]
        taken = sparse.coo_matrix((np.ones(rows.sum(), np.float32), at), shape=shape).tocsr()
        known = np.diff(taken.indptr)[given["asked"]] > 0
        found = np.full((len(given["asked"]), MOST), -1, np.int32)
        found[known] = asked_of(settings, taken, given["asked"][known])
        lists[name] = found
        print(f"{name}: {time.process_time() - began:.0f} s of processor time", flush=True)
    np.savez_compressed(sys.argv[2], **lists)


def asked_of(settings: dict[str, Any], taken: sparse.csr_matrix, users: np.ndarray) -> np.ndarray:
    """Return the best items for some users by one model."""
    own = dict(settings)
    kind = own.pop("kind")
    if kind == "ease":
        return _by_ease(EASEModel(**own), taken, users)
    model = {"als": AlternatingLeastSquares, "bpr": BayesianPersonalizedRanking}[kind](random_state=1, **own)
    with threadpool_limits(1, "blas"):  # implicit has threads of its own
        model.fit(taken, show_progress=False)
    found, _ = model.recommend(users, taken[users], N=MOST, filter_already_liked_items=True)
    return np.asarray(found, np.int32)


def _by_ease(model: EASEModel, taken: sparse.csr_matrix, users: np.ndarray) -> np.ndarray:
    rows = taken.tocoo()
    frame = pd.DataFrame({Columns.User: rows.row, Columns.Item: rows.col, Columns.Weight: 1.0})
    frame[Columns.Datetime] = pd.Timestamp("2022-05-01")
    dataset = Dataset.construct(frame)
    model.fit(dataset)
    given = model.recommend(users, dataset, k=MOST, filter_viewed=True)
    lines = pd.Series(np.arange(len(users)), index=users)
    found = np.full((len(users), MOST), -1, np.int32)
    found[lines[given[Columns.User]].to_numpy(), given[Columns.Rank].to_numpy() - 1] = given[Columns.Item]
    return found


if __name__ == "__main__":
    main()
