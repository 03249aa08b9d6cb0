"""Evaluation of a release's candidates on the test days: metrics per user and list, and numbers of each list."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import Columns
from shortlist.evaluation.gates.retrieval import (
    ALL_SOURCES,
    EVALUATION_FILE,
    PER_USER,
    EvaluatedList,
    RetrievalEvaluation,
)
from shortlist.evaluation.metrics.list_metrics import ListMetrics, Relevant, coverage, list_metrics
from shortlist.slates.retrieval.catalogue import Rows
from shortlist.slates.retrieval.retriever import Retriever
from shortlist.slates.retrieval.source import Queries, read_user_tables
from shortlist.spec.data import Data
from shortlist.spec.retrieval import Retrieval, columns_of, user_tables
from shortlist.storage.artefacts import atomic_folder, write_json
from shortlist.storage.tables import DayTable

MAX_USERS: Final = 20_000
"""Largest number of evaluated users; of more, a sample is drawn."""
_BATCH_QUERIES: Final = 512


class TestUsers(NamedTuple):
    """Users with a positive row on the test days, as queries, and the items that they took."""

    queries: Queries
    relevant: Relevant


def evaluate_retrieval(
    retriever: Retriever, data: Data, log: DayTable, test: frozenset[date], folder: Path, seed: int
) -> None:
    """Retrieve every test user's candidates and write their evaluation, all or nothing.

    A user's query is the context of the user's first row of the test days, with the recent items as of when the
    sources were fitted. Items that are not in the catalogue count as missed: they are in no list.

    Args:
        retriever: Sources fitted on the days before.
        data: The spec's section.
        log: The validated log.
        test: The test days.
        folder: Folder to write.
        seed: Seed of the sample of users.
    """
    users = read_test_users(retriever, data, log, test, seed)
    names = [*retriever.sources, ALL_SOURCES]
    batches_by_list: dict[str, list[Rows]] = {name: [] for name in names}
    for first in range(0, users.queries.size, _BATCH_QUERIES):
        rows_by_list = retriever.candidates_and_lists(users.queries.slice(first, first + _BATCH_QUERIES))
        for name, rows in rows_by_list.items():
            batches_by_list[name].append(rows)
    lists_by_name = {
        name: np.concatenate(parts) if parts else np.empty((0, 1), np.int32) for name, parts in batches_by_list.items()
    }
    popularity = item_popularity(retriever)
    size = retriever.catalogue.size
    evaluated_lists, user_frames = [], []
    for name, rows in lists_by_name.items():
        user_frames.append(_user_frame(name, list_metrics(rows, users.relevant, popularity)))
        share = coverage(rows, size)
        evaluated_lists.append(EvaluatedList(name=name, coverage=share, **_index_facts(retriever, name, users.queries)))
    evaluation = RetrievalEvaluation(
        catalogue=size,
        candidates=retriever.section.candidates,
        users=users.queries.size,
        test_days=tuple(day.isoformat() for day in sorted(test)),
        lists=tuple(evaluated_lists),
    )
    with atomic_folder(folder) as staging:
        pl.concat(user_frames).write_parquet(staging / PER_USER)
        write_json(staging / EVALUATION_FILE, evaluation.model_dump(mode="json"))


def read_test_users(
    retriever: Retriever, data: Data, log: DayTable, test: frozenset[date], seed: int, max_users: int = MAX_USERS,
    *, for_slates: bool = False,
) -> TestUsers:  # fmt: skip
    """Return the users of the test days with a positive row, their queries and the items that they took.

    Args:
        retriever: The sources.
        data: The spec's section.
        log: The validated log.
        test: The test days.
        seed: Seed of the sample of users.
        max_users: Largest number of users; of more, a sample is drawn.
        for_slates: Take users without a positive row too, and give queries all of `retrieval.context`, the time and the
            columns of the user's side tables, not only the columns that sources read.
    """
    assert data.user and data.item
    log_columns = {column.name for column in data.columns}
    context = context_columns(retriever.section)
    if for_slates:
        context = list(
            dict.fromkeys((*context, *retriever.section.context, *columns_of(user_tables(data)), Columns.TIME))
        )
    read_columns = list(dict.fromkeys((data.user, data.item, *(name for name in context if name in log_columns))))
    rows = (
        log.scan(test)
        .filter(pl.col(data.user).is_not_null())
        .select(*read_columns, Columns.TIME, Columns.LABEL)
        .collect()
    )
    positives = rows.filter(pl.col(Columns.LABEL) == 1).select(data.user, data.item).unique().drop_nulls()
    users = (rows if for_slates else positives)[data.user].unique().sort()
    if len(users) > max_users:
        users = users.sample(max_users, seed=seed).sort()
    first = rows.sort(Columns.TIME, maintain_order=True).unique(data.user, keep="first", maintain_order=True)
    query_rows = users.to_frame().join(first, on=data.user, how="left", maintain_order="left")
    if set(context) - log_columns - {Columns.TIME}:
        user_columns = read_user_tables(log.folder, data)
        query_rows = query_rows.join(user_columns, on=data.user, how="left", maintain_order="left")
    numbered_positives = positives.join(users.to_frame().with_row_index("query"), on=data.user, how="inner").sort(
        "query", data.item
    )
    relevant = Relevant(
        numbered_positives["query"].cast(pl.Int64).to_numpy(),
        retriever.catalogue.find_rows(numbered_positives[data.item]),
    )
    return TestUsers(Queries(users, retriever.find_recent_items(users), query_rows.select(context)), relevant)


def context_columns(section: Retrieval) -> list[str]:
    """Return the context columns that the sources read."""
    column_names = [name for source in section.sources.values() for name in getattr(source, "reads_context", ())]
    return list(dict.fromkeys(column_names))


def item_popularity(retriever: Retriever) -> NDArray[np.float64]:
    """Return the share of users with each item among their latest; one user is added, so that it is above 0."""
    recent = retriever.recent
    item_rows = recent.items.list.unique().explode(empty_as_null=False).cast(pl.Int64).to_numpy()
    counts = np.bincount(item_rows, minlength=retriever.catalogue.size)
    return (counts + 1) / (len(recent.users) + 1)


def _index_facts(retriever: Retriever, name: str, queries: Queries) -> dict[str, object]:
    source = retriever.sources.get(name)
    facts = None if source is None else source.index_facts(queries, retriever.section.max_candidates(name))
    return {} if facts is None else asdict(facts)


def _user_frame(name: str, metrics: ListMetrics) -> pl.DataFrame:
    return pl.DataFrame({"list": [name] * len(metrics.items), **metrics._asdict()})
