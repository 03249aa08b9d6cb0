"""Metrics of lists by ranx and RecTools: what `benchmarks.list_metrics` compares ours with.

Runs in an environment of its own (`NAME=peers OPTIONS=recommend`). Reads cases and writes the libraries' answers, both
JSON.

    python list_metrics.py CASES.json ANSWERS.json

A case has `lists` (items of every query, best first), `relevant` (items of every query), `before` (items that every
earlier user took), `topic` (of every item) and `at` (places of nDCG, hit rate, novelty and diversity). An answer holds,
by library and metric, a number per query; `coverage` is one number.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ranx import Qrels, Run, evaluate
from rectools import Columns
from rectools.metrics import (
    MRR,
    NDCG,
    CatalogCoverage,
    HitRate,
    IntraListDiversity,
    MeanInvUserFreq,
    PairwiseHammingDistanceCalculator,
    Recall,
)


def main() -> None:
    """Answer every case."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    answers = {name: {"ranx": by_ranx(case), "rectools": by_rectools(case)} for name, case in cases.items()}
    versions = {name: version(name) for name in ("ranx", "rectools")}
    Path(sys.argv[2]).write_text(json.dumps({"versions": versions, "answers": answers}))


def by_ranx(case: dict[str, Any]) -> dict[str, list[float]]:
    """Return what ranx says of every query."""
    width, at = max(map(len, case["lists"])), case["at"]
    numbers = {f"q{query:07}": query for query in range(len(case["lists"]))}
    relevance = Qrels({name: {f"i{item}": 1 for item in case["relevant"][query]} for name, query in numbers.items()})
    ranked_lists = Run(
        {
            name: {f"i{item}": float(width - place) for place, item in enumerate(case["lists"][query])}
            for name, query in numbers.items()
        }
    )
    names = {"recall": f"recall@{width}", "hit_rate_at_10": f"hit_rate@{at}", "ndcg_at_10": f"ndcg@{at}",
             "reciprocal_rank": f"mrr@{width}"}  # fmt: skip
    metrics = {}
    for name, ranx_name in names.items():
        evaluate(relevance, ranked_lists, ranx_name, return_mean=False)
        metrics[name] = [float(ranked_lists.scores[ranx_name][query]) for query in numbers]
    return metrics


def by_rectools(case: dict[str, Any]) -> dict[str, Any]:
    """Return what RecTools says of every query, and of all lists together."""
    width, at = max(map(len, case["lists"])), case["at"]
    recommended = _table(case["lists"])
    recommended[Columns.Rank] = recommended.groupby(Columns.User).cumcount() + 1
    relevant, taken_items = _table(case["relevant"]), _table(case["before"])
    topic = pd.DataFrame({"topic": case["topic"]}, index=pd.RangeIndex(len(case["topic"])))
    queries = np.arange(len(case["lists"]))
    of_relevant = {
        "recall": Recall(k=width),
        "hit_rate_at_10": HitRate(k=at),
        # By default its ideal has k relevant items for everybody.
        "ndcg_at_10": NDCG(k=at, divide_by_achievable=True),
        "reciprocal_rank": MRR(k=width),
    }
    metrics = {name: metric.calc_per_user(recommended, relevant) for name, metric in of_relevant.items()}
    metrics["novelty"] = MeanInvUserFreq(k=at).calc_per_user(recommended, taken_items)
    distance = PairwiseHammingDistanceCalculator(topic)
    metrics["diversity"] = IntraListDiversity(k=at, distance_calculator=distance).calc_per_user(recommended)
    answers: dict[str, Any] = {name: values.reindex(queries).astype(float).tolist() for name, values in metrics.items()}
    catalogue = np.arange(len(case["topic"]))
    answers["coverage"] = float(CatalogCoverage(k=width, normalize=True).calc(recommended, catalogue))
    return answers


def _table(lists: list[list[int]]) -> pd.DataFrame:
    users = np.repeat(np.arange(len(lists)), [len(slate) for slate in lists])
    return pd.DataFrame({Columns.User: users, Columns.Item: list(chain.from_iterable(lists))})


if __name__ == "__main__":
    main()
