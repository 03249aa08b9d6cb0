"""The slates that a release would give to users of the test days, made as a server makes them; how good they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.data.best_candidates import best_candidates
from shortlist.evaluation.list_metrics import Relevant, coverage, list_metrics
from shortlist.evaluation.ranking import NDCG_AT
from shortlist.evaluation.retrieval import ALL_SOURCES, BEST_POSSIBLE, PER_USER, EvaluatedList
from shortlist.evaluation.slates import (
    FILTERING,
    ORDERING,
    POPULARITY,
    SCORING,
    SLATES_FILE,
    USER,
    SimulatedRequests,
    SlatesEvaluation,
)
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.split import split_days
from shortlist.features.view_index import ViewIndex
from shortlist.filters.base import UserHistory
from shortlist.ordering.likeness import intra_list_diversity
from shortlist.recommending.broken_rules import broken_rules
from shortlist.recommending.recommender import FoundCandidates, Recommender, Slate, SlateRequest
from shortlist.recommending.release import open_release
from shortlist.recommending.simulation import simulate_requests
from shortlist.retrieval.catalogue import Rows
from shortlist.retrieval.evaluate import in_world, popularity_of, read_test_users
from shortlist.serving.export.onnx_session import session
from shortlist.serving.export.signature import FOLDER, SCORE, Signature
from shortlist.serving.server.inputs import InputReader, InputSpec
from shortlist.serving.server.snapshot import Snapshot, load_with_users
from shortlist.serving.server.tensor_assembler import TensorAssembler
from shortlist.serving.server.tensors import BYTES, Tensor, TensorHead, from_values
from shortlist.spec.data import Data, GeneratedSource
from shortlist.storage.artefacts import atomic_folder, write_json
from shortlist.storage.tables import DayTable

MOST_USERS: Final = 1_000
"""Users for whom slates are made; of more, so many are drawn."""
MOST_PAIRS: Final = 300_000
"""Candidates that are scored, of all these users together."""
PLACES: Final = NDCG_AT
_HISTORY_DAYS: Final = 30
_EXAMPLES: Final = 5
_DIVERSITY_USERS: Final = 200
"""A mean needs no more; the likeness of a pair costs as much as the rest."""


class TestRequests(NamedTuple):
    """A request of every evaluated user, as it would have come with the first row of the test days."""

    requests: tuple[SlateRequest, ...]
    relevant: Relevant
    lists: dict[str, Rows]
    """Of the sources, of all together, of recent popularity, and the best possible of a generated world."""


class _Ranked(NamedTuple):
    """Everything about one model's slates."""

    lists: dict[str, Rows]
    short: int
    fallbacks: int
    removed: Counter[str]
    broken: tuple[str, ...]
    broken_slates: int


def evaluate_candidates(
    release: Path, data: Data, models: Mapping[str, Path], valid_log: Path, fitted: Path, out: Path, seed: int,
    *, simulate: bool = True,
) -> int:  # fmt: skip
    """Write a folder for every model, by its name, with the numbers of its slates; return the scored pairs.

    Args:
        release: Folder of the stages.
        data: The spec's section.
        models: Folders of the models; those that were not exported are left out, and a gate holds them.
        valid_log: The validated log.
        fitted: What features were fitted to.
        out: Where to write.
        seed: Of the draw of users.
        simulate: Whether to make `retrieval.simulated_requests` random requests, too.
    """
    stages = open_release(release, data)
    log = DayTable.open(valid_log, Files.LOG)
    test = frozenset(split_days([part.day for part in log.days], data.split).test)
    asked = read_requests(stages, data, log, test, seed)
    found = [stages.find(one) for one in asked.requests]
    views = ViewIndex.read(fitted / "views")
    simulated = None
    if simulate and asked.requests:
        count = stages.retriever.section.simulated_requests
        simulated = simulate_requests(stages, asked.requests, count, seed)
    return sum(
        evaluate_slates(stages, asked, found, model, views, out / name, simulated)
        for name, model in models.items()
        if (model / FOLDER).is_dir()
    )


