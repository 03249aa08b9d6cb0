"""Evaluates the slates of a release for users of the test days, computed as a server does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.evaluation.gates.retrieval import ALL_SOURCES, PER_USER, EvaluatedList
from shortlist.evaluation.gates.slates import (
    FILTERING,
    ORDERING,
    POPULARITY,
    SCORING,
    SLATES_FILE,
    USER,
    SimulatedRequests,
    SlatesEvaluation,
)
from shortlist.evaluation.metrics.list_metrics import Relevant, coverage, list_metrics
from shortlist.evaluation.metrics.ranking import NDCG_AT
from shortlist.evaluation.value.evaluation import POPULAR
from shortlist.evaluation.value.evaluation import SLATES as VALUED_SLATES
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.onnx_session import open_scorer
from shortlist.serving.export.signature import FOLDER, SCORE, Signature
from shortlist.serving.server.features.snapshot import Snapshot, load_with_users
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.serving.server.request_inputs.input_reader import InputReader, InputSpec
from shortlist.serving.server.request_inputs.slate_requests import column_tensor
from shortlist.serving.server.requests.tensors import BYTES, Tensor, TensorHead, from_values
from shortlist.serving.validation.exploration_cost import exploration_cost
from shortlist.serving.validation.slate_value import LoggedRequests, read_logged_requests, write_slate_value
from shortlist.slates.filters.base import UserHistory, microseconds
from shortlist.slates.ordering.likeness import intra_list_diversity
from shortlist.slates.recommender import Recommender, Slate, SlateCandidates, SlateRequest
from shortlist.slates.release import open_release
from shortlist.slates.retrieval.catalogue import Rows
from shortlist.slates.retrieval.evaluate import item_popularity, read_test_users
from shortlist.slates.simulation import simulate_requests
from shortlist.slates.slate_check import check_slate
from shortlist.spec.data import Data
from shortlist.spec.split import split_days
from shortlist.storage.artefacts import atomic_folder, write_json
from shortlist.storage.tables import DayTable

MAX_USERS: Final = 1_000
"""Most users for whom slates are computed; of more users, a sample is drawn."""
MAX_PAIRS: Final = 500_000
"""Most candidates that are scored, of all users together."""
TOP_K: Final = NDCG_AT
_HISTORY_DAYS: Final = 30
_BATCH_ROWS: Final = 10_000
"""Rows that are scored at once; the rows of one request are never split."""
_EXAMPLES: Final = 5
_DIVERSITY_USERS: Final = 200
"""Most users in the mean diversity, which costs as much as everything else."""


class TestRequests(NamedTuple):
    """One request per evaluated user, at the time of the user's first row in the test days."""

    requests: tuple[SlateRequest, ...]
    relevant: Relevant
    lists: dict[str, Rows]
    """Item lists to compare: per source, of all sources, and by popularity."""
    logged: LoggedRequests | str
    """What the log showed to these users on these days; or why that says nothing of other slates."""


class _ModelSlates(NamedTuple):
    """Lists and counts of one model's slates."""

    lists: dict[str, Rows]
    short: int
    fallbacks: int
    removed: Counter[str]
    rule_breaks: tuple[str, ...]
    broken_slates: int


def evaluate_slates_of_model(
    release: Path, data: Data, model: Path, valid_log: Path, fitted: Path, out: Path, seed: int,
    *, simulate: bool = True,
) -> int:  # fmt: skip
    """Write the evaluation of the slates that a model makes; return the number of scored pairs.

    Args:
        release: Folder of the release.
        data: Declared columns of the log.
        model: Folder of the model; of one that was not exported nothing is written, and a gate holds it.
        valid_log: The validated log.
        fitted: Folder of the fitted features.
        out: Folder to write, atomically.
        seed: Seed of the sample of users.
        simulate: Whether to run `retrieval.simulated_requests` random requests, too.
    """
    if not (model / FOLDER).is_dir():
        return 0
    stages = open_release(release, data)
    log = DayTable.open(valid_log, Files.LOG)
    test = frozenset(split_days(log.rows_by_day, data).test)
    test_requests = read_requests(stages, data, log, test, seed)
    candidates = stages.find_all(test_requests.requests)
    views = ViewIndex.read(fitted / "views")
    simulated = None
    if simulate and test_requests.requests:
        count = stages.retriever.section.simulated_requests
        simulated = simulate_requests(stages, test_requests.requests, count, seed)
    return evaluate_slates(stages, test_requests, candidates, model, views, out, simulated)


