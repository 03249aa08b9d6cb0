"""How much of what users take next the sources find, `make bench NAME=candidates OPTIONS=path/to/kuairand`.

The same days, users and metrics for all: everything is fitted on the days before the test days of the shipped spec
`kuairand`, and asked once per user of the test days. The peers are recent popularity, and ALS, BPR and EASE of implicit
and RecTools in an environment of their own (`NAME=peers OPTIONS=recommend`), from the same positive rows and, like the
towers, from what users watched and liked before the log begins. What a user took before is left out of all lists:
nobody is shown a video twice here. Where a list has fewer than 500 items, as for users of whom nothing is known, the
popular ones follow. Differences are paired by user.

Settings, ours and the peers', were chosen on the validation days, which `--validation` measures instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.bench import Line, record, show
from shortlist.contracts import Columns
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.metrics.intervals import bootstrap_mean
from shortlist.evaluation.metrics.list_metrics import ListMetrics, list_metrics
from shortlist.slates.retrieval.catalogue import Rows
from shortlist.slates.retrieval.evaluate import TestUsers, item_popularity, read_test_users
from shortlist.slates.retrieval.retriever import Retriever, fit_retrieval
from shortlist.slates.retrieval.source import read_user_tables
from shortlist.slates.retrieval.union import fuse_candidates
from shortlist.spec.load import load_spec
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.spec import Spec
from shortlist.spec.split import split_days
from shortlist.storage.tables import DayTable

ROOT: Final = Path(__file__).parents[1]
PEER: Final = "popular"
LIST_LENGTH: Final = 500
MOST_TAKEN: Final = 200
"""Items that a user may have taken before, by which lists are made longer."""
HISTORIES: Final = ("watch_seq", "like_seq")
"""Items that users watched and liked before the log begins, by the users' side table."""
SOURCES: Final[dict[str, Any]] = {
    "popular": {"kind": "popular", "window_days": 2},
    "co_visitation": {"kind": "co_visitation", "nearby": 20, "neighbours": 500, "shrinkage": 5_000},
    "ease": {"kind": "ease", "fitted_items": 10_000},
    "als": {"kind": "als"},
    "two_tower": {
        "kind": "two_tower", "item_columns": ["author_id", "tag", "music_id"], "user_columns": list(HISTORIES),
        "embedding_dim": 64, "epochs": 3, "temperature": 0.5,
    },
}  # fmt: skip
TOGETHER: Final[dict[str, tuple[str, ...]]] = {
    "two_tower and co_visitation": ("two_tower", "co_visitation"),
    "all three sources": ("two_tower", "co_visitation", "popular"),
}
PEERS: Final[dict[str, dict[str, Any]]] = {
    "implicit ALS": {"kind": "als", "factors": 32, "iterations": 10, "histories": True},
    "implicit BPR": {"kind": "bpr", "factors": 32, "iterations": 50, "histories": True},
    "RecTools EASE": {"kind": "ease", "regularization": 500.0, "histories": True},
}
SETTINGS_TO_TRY: Final[dict[str, dict[str, Any]]] = {
    **PEERS,
    "implicit ALS, log alone": {**PEERS["implicit ALS"], "histories": False},
    "implicit BPR, log alone": {**PEERS["implicit BPR"], "histories": False},
    "RecTools EASE, log alone": {**PEERS["RecTools EASE"], "histories": False},
}
_AT_ONCE: Final = 512