def read_requests(stages: Recommender, data: Data, log: DayTable, test: frozenset[date], seed: int) -> TestRequests:
    """Return the requests of a sample of some days' users, with what they took and the lists to compare with.

    Args:
        stages: Of a release.
        data: The spec's section.
        log: The validated log.
        test: Those days: later than what the stages were fitted on.
        seed: Of the draw of users.
    """
    retriever = stages.retriever
    most = max(1, min(MOST_USERS, MOST_PAIRS // retriever.section.candidates))
    users = read_test_users(retriever, data, log, test, seed, most, all_context=True)
    queries = users.queries
    lists = retriever.candidates_and_lists(queries)
    popular = np.argsort(-popularity_of(retriever), kind="stable")[: retriever.section.candidates].astype(np.int32)
    lists[POPULARITY] = np.tile(popular, (queries.size, 1))
    if isinstance(data.source, GeneratedSource) and in_world(data.source, queries.users):
        ids = best_candidates(data.source, queries.users, sorted(test), retriever.section.candidates)
        lists[BEST_POSSIBLE] = retriever.catalogue.rows_of(pl.Series(ids.reshape(-1))).reshape(ids.shape)
    histories = _histories(data, log, test, queries.users)
    contexts = queries.context.drop(Columns.TIME).to_dicts()
    places = min(PLACES, retriever.section.candidates, retriever.catalogue.size)
    requests = tuple(
        SlateRequest(f"evaluation-{user}", user, places, now, known, history=histories.get(user))
        for user, now, known in zip(queries.users, queries.context[Columns.TIME], contexts, strict=True)
    )
    return TestRequests(requests, users.relevant, lists)


def evaluate_slates(
    stages: Recommender, asked: TestRequests, found: Sequence[FoundCandidates], model: Path, views: ViewIndex,
    out: Path, simulated: SimulatedRequests | None,
) -> int:  # fmt: skip
    """Score and order candidates with a model, and write how good every stage's list is; return the scored pairs.

    Features are those that a server has at the beginning of the request's day. What a request does not tell of an item,
    such as its position, is null, as it is for a server.

    Args:
        stages: Of the release.
        asked: The requests.
        found: Their candidates.
        model: Folder of the exported model.
        views: The statistics.
        out: Where to write, all or nothing.
        simulated: What random requests to the stages came to.
    """
    scorer = PairScorer(model, views)
    slates: list[Slate] = []
    scored: list[Mapping[str, np.ndarray]] = []
    for request, candidates in zip(asked.requests, found, strict=True):
        scores, further = scorer.score(request, candidates)
        scored.append({SCORE: scores, **further})
        slates.append(stages.slate(request, candidates, scores, further))
    ranked = _ranked(stages, asked, found, scored, slates)
    size = stages.retriever.catalogue.size
    popularity = popularity_of(stages.retriever)
    diversity = _Diversity(stages)
    users = pl.Series(USER, [one.user for one in asked.requests])
    lines, evaluated = [], []
    for name, rows in {**asked.lists, **ranked.lists}.items():
        numbers = list_metrics(rows, asked.relevant, popularity)._asdict()
        spread = diversity.of(rows) if name in {ALL_SOURCES, *ranked.lists} else np.full(len(rows), np.nan)
        lines.append(pl.DataFrame({USER: users, "list": [name] * len(rows), **numbers, "diversity": spread}))
        evaluated.append(EvaluatedList(name=name, coverage=coverage(rows, size)))
    count = len(asked.requests)
    evaluation = SlatesEvaluation(
        users=count,
        places=max((one.k for one in asked.requests), default=0),
        short=ranked.short,
        fallbacks=ranked.fallbacks,
        removed={rule.name: ranked.removed[rule.name] / max(count, 1) for rule in stages.filters.rules},
        broken=ranked.broken_slates,
        examples=ranked.broken[:_EXAMPLES],
        simulated=simulated,
        lists=tuple(evaluated),
    )
    with atomic_folder(out) as staging:
        pl.concat(lines).write_parquet(staging / PER_USER)
        write_json(staging / SLATES_FILE, evaluation.model_dump(mode="json"))
    return sum(len(one[SCORE]) for one in scored)


def _ranked(
    stages: Recommender, asked: TestRequests, found: Sequence[FoundCandidates],
    scored: Sequence[Mapping[str, np.ndarray]], slates: Sequence[Slate],
) -> _Ranked:  # fmt: skip
    rows_of = stages.retriever.catalogue.rows_of
    kept = [rows_of(one.items) for one in found]
    by_score = [rows[np.argsort(-scores[SCORE], kind="stable")] for rows, scores in zip(kept, scored, strict=True)]
    broken = [
        broken_rules(stages, request, candidates, slate, scores).broken
        for request, candidates, slate, scores in zip(asked.requests, found, slates, scored, strict=True)
    ]
    return _Ranked(
        lists={
            FILTERING: _matrix(kept),
            SCORING: _matrix(by_score),
            ORDERING: lists_of(stages, slates),
        },
        short=sum(len(slate.items) < one.k for one, slate in zip(asked.requests, slates, strict=True)),
        fallbacks=sum(bool(one.fallback) for one in found),
        removed=Counter(name for one in found for name in one.removed.filters),
        broken=tuple(one[0] for one in broken if one),
        broken_slates=sum(map(bool, broken)),
    )


def lists_of(stages: Recommender, slates: Sequence[Slate]) -> Rows:
    """Return the items of slates by row number, a line each; -1 where one is shorter."""
    return _matrix([stages.retriever.catalogue.rows_of(slate.items) for slate in slates])


class PairScorer:
    """Scores the candidates of a request in this process, by the exported file, from what a request says of them."""

    def __init__(self, model: Path, views: ViewIndex) -> None:
        signature = Signature.read(model / FOLDER)
        plan = Preprocessing.load(model / Files.PREPROCESSING).plan
        self._assembler = TensorAssembler(plan, signature)
        self._data, self._views = plan.declared.data, views
        self._session = session(model / FOLDER)
        self._snapshots: dict[date, Snapshot] = {}

    def score(self, request: SlateRequest, found: FoundCandidates) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
        """Return the scores, and those of further labels by column; each of shape (candidates,)."""
        rows, names = len(found.items), self._assembler.signature.scores
        if not rows:
            return np.empty(0, np.float32), {name: np.empty(0, np.float32) for name in names[1:]}
        reader = InputReader(self._assembler.requirements, self._assembler.widths, rows)
        assert self._data.user
        told = {**request.context, self._data.user: request.user}
        tensors = [
            _tensor(one, found.items.to_list() if one.name == self._data.item else [told[one.name]])
            for one in reader.inputs
            if one.name == self._data.item or told.get(one.name) is not None
        ]
        inputs = reader.read(tensors, int(request.now.timestamp() * 1_000_000))
        tensors_of = self._assembler.tensors(inputs.columns, self._as_of(request.now).tables, rows)
        first, *others = np.asarray(self._session.run([SCORE], dict(tensors_of))[0]).reshape(rows, len(names)).T
        return first, dict(zip(names[1:], others, strict=True))

    def _as_of(self, now: datetime) -> Snapshot:
        day = now.astimezone(ZoneInfo(self._views.timezone)).date()
        if day not in self._snapshots:
            self._snapshots[day] = load_with_users(self._assembler, self._views, self._views.start_of(day))
        return self._snapshots[day]


def _tensor(one: InputSpec, values: list[Any]) -> Tensor:
    texts = one.datatype == BYTES
    plain = [str(value) for value in values] if texts else values
    return from_values(
        TensorHead.model_validate({"name": one.name, "datatype": one.datatype, "shape": [len(values)]}), plain
    )


class _Diversity:
    """Mean unlikeness of the first places, by the column that `ordering.diversity` names, else by an item's column."""

    def __init__(self, stages: Recommender) -> None:
        items = stages.retriever.catalogue.items
        declared = stages.ordering.diversity
        own = [name for name in items.columns if name != stages.retriever.catalogue.key]
        lists = [name for name in own if isinstance(items.schema[name], pl.List | pl.Array)]
        name = declared.by if declared is not None and declared.by in own else next(iter((*lists, *own)), None)
        self._column = items[name] if name is not None else None

    def of(self, lists: Rows) -> np.ndarray:
        """Return 1 - likeness, the mean over the pairs of each list's first places; NaN with fewer than two."""
        found = np.full(len(lists), np.nan)
        some = lists[:_DIVERSITY_USERS, :PLACES]
        found[: len(some)] = [self._one(rows[rows >= 0]) for rows in some]
        return found

    def _one(self, rows: Rows) -> float:
        return float("nan") if self._column is None else intra_list_diversity(self._column.gather(rows))


def _histories(data: Data, log: DayTable, test: frozenset[date], users: pl.Series) -> dict[Any, UserHistory]:
    """Return what users were shown and took on the days before the test days."""
    assert data.user and data.item
    first = min(test)
    before = frozenset(part.day for part in log.days if first - timedelta(days=_HISTORY_DAYS) <= part.day < first)
    if not before:
        return {}
    rows = (
        log.scan(before)
        .filter(pl.col(data.user).is_in(users.implode()))
        .select(data.user, data.item, Columns.TIME, pl.col(Columns.LABEL) == 1)
        .drop_nulls(data.item)
        .sort(Columns.TIME, maintain_order=True)
        .collect()
    )
    return {
        user: UserHistory(own[data.item], own[Columns.TIME], own[Columns.LABEL])
        for (user,), own in _groups(rows, data.user)
    }


def _groups(rows: pl.DataFrame, by: str) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    yield from rows.group_by([by], maintain_order=True)


def _matrix(lists: Sequence[Rows]) -> Rows:
    width = max((len(rows) for rows in lists), default=0)
    found = np.full((len(lists), max(width, 1)), -1, np.int32)
    for line, rows in enumerate(lists):
        found[line, : len(rows)] = rows
    return found
