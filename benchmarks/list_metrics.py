"""Whether our metrics of lists are those of ranx and RecTools, `OPTIONS=path/to/kuairand`.

The same lists go to all three: random ones, those of the sources on a small generated log, and with `DATA` those on
KuaiRand, 500 items for each of 500 users. Printed is the largest difference of any user. The peers run in an
environment of their own (`NAME=peers OPTIONS=recommend`). `--record` writes the small cases with the peers' answers to
`tests/unit/evaluation/peer_metrics.json`, which the suite compares with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from benchmarks.bench import Line, record, show
from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.metrics.list_metrics import Relevant, coverage, list_metrics
from shortlist.slates.ordering.likeness import intra_list_diversity
from shortlist.slates.retrieval.evaluate import read_test_users
from shortlist.slates.retrieval.retriever import Retriever, fit_retrieval
from shortlist.spec.load import load_spec
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.spec import Spec
from shortlist.spec.split import split_days
from shortlist.storage.tables import DayTable

ROOT: Final = Path(__file__).parents[1]
PEER: Final = ROOT / ".venv-peers-recommend/bin/python"
RECORDED: Final = ROOT / "tests/unit/evaluation/peer_metrics.json"
AT: Final = 10
WORLD: Final = {"kind": "generated", "rows": 3_000, "users": 120, "items": 60, "days": 6, "seed": 3}
SOURCES: Final = {"together": {"kind": "co_visitation", "nearby": 10}, "popular": {"kind": "popular"}}

Case = dict[str, Any]


class MetricCase(NamedTuple):
    """How many lists, and of how many items, are taken of a log."""

    queries: int
    items: int


def main() -> None:
    """Make the cases, ask the peers, compare, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", help="folder of KuaiRand")
    parser.add_argument("--record", action="store_true", help="write the file that the suite reads")
    arguments = parser.parse_args()
    demo = load_spec(ROOT / "pipelines/specs/demo.yaml")
    world = demo.model_copy(update={"data": demo.data.model_validate({**demo.data.model_dump(), "source": WORLD})})
    cases = {"random": random_case(7), "generated log": case_of(world, None, "creator_id", MetricCase(25, 12))}
    recorded = asked_peers(cases)
    if arguments.record:
        command = "python -m benchmarks.list_metrics --record, after make bench NAME=peers OPTIONS=recommend"
        RECORDED.write_text(json.dumps({"made_by": command, "cases": cases, **recorded}, separators=(",", ":")) + "\n")
    if arguments.data:
        kuairand = load_spec(ROOT / "pipelines/specs/kuairand.yaml")
        cases["kuairand"] = case_of(kuairand, Path(arguments.data), "author_id", MetricCase(500, 500))
        recorded = asked_peers(cases)
    lines = [
        Line("metrics", f"{name}, {metric}", gap, "", f"{peer}: largest difference of any user")
        for name, case in cases.items()
        for peer, metric, gap in differences(case, recorded["answers"][name])
    ]
    show("Metrics of lists against ranx and RecTools", lines)
    record(lines)


def random_case(seed: int) -> Case:
    """Return random lists, some of them short, some without a relevant item, with relevant items beyond the catalogue.

    Args:
        seed: Of the draws.
    """
    random = np.random.default_rng(seed)
    items, queries = 40, 25

    def draw_items(least: int, maximum: int, of: int = items) -> list[int]:
        return [int(item) for item in random.permutation(of)[: random.integers(least, maximum + 1)]]

    # Of a single item there is no diversity; RecTools says 0.
    lists = [draw_items(2 if query % 3 else 14, 14) for query in range(queries)]
    relevant = [draw_items(1, 3 if query % 2 else 16, items + 5) for query in range(queries)]
    taken_items = [draw_items(1, 10) for _ in range(60)] + [list(range(items))]
    return {"lists": lists, "relevant": relevant, "before": taken_items, "at": AT,
            "topic": [int(topic) for topic in random.integers(0, 6, items)]}  # fmt: skip


