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

LIST_LENGTH = 500


def main() -> None:
    """Train and ask every model."""
    arrays = np.load(sys.argv[1])
    models: dict[str, dict[str, Any]] = json.loads(str(arrays["models"]))
    shape = int(max(arrays["user"].max(), arrays["asked"].max())) + 1, int(arrays["items"])
    lists = {}
    for name, settings in models.items():
        began = time.process_time()
        rows = np.ones(len(arrays["user"]), bool) if settings.pop("histories") else arrays["of_log"]
        at = arrays["user"][rows], arrays["item"][rows]
        interactions = sparse.coo_matrix((np.ones(rows.sum(), np.float32), at), shape=shape).tocsr()
        has_history = np.diff(interactions.indptr)[arrays["asked"]] > 0
        peer_lists = np.full((len(arrays["asked"]), LIST_LENGTH), -1, np.int32)
        peer_lists[has_history] = asked_of(settings, interactions, arrays["asked"][has_history])
        lists[name] = peer_lists
        print(f"{name}: {time.process_time() - began:.0f} s of processor time", flush=True)
    np.savez_compressed(sys.argv[2], **lists)


def asked_of(settings: dict[str, Any], interactions: sparse.csr_matrix, users: np.ndarray) -> np.ndarray:
    """Return the best items for some users by one model."""
    model_settings = dict(settings)
    kind = model_settings.pop("kind")
    if kind == "ease":
        return _by_ease(EASEModel(**model_settings), interactions, users)
    model = {"als": AlternatingLeastSquares, "bpr": BayesianPersonalizedRanking}[kind](random_state=1, **model_settings)
    with threadpool_limits(1, "blas"):  # implicit has threads of its own
        model.fit(interactions, show_progress=False)
    lists, _ = model.recommend(users, interactions[users], N=LIST_LENGTH, filter_already_liked_items=True)
    return np.asarray(lists, np.int32)


def _by_ease(model: EASEModel, interactions: sparse.csr_matrix, users: np.ndarray) -> np.ndarray:
    rows = interactions.tocoo()
    frame = pd.DataFrame({Columns.User: rows.row, Columns.Item: rows.col, Columns.Weight: 1.0})
    frame[Columns.Datetime] = pd.Timestamp("2022-05-01")
    dataset = Dataset.construct(frame)
    model.fit(dataset)
    recommended = model.recommend(users, dataset, k=LIST_LENGTH, filter_viewed=True)
    lines = pd.Series(np.arange(len(users)), index=users)
    lists = np.full((len(users), LIST_LENGTH), -1, np.int32)
    lists[lines[recommended[Columns.User]].to_numpy(), recommended[Columns.Rank].to_numpy() - 1] = recommended[
        Columns.Item
    ]
    return lists


if __name__ == "__main__":
    main()
