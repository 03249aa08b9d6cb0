"""SASRec with sampled softmax of MobileTeleSystems/RecTools: what `benchmarks.sequences` compares the model with.

Runs in an environment of its own (`NAME=peers OPTIONS=sequences`), because RecTools wants numpy 1. Prints one line of
JSON per look at the validation items; the last line holds the test items' figures of the best look, and the processor
time of all training and evaluation.

    python rectools_sasrec.py SEQUENCES.txt SECONDS

SEQUENCES.txt has a line per user: `user item item ...`, oldest first.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel

BATCH = 128
"""Sessions of a step, RecTools' own default; on a CPU an epoch takes half as long as with 64."""
LENGTH = 20
"""Items that it reads: 3 % of the users have more. With 50, an epoch takes 2.5 times as long."""
LOOK_EVERY = 3
"""Epochs between two looks at the validation items."""
PATIENCE = 4
"""Looks without a better one before the training ends."""


def main() -> None:
    """Train until the validation items are found no better, then print the test items' figures."""
    path, seconds = sys.argv[1], float(sys.argv[2])
    warnings.filterwarnings("ignore")
    users = read(path)
    model = SASRecModel(
        n_blocks=2, n_heads=2, n_factors=64, dropout_rate=0.3, session_max_len=LENGTH, loss="sampled_softmax",
        n_negatives=64, lr=1e-3, batch_size=BATCH, epochs=LOOK_EVERY, deterministic=True,
        train_min_user_interactions=2,
    )  # fmt: skip
    train = dataset(users, 2)
    began, best, worse, epochs, test = time.perf_counter(), -1.0, 0, 0, {}
    while worse < PATIENCE and time.perf_counter() - began < seconds:
        model.fit_partial(train, min_epochs=LOOK_EVERY, max_epochs=LOOK_EVERY)
        epochs += LOOK_EVERY
        figures = evaluate(model, users, 1, train)
        took = {"epochs": epochs, "seconds": time.perf_counter() - began, "cpu_s": time.process_time()}
        print(json.dumps({**took, **figures}), flush=True)
        worse = 0 if figures["ndcg_at_10"] > best else worse + 1
        if not worse:
            best = figures["ndcg_at_10"]
            test = {**took, "validation": figures, **evaluate(model, users, 0, train)}
            print(json.dumps({"test": test}), flush=True)  # of use to whoever stops it
    print(json.dumps({"test": {**test, "cpu_s": time.process_time(), "ended": worse == PATIENCE}}), flush=True)


def read(path: str) -> list[list[int]]:
    """Return every user's items, oldest first."""
    return [[int(item) for item in line.split()[1:]] for line in Path(path).read_text().splitlines()]


def dataset(users: list[list[int]], held_out: int) -> Dataset:
    """Return the users' items without so many of the last ones."""
    rows = [
        (user, item, place)
        for user, items in enumerate(users)
        for place, item in enumerate(items[: len(items) - held_out])
    ]
    frame = pd.DataFrame(rows, columns=[Columns.User, Columns.Item, Columns.Datetime])
    frame[Columns.Datetime] = pd.to_datetime(frame[Columns.Datetime], unit="D")
    frame[Columns.Weight] = 1.0
    return Dataset.construct(frame)


def evaluate(model: SASRecModel, users: list[list[int]], held_out: int, train: Dataset) -> dict[str, float]:
    """Return recall and nDCG at 10 of the item that is `held_out` places from the end; `unseen`: of unseen items."""
    histories = dataset(users, held_out + 1)
    targets = pd.Series([items[len(items) - 1 - held_out] for items in users])
    figures = {}
    for kind, filtered in (("", False), ("unseen_", True)):
        recommended = model.recommend(
            users=np.arange(len(users)),
            dataset=histories,
            k=10,
            filter_viewed=filtered,
            on_unsupported_targets="ignore",
        )
        hits = recommended[recommended[Columns.Item] == recommended[Columns.User].map(targets)]
        gains = 1 / np.log2(hits[Columns.Rank].to_numpy() + 1)
        figures |= {f"{kind}ndcg_at_10": float(gains.sum() / len(users)), f"{kind}recall_at_10": len(hits) / len(users)}
    return figures


if __name__ == "__main__":
    main()