def read_requests(stages: Recommender, data: Data, log: DayTable, test: frozenset[date], seed: int) -> TestRequests:
    """Return requests of a sample of the test days' users, with the items they took and the lists to compare.

    Args:
        stages: Stages of a release.
        data: Declared columns of the log.
        log: The validated log.
        test: The test days, later than the days that the stages were fitted on.
        seed: Seed of the sample of users.
    """
    retriever = stages.retriever
    max_users = max(1, min(MAX_USERS, MAX_PAIRS // retriever.section.candidates))
    users = read_test_users(retriever, data, log, test, seed, max_users, for_slates=True)
    queries = users.queries
    lists = retriever.candidates_and_lists(queries)
    popular = np.argsort(-item_popularity(retriever), kind="stable")[: retriever.section.candidates].astype(np.int32)
    lists[POPULARITY] = np.tile(popular, (queries.size, 1))
    histories = read_histories(data, log, test, queries.users)
    # Without the time, a frame without a further column has no rows.
    contexts = [
        {name: value for name, value in row.items() if name != Columns.TIME} for row in queries.context.to_dicts()
    ]
    k = min(TOP_K, retriever.section.candidates, retriever.catalogue.size)
    requests = tuple(
        SlateRequest(f"evaluation-{user}", user, k, now, request_context, history=histories.get(user))
        for user, now, request_context in zip(queries.users, queries.context[Columns.TIME], contexts, strict=True)
    )
    reward = stages.ordering.reward or data.label or Columns.LABEL
    logged = read_logged_requests(data, log, test, queries.users, retriever.catalogue, reward, k)
    return TestRequests(requests, users.relevant, lists, logged)


def evaluate_slates(
    stages: Recommender, test_requests: TestRequests, candidates_by_request: Sequence[SlateCandidates], model: Path,
    views: ViewIndex, out: Path, simulated: SimulatedRequests | None,
) -> int:  # fmt: skip
    """Score and order candidates with a model, write the metrics of every stage's list; return the scored pairs.

    Features are those that a server has at the beginning of the request's day. Columns that a request does not contain,
    such as the position of an item, are null, as they are for a server.

    Args:
        stages: Stages of the release.
        test_requests: The requests.
        candidates_by_request: Candidates of each request.
        model: Folder of the exported model.
        views: Views of the fitted features.
        out: Folder to write, atomically.
        simulated: Outcome of random requests to the stages; None when none were run.
    """
    scorer = PairScorer(model, views, item_values=stages.item_values)
    scored = scorer.score_all(test_requests.requests, [candidates.items for candidates in candidates_by_request])
    scores_by_request = [{SCORE: scores, **further_scores} for scores, further_scores in scored]
    slates = [
        stages.slate(request, candidates, scores, further_scores)
        for request, candidates, (scores, further_scores) in zip(
            test_requests.requests, candidates_by_request, scored, strict=True
        )
    ]
    model_slates = _rank_lists(stages, test_requests, candidates_by_request, scores_by_request, slates)
    size = stages.retriever.catalogue.size
    popularity = item_popularity(stages.retriever)
    diversity = _Diversity(stages)
    users = pl.Series(USER, [request.user for request in test_requests.requests])
    per_user_frames, evaluated_lists = [], []
    for name, rows in {**test_requests.lists, **model_slates.lists}.items():
        numbers = list_metrics(rows, test_requests.relevant, popularity)._asdict()
        list_diversity = (
            diversity.of(rows) if name in {ALL_SOURCES, *model_slates.lists} else np.full(len(rows), np.nan)
        )
        per_user_frames.append(
            pl.DataFrame({USER: users, "list": [name] * len(rows), **numbers, "diversity": list_diversity})
        )
        evaluated_lists.append(EvaluatedList(name=name, coverage=coverage(rows, size)))
    count = len(test_requests.requests)
    evaluation = SlatesEvaluation(
        users=count,
        places=max((request.k for request in test_requests.requests), default=0),
        short=model_slates.short,
        fallbacks=model_slates.fallbacks,
        removed={rule.name: model_slates.removed[rule.name] / max(count, 1) for rule in stages.filters.rules},
        broken=model_slates.broken_slates,
        examples=model_slates.rule_breaks[:_EXAMPLES],
        simulated=simulated,
        lists=tuple(evaluated_lists),
        exploration=exploration_cost(stages, test_requests.requests, candidates_by_request, scores_by_request),
    )
    lists = {name: rows for name, rows in test_requests.lists.items() if name not in {ALL_SOURCES, POPULARITY}}
    lists = {POPULAR: test_requests.lists[POPULARITY], **lists, VALUED_SLATES: model_slates.lists[ORDERING]}
    item_scores = ItemScores(scorer, test_requests.requests, candidates_by_request, scores_by_request)
    with atomic_folder(out) as staging:
        pl.concat(per_user_frames).write_parquet(staging / PER_USER)
        write_json(staging / SLATES_FILE, evaluation.model_dump(mode="json"))
        write_slate_value(staging, test_requests.logged, lists, stages.retriever.catalogue, item_scores.of_pairs)
    return sum(len(scores[SCORE]) for scores in scores_by_request)


def _rank_lists(
    stages: Recommender, test_requests: TestRequests, candidates: Sequence[SlateCandidates],
    scores_by_request: Sequence[Mapping[str, np.ndarray]], slates: Sequence[Slate],
) -> _ModelSlates:  # fmt: skip
    rows_of = stages.retriever.catalogue.find_rows
    filtered_lists = [rows_of(request_candidates.items) for request_candidates in candidates]
    by_score = [
        rows[np.argsort(-scores[SCORE], kind="stable")]
        for rows, scores in zip(filtered_lists, scores_by_request, strict=True)
    ]
    breaks_by_request = [
        check_slate(stages, request, request_candidates, slate, scores).problems
        for request, request_candidates, slate, scores in zip(
            test_requests.requests, candidates, slates, scores_by_request, strict=True
        )
    ]
    return _ModelSlates(
        lists={
            FILTERING: _matrix(filtered_lists),
            SCORING: _matrix(by_score),
            ORDERING: slate_rows(stages, slates),
        },
        short=sum(len(slate.items) < request.k for request, slate in zip(test_requests.requests, slates, strict=True)),
        fallbacks=sum(bool(request_candidates.fallback) for request_candidates in candidates),
        removed=Counter(name for request_candidates in candidates for name in request_candidates.removed.filters),
        rule_breaks=tuple(rule_breaks[0] for rule_breaks in breaks_by_request if rule_breaks),
        broken_slates=sum(map(bool, breaks_by_request)),
    )


def slate_rows(stages: Recommender, slates: Sequence[Slate]) -> Rows:
    """Return the catalogue rows of the items of slates, one row per slate, padded with -1."""
    return _matrix([stages.retriever.catalogue.find_rows(slate.items) for slate in slates])


class PairScorer:
    """Scores items for requests in this process with the exported file.

    Args:
        model: Folder of the exported model.
        views: Views of the fitted features.
        moment: Time as of which statistics are looked up, as by a server that was refreshed then; None: the beginning
            of each request's day.
        item_values: Returns the columns of the log that items have of their own; None: they have none.
    """

    def __init__(
        self,
        model: Path,
        views: ViewIndex,
        moment: datetime | None = None,
        item_values: Callable[[pl.Series], Mapping[str, pl.Series]] | None = None,
    ) -> None:
        self._item_values = item_values or (lambda items: {})
        signature = Signature.read(model / FOLDER)
        plan = Preprocessing.load(model / Files.PREPROCESSING).plan
        self._assembler = TensorAssembler(plan, signature)
        self._data, self._views, self._moment = plan.declared.data, views, moment
        self._reader = InputReader(self._assembler.requirements, self._assembler.widths, max_rows=sys.maxsize)
        self._scorer = open_scorer(model / FOLDER)
        self._newest_snapshot: tuple[datetime, Snapshot] | None = None

    def score(self, request: SlateRequest, items: pl.Series) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
        """Return the scores of items, and the scores of further labels by column; each of shape (items,)."""
        (scored,) = self.score_all([request], [items])
        return scored

    def score_all(
        self, requests: Sequence[SlateRequest], items: Sequence[pl.Series]
    ) -> list[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
        """Return what `score` returns for every request.

        Requests of a day are scored together, some rows at a time; the statistics of one day are in memory.
        """
        scored: dict[int, tuple[np.ndarray, Mapping[str, np.ndarray]]] = {}
        moments = [self._moment_of(request.now) for request in requests]
        batches: dict[tuple[datetime, int], list[int]] = {}
        rows: Counter[datetime] = Counter()
        for number, moment in enumerate(moments):
            batches.setdefault((moment, rows[moment] // _BATCH_ROWS), []).append(number)
            rows[moment] += len(items[number])
        for (moment, _), numbers in sorted(batches.items()):
            scores = self._score_rows(
                [requests[number] for number in numbers], [items[number] for number in numbers], moment
            )
            scored |= dict(zip(numbers, scores, strict=True))
        return [scored[number] for number in range(len(requests))]

    def _score_rows(
        self, requests: Sequence[SlateRequest], items: Sequence[pl.Series], moment: datetime
    ) -> list[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
        names = self._assembler.signature.scores
        lengths = [len(request_items) for request_items in items]
        ends = np.cumsum(lengths)[:-1]
        rows = sum(lengths)
        label_scores = np.empty((0, len(names)), np.float32)
        if rows:
            tensors = self._input_tensors(requests, items, lengths)
            inputs = self._reader.read(tensors, int(requests[0].now.timestamp() * 1_000_000))
            slates = None if len(requests) == 1 else np.repeat(np.arange(len(requests)), lengths)
            model_tensors = self._assembler.tensors(inputs.columns, self._snapshot(moment).tables, rows, slates)
            label_scores = self._scorer.scores(dict(model_tensors)).reshape(rows, len(names))
        return [
            (request_scores[:, 0], dict(zip(names[1:], request_scores.T[1:], strict=True)))
            for request_scores in np.split(label_scores, ends)
        ]

    def _input_tensors(
        self, requests: Sequence[SlateRequest], items: Sequence[pl.Series], lengths: Sequence[int]
    ) -> list[Tensor]:
        """Return the inputs of all rows; of a single request, columns of its context have one row."""
        assert self._data.user
        contexts: list[Mapping[str, Any]] = [
            {**request.context, self._data.user: request.user, Columns.TIME: microseconds(request.now)}
            for request in requests
        ]
        all_items, tensors = pl.concat(items), []
        item_values = self._item_values(all_items)
        for spec in self._reader.inputs:
            if spec.name == self._data.item:
                tensors.append(column_tensor(self._data.by_name[spec.name], all_items))
                continue
            if spec.name in item_values:
                tensors.append(column_tensor(self._data.by_name[spec.name], item_values[spec.name]))
                continue
            values = [context.get(spec.name) for context in contexts]
            if any(value is not None for value in values):
                sent = _tensor(spec, values)
                tensors.append(sent if len(requests) == 1 else _repeat_rows(sent, lengths))
        return tensors

    def _moment_of(self, now: datetime) -> datetime:
        if self._moment is not None:
            return self._moment
        return self._views.start_of(now.astimezone(ZoneInfo(self._views.timezone)).date())

    def _snapshot(self, moment: datetime) -> Snapshot:
        if self._newest_snapshot is None or self._newest_snapshot[0] != moment:
            self._newest_snapshot = None  # freed before the next one is read
            self._newest_snapshot = moment, load_with_users(self._assembler, self._views, moment)
        return self._newest_snapshot[1]


def _tensor(spec: InputSpec, values: list[Any]) -> Tensor:
    texts = spec.datatype == BYTES
    sent_values = [None if value is None else str(value) for value in values] if texts else values
    return from_values(
        TensorHead.model_validate({"name": spec.name, "datatype": spec.datatype, "shape": [len(values)]}), sent_values
    )


class ItemScores:
    """Scores of any items for the users of requests; those of candidates are known."""

    def __init__(
        self, scorer: PairScorer, requests: Sequence[SlateRequest], candidates: Sequence[SlateCandidates],
        scores: Sequence[Mapping[str, np.ndarray]],
    ) -> None:  # fmt: skip
        self._scorer, self._requests = scorer, requests
        self._candidate_scores = pl.concat(
            pl.DataFrame(
                {
                    "user": np.full(len(request_candidates.items), number, np.int64),
                    "item": request_candidates.items,
                    "score": np.asarray(request_scores[SCORE], np.float64),
                }
            )
            for number, (request_candidates, request_scores) in enumerate(zip(candidates, scores, strict=True))
        )

    def of_pairs(self, users: np.ndarray, items: pl.Series) -> np.ndarray:
        """Return the scores of items for users, shape (pairs,).

        Args:
            users: Numbers of the requests whose users the scores are for, int64, shape (pairs,), in ascending order.
            items: Ids of the items.
        """
        pairs = pl.DataFrame({"user": users, "item": items})
        known_scores = pairs.join(self._candidate_scores, on=["user", "item"], how="left", maintain_order="left")[
            "score"
        ]
        scores, is_unknown = known_scores.to_numpy(writable=True), known_scores.is_null().to_numpy()
        items_by_user = {user: rows["item"] for (user,), rows in _groups(pairs.filter(is_unknown), "user")}
        scored = self._scorer.score_all([self._requests[user] for user in items_by_user], [*items_by_user.values()])
        scores[is_unknown] = np.concatenate([np.empty(0), *(user_scores for user_scores, _ in scored)])
        return scores


def _repeat_rows(tensor: Tensor, counts: Sequence[int]) -> Tensor:
    """Return a tensor of one dimension with every row repeated."""
    rows: Any = (
        np.repeat(np.array(tensor.data, object), counts).tolist()
        if isinstance(tensor.data, list)
        else np.repeat(tensor.data, counts)
    )
    return replace(tensor, shape=(sum(counts),), data=rows)


class _Diversity:
    """Intra-list diversity, by the column of `ordering.diversity`, or else by another item column."""

    def __init__(self, stages: Recommender) -> None:
        items = stages.retriever.catalogue.items
        declared = stages.ordering.diversity
        item_columns = [name for name in items.columns if name != stages.retriever.catalogue.key]
        lists = [name for name in item_columns if isinstance(items.schema[name], pl.List | pl.Array)]
        name = (
            declared.by
            if declared is not None and declared.by in item_columns
            else next(iter((*lists, *item_columns)), None)
        )
        self._column = items[name] if name is not None else None

    def of(self, lists: Rows) -> np.ndarray:
        """Return the mean of 1 - likeness over the pairs of each list's first items; NaN with fewer than two."""
        diversities = np.full(len(lists), np.nan)
        measured_lists = lists[:_DIVERSITY_USERS, :TOP_K]
        diversities[: len(measured_lists)] = [self._list_diversity(rows[rows >= 0]) for rows in measured_lists]
        return diversities

    def _list_diversity(self, rows: Rows) -> float:
        return float("nan") if self._column is None else intra_list_diversity(self._column.gather(rows))


def read_histories(data: Data, log: DayTable, test: frozenset[date], users: pl.Series) -> dict[Any, UserHistory]:
    """Return the items that users were shown and took on the days before the test days."""
    assert data.user and data.item
    first_day = min(test)
    history_days = frozenset(
        part.day for part in log.days if first_day - timedelta(days=_HISTORY_DAYS) <= part.day < first_day
    )
    if not history_days:
        return {}
    rows = (
        log.scan(history_days)
        .filter(pl.col(data.user).is_in(users.implode()))
        .select(data.user, data.item, Columns.TIME, pl.col(Columns.LABEL) == 1)
        .drop_nulls(data.item)
        .sort(Columns.TIME, maintain_order=True)
        .collect()
    )
    return {
        user: UserHistory(user_rows[data.item], user_rows[Columns.TIME], user_rows[Columns.LABEL])
        for (user,), user_rows in _groups(rows, data.user)
    }


def _groups(rows: pl.DataFrame, by: str) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    yield from rows.group_by([by], maintain_order=True)


def _matrix(lists: Sequence[Rows]) -> Rows:
    width = max((len(rows) for rows in lists), default=0)
    matrix = np.full((len(lists), max(width, 1)), -1, np.int32)
    for list_number, rows in enumerate(lists):
        matrix[list_number, : len(rows)] = rows
    return matrix
