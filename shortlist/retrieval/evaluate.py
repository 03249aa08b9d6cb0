"""How good a release's candidates are on the test days: a line per user and list, and what is true of each list."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import Columns
from shortlist.data.best_candidates import best_candidates
from shortlist.data.generate import FIRST_USER
from shortlist.evaluation.list_metrics import ListMetrics, Relevant, coverage, list_metrics
from shortlist.evaluation.retrieval import (
    ALL_SOURCES,
    BEST_POSSIBLE,
    EVALUATION_FILE,
    PER_USER,
    EvaluatedList,
    RetrievalEvaluation,
)
from shortlist.retrieval.catalogue import Rows
from shortlist.retrieval.retriever import Retriever
from shortlist.retrieval.source import ROW, Queries, users_of
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.retrieval import Retrieval, columns_of, user_tables
from shortlist.storage.artefacts import atomic_folder, write_json
from shortlist.storage.tables import DayTable

MOST_USERS: Final = 20_000
"""Users that are evaluated; of more, so many are drawn."""
MOST_PAIRS: Final = 200_000_000
"""Users times items up to which the best possible list of a generated world is made."""
_AT_ONCE: Final = 512


class TestUsers(NamedTuple):
    """Who took something on the test days."""

    queries: Queries
    relevant: Relevant


def evaluate_retrieval(
    retriever: Retriever, data: Data, log: DayTable, test: frozenset[date], folder: Path, seed: int
) -> None:
    """Ask for every test user's candidates and write how good they are, all or nothing.

    A user's query is the context of the user's first row of the test days, with the recent items as they were when the
    sources were fitted. Items that no user was known to take before count as missed: they are in no list.

    Args:
        retriever: Fitted on the days before.
        data: The spec's section.
        log: The validated log.
        test: The test days.
        folder: Where to write.
        seed: Of the draw of users.
    """
    users = read_test_users(retriever, data, log, test, seed)
    names = [*retriever.sources, ALL_SOURCES]
    lists: dict[str, list[Rows]] = {name: [] for name in names}
    for first in range(0, users.queries.size, _AT_ONCE):
        found = retriever.candidates_and_lists(users.queries.slice(first, first + _AT_ONCE))
        for name, rows in found.items():
            lists[name].append(rows)
    whole = {name: np.concatenate(parts) if parts else np.empty((0, 1), np.int32) for name, parts in lists.items()}
    if isinstance(data.source, GeneratedSource) and in_world(data.source, users.queries.users):
        ids = best_candidates(data.source, users.queries.users, sorted(test), retriever.section.candidates)
        rows = retriever.catalogue.rows_of(pl.Series(ids.reshape(-1)))
        whole[BEST_POSSIBLE] = rows.reshape(ids.shape)
    popularity = popularity_of(retriever)
    size = retriever.catalogue.size
    evaluated, lines = [], []
    for name, rows in whole.items():
        lines.append(_lines(name, list_metrics(rows, users.relevant, popularity)))
        share = coverage(rows, size)
        evaluated.append(EvaluatedList(name=name, coverage=share, **_index_facts(retriever, name, users.queries)))
    evaluation = RetrievalEvaluation(
        catalogue=size,
        candidates=retriever.section.candidates,
        users=users.queries.size,
        test_days=tuple(day.isoformat() for day in sorted(test)),
        lists=tuple(evaluated),
    )
    with atomic_folder(folder) as staging:
        pl.concat(lines).write_parquet(staging / PER_USER)
        write_json(staging / EVALUATION_FILE, evaluation.model_dump(mode="json"))


def read_test_users(
    retriever: Retriever, data: Data, log: DayTable, test: frozenset[date], seed: int, most: int = MOST_USERS,
    *, all_context: bool = False,
) -> TestUsers:  # fmt: skip
    """Return the users with a positive row on the test days, their queries and what they took.

    Args:
        retriever: The sources.
        data: The spec's section.
        log: The validated log.
        test: The test days.
        seed: Of the draw of users.
        most: Users; of more, so many are drawn.
        all_context: Give queries what a request tells, `retrieval.context`, with the time and the columns of the user's
            side tables, not only what sources read.
    """
    assert data.user and data.item
    own = {column.name for column in data.columns}
    context = context_columns(retriever.section)
    if all_context:
        context = list(
            dict.fromkeys((*context, *retriever.section.context, *columns_of(user_tables(data)), Columns.TIME))
        )
    wanted = list(dict.fromkeys((data.user, data.item, *(name for name in context if name in own))))
    rows = log.scan(test).filter(pl.col(data.user).is_not_null()).select(*wanted, Columns.TIME, Columns.LABEL).collect()
    taken = rows.filter(pl.col(Columns.LABEL) == 1).select(data.user, data.item).unique().drop_nulls()
    users = taken[data.user].unique().sort()
    if len(users) > most:
        users = users.sample(most, seed=seed).sort()
    first = rows.sort(Columns.TIME, maintain_order=True).unique(data.user, keep="first", maintain_order=True)
    asked = users.to_frame().join(first, on=data.user, how="left", maintain_order="left")
    if set(context) - own - {Columns.TIME}:
        of_users = users_of(log.folder, data)
        asked = asked.join(of_users, on=data.user, how="left", maintain_order="left")
    numbered = taken.join(users.to_frame().with_row_index("query"), on=data.user, how="inner").sort("query", data.item)
    relevant = Relevant(numbered["query"].cast(pl.Int64).to_numpy(), retriever.catalogue.rows_of(numbered[data.item]))
    return TestUsers(Queries(users, retriever.recent_of(users), asked.select(context)), relevant)


def in_world(source: GeneratedSource, users: pl.Series) -> bool:
    """Return whether the best list of users is known, and worth its time."""
    known = users.is_between(FIRST_USER, FIRST_USER + source.users - 1).all()
    return len(users) > 0 and known and len(users) * source.items <= MOST_PAIRS


def context_columns(section: Retrieval) -> list[str]:
    """Return the columns that a query should tell the sources."""
    every = [name for source in section.sources.values() for name in getattr(source, "reads_context", ())]
    return list(dict.fromkeys(every))


def popularity_of(retriever: Retriever) -> NDArray[np.float64]:
    """Return which share of users had each item among their latest, one user more than that: never 0."""
    recent = retriever.recent
    taken = recent[ROW].list.unique().explode(empty_as_null=False).cast(pl.Int64).to_numpy()
    counts = np.bincount(taken, minlength=retriever.catalogue.size)
    return (counts + 1) / (recent.height + 1)


def _index_facts(retriever: Retriever, name: str, queries: Queries) -> dict[str, object]:
    source = retriever.sources.get(name)
    facts = None if source is None else source.index_facts(queries, retriever.section.max_candidates(name))
    return {} if facts is None else asdict(facts)


def _lines(name: str, found: ListMetrics) -> pl.DataFrame:
    return pl.DataFrame({"list": [name] * len(found.items), **found._asdict()})