def case_of(spec: Spec, source: Path | None, topic: str, settings: MetricCase) -> Case:
    """Return what co-visitation and popularity give users of a log's test days.

    Args:
        spec: The declaration.
        source: The user's files; None for a generated log.
        topic: Column of items by which two are alike.
        settings: Lists, and their items.
    """
    section = Retrieval.model_validate({"candidates": settings.items, "sources": SOURCES})
    with TemporaryDirectory() as scratch:
        raw, valid, quarantine, release = (Path(scratch) / name for name in ("raw", "valid", "quarantine", "release"))
        ingest(spec.data, source, raw, spec.runtime)
        validate(spec.data, raw, valid, quarantine, spec.runtime, datetime.now(UTC))
        log = DayTable.open(valid, Files.LOG)
        split = split_days(log.rows_by_day, spec.data)
        days = frozenset((*split.fitted_on, *split.validation))
        fit_retrieval(section, spec.data, log, days, release, spec.runtime.seed)
        retriever = Retriever.open(release)
        users = read_test_users(retriever, spec.data, log, frozenset(split.test), spec.runtime.seed, settings.queries)
        lists = retriever.candidates(users.queries).items
        size, missing = retriever.catalogue.size, iter(range(10**9))
        relevant: list[list[int]] = [[] for _ in range(users.queries.size)]
        for query, item in zip(*users.relevant, strict=True):
            # An item that no list can hold has no row: give it a number of its own.
            relevant[query].append(int(item) if item >= 0 else size + next(missing))
        return {
            "lists": [[int(item) for item in line if item >= 0] for line in lists],
            "relevant": relevant,
            "before": [list(map(int, items)) for items in retriever.recent.items.to_list()],
            "topic": [int(value) for value in retriever.catalogue.items[topic].rank("dense").fill_null(0)],
            "at": AT,
        }


def asked_peers(cases: dict[str, Case]) -> dict[str, Any]:
    """Return the peers' answers and versions."""
    with TemporaryDirectory() as scratch:
        cases_path, answered = Path(scratch) / "cases.json", Path(scratch) / "answers.json"
        cases_path.write_text(json.dumps(cases))
        program = [str(PEER), str(ROOT / "benchmarks/peers/list_metrics.py"), str(cases_path), str(answered)]
        subprocess.run(program, check=True)  # noqa: S603 - our own program
        peer_answers: dict[str, Any] = json.loads(answered.read_text())
        return peer_answers


def compute_metrics(case: Case) -> dict[str, Any]:
    """Return our answers: a number per query, and `coverage`."""
    width, size = max(map(len, case["lists"])), len(case["topic"])
    lists = np.full((len(case["lists"]), width), -1, np.int32)
    for line, items in enumerate(case["lists"]):
        lists[line, : len(items)] = items
    query = np.repeat(np.arange(len(lists)), [len(items) for items in case["relevant"]])
    items = np.concatenate([np.array(relevant_items, np.int32) for relevant_items in case["relevant"]])
    takers = np.bincount([item for items in case["before"] for item in set(items)], minlength=size)
    # RecTools takes an item that nobody took for one that a single user took.
    shares = np.maximum(takers, 1) / len(case["before"])
    metrics = list_metrics(lists, Relevant(query, np.where(items < size, items, -1)), shares)
    topic = pl.Series(case["topic"])
    diversity = [intra_list_diversity(topic.gather(slate[: case["at"]])) for slate in case["lists"]]
    return {**metrics._asdict(), "diversity": np.array(diversity), "coverage": coverage(lists, size)}


def differences(case: Case, answers: dict[str, dict[str, Any]]) -> list[tuple[str, str, float]]:
    """Return peer, metric and the largest difference of any query; infinite where one alone has no number."""
    own_metrics, largest_differences = compute_metrics(case), []
    for peer, metrics in answers.items():
        for metric, values in metrics.items():
            peer_values, own_values = (
                np.atleast_1d(np.array(values, float)),
                np.atleast_1d(np.array(own_metrics[metric], float)),
            )
            same = np.array_equal(np.isnan(peer_values), np.isnan(own_values))
            largest_differences.append(
                (peer, metric, float(np.nanmax(np.abs(peer_values - own_values))) if same else float("inf"))
            )
    return largest_differences


if __name__ == "__main__":
    main()