def main() -> None:
    """Fit, evaluate, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="folder of KuaiRand")
    parser.add_argument("--validation", action="store_true", help="measure the validation days, with all settings")
    arguments = parser.parse_args()
    spec = load_spec(ROOT / "pipelines/specs/kuairand.yaml")
    with TemporaryDirectory() as scratch:
        log = validated(spec, Path(arguments.data), Path(scratch))
        split = split_days(log.rows_by_day, spec.data)
        learnt = frozenset(split.fitted_on) | frozenset(() if arguments.validation else split.validation)
        query_days = frozenset(split.validation if arguments.validation else split.test)
        metrics_by_list = measured(
            spec, log, learnt, query_days, SETTINGS_TO_TRY if arguments.validation else PEERS, Path(scratch)
        )
    lines = [line for metric in ("recall", "ndcg_at_10") for line in _lines(metrics_by_list, metric)]
    show(f"Candidates of {len(metrics_by_list[PEER].items)} users", lines)
    if not arguments.validation:
        record(lines, whole="candidates")


def validated(spec: Spec, log_folder: Path, scratch: Path) -> DayTable:
    """Return the validated log."""
    raw, valid, quarantine = (scratch / name for name in ("raw", "valid", "quarantine"))
    ingest(spec.data, log_folder, raw, spec.runtime)
    return validate(spec.data, raw, valid, quarantine, spec.runtime, datetime.now(UTC))


def measured(
    spec: Spec,
    log: DayTable,
    learnt: frozenset[date],
    query_days: frozenset[date],
    peers: Mapping[str, Any],
    scratch: Path,
) -> dict[str, ListMetrics]:
    """Return the metrics of every list, by its name.

    Args:
        spec: The declaration.
        log: The validated log.
        learnt: Days to fit on.
        query_days: Days whose users are asked for.
        peers: Settings by name.
        scratch: A folder.
    """
    section = Retrieval.model_validate({"candidates": LIST_LENGTH + MOST_TAKEN, "sources": SOURCES})
    section.check(spec.data)
    fit_retrieval(section, spec.data, log, learnt, scratch / "release", spec.runtime.seed)
    retriever = Retriever.open(scratch / "release")
    users = read_test_users(retriever, spec.data, log, query_days, spec.runtime.seed)
    history = TakenItems.of(spec, log, learnt, retriever, users)
    lists = {name: history.remove_taken_items(rows) for name, rows in _lists(retriever, users).items()}
    lists |= _of_peers(history, peers, scratch)
    popular, popularity = lists[PEER], item_popularity(retriever)
    return {name: list_metrics(filled(items, popular), users.relevant, popularity) for name, items in lists.items()}


class TakenItems(NamedTuple):
    """Positive rows, and what users watched or liked before the log begins; users and items are numbers."""

    user: NDArray[np.int64]
    item: NDArray[np.int64]
    of_log: NDArray[np.bool_]
    query_users: NDArray[np.int64]
    """The users who are asked for."""
    items: int
    """Of the catalogue."""

    @classmethod
    def of(cls, spec: Spec, log: DayTable, days: frozenset[date], retriever: Retriever, users: TestUsers) -> TakenItems:
        """Return what users took before some days' end."""
        user, item = spec.data.user or "", spec.data.item or ""
        rows = log.scan(days).filter(pl.col(Columns.LABEL) == 1).select(user, item).collect()
        tables = read_user_tables(log.folder, spec.data)
        watched_before = [
            tables.select(user, pl.col(name).alias(item)).explode(item).drop_nulls() for name in HISTORIES
        ]
        all_rows = pl.concat([rows, *(frame.cast(dict(rows.schema)) for frame in watched_before)])
        queried = users.queries.users.cast(all_rows.schema[user])
        all_users = pl.concat([all_rows[user], queried]).unique().sort()
        catalogue_rows = retriever.catalogue.find_rows(all_rows[item]).astype(np.int64)
        is_in_catalogue, numbers = (
            catalogue_rows >= 0,
            all_users.search_sorted(all_rows[user]).to_numpy().astype(np.int64),
        )
        of_log = np.arange(len(catalogue_rows)) < rows.height
        query_users = all_users.search_sorted(queried).to_numpy().astype(np.int64)
        return cls(
            numbers[is_in_catalogue],
            catalogue_rows[is_in_catalogue],
            of_log[is_in_catalogue],
            query_users,
            retriever.catalogue.size,
        )

    def remove_taken_items(self, lists: Rows) -> Rows:
        """Return the first 500 of the asked users' lists that they did not take before."""
        keys = self.query_users[:, None] * self.items + lists
        is_new = (lists >= 0) & ~np.isin(keys, self.user * self.items + self.item)
        order = np.argsort(~is_new, axis=1, kind="stable")[:, :LIST_LENGTH]
        rows: Rows = np.where(np.take_along_axis(is_new, order, 1), np.take_along_axis(lists, order, 1), -1)
        return rows


def filled(lists: Rows, popular: Rows) -> Rows:
    """Return lists in which popular items follow the own ones, each item once, as long as those of the popular items.

    >>> filled(np.array([[4, -1, -1]], np.int32), np.array([[4, 7, 1]], np.int32)).tolist()
    [[4, 7, 1]]
    """
    completed = np.full_like(popular, -1)
    for line, (items, popular_items) in enumerate(zip(lists, popular, strict=True)):
        valid_items = items[items >= 0]
        merged = np.concatenate([valid_items, popular_items[~np.isin(popular_items, valid_items)]])[: popular.shape[1]]
        completed[line, : len(merged)] = merged
    return completed


def _lists(retriever: Retriever, users: TestUsers) -> dict[str, Rows]:
    parts: dict[str, list[Rows]] = {}
    for first in range(0, users.queries.size, _AT_ONCE):
        lists = dict(retriever.lists(users.queries.slice(first, first + _AT_ONCE)))
        for name, ranked in lists.items():
            parts.setdefault(name, []).append(ranked.items)
        for name, several in TOGETHER.items():
            parts.setdefault(name, []).append(
                fuse_candidates([(source, lists[source]) for source in several], LIST_LENGTH + MOST_TAKEN).items
            )
    return {name: np.concatenate(rows) for name, rows in parts.items()}


def _of_peers(history: TakenItems, peers: Mapping[str, Any], scratch: Path) -> dict[str, Rows]:
    """Return the lists of models that learnt from the same rows."""
    np.savez(scratch / "given.npz", models=json.dumps(dict(peers)), **history._asdict())
    program = [str(ROOT / ".venv-peers-recommend/bin/python"), str(ROOT / "benchmarks/peers/recommenders.py")]
    subprocess.run([*program, str(scratch / "given.npz"), str(scratch / "lists.npz")], check=True)  # noqa: S603 - our own program
    peer_lists = np.load(scratch / "lists.npz")
    return {name: history.remove_taken_items(peer_lists[name]) for name in peer_lists.files}


def _lines(metrics_by_list: Mapping[str, ListMetrics], metric: str) -> list[Line]:
    peer_metric = getattr(metrics_by_list[PEER], metric)
    lines = []
    for name, metrics in metrics_by_list.items():
        metric_value = getattr(metrics, metric)
        gap = bootstrap_mean(metric_value - peer_metric, 0.95, 500, 1)
        text = "" if name == PEER else f"{PEER}: {gap.value:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})"
        ratio = None if name == PEER else float(metric_value.mean() / peer_metric.mean())
        lines.append(Line("candidates", f"kuairand, {name}, {metric}", float(metric_value.mean()), "", text, ratio))
    return lines


if __name__ == "__main__":
    main()
