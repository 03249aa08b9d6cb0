"""The stages of a recommendation but for scoring: `begin` finds candidates, and `slate` orders the scored ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import Columns, ShortlistError, score_column
from shortlist.slates.candidate_columns import NOW, RANK_OF, SCORE, rank_types
from shortlist.slates.filters.apply import FilteredCandidates, apply_filters, combine_masks
from shortlist.slates.filters.base import EPOCH, FilterRequest, UserHistory, microseconds
from shortlist.slates.ordering.base import Likeness
from shortlist.slates.ordering.likeness import likeness_by
from shortlist.slates.ordering.order import PlacePropensities, columns_read, order
from shortlist.slates.past_items import PastItems
from shortlist.slates.retrieval.catalogue import Rows, find_positions
from shortlist.slates.retrieval.retriever import Retriever
from shortlist.slates.retrieval.source import Queries
from shortlist.slates.retrieval.union import NO_RANK, Candidates
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import SourceSection
from shortlist.storage.artefacts import digest_of_files

RECENT_WINDOW: Final = timedelta(days=7)
"""Age up to which a user's live items are recent items for the sources; older ones are part of the fit or refresh."""
_NO_ITEM: Final = -1


class SlateRequestError(ShortlistError):
    """An invalid request for a slate."""


@dataclass(frozen=True)
class SlateRequest:
    """A request for a slate.

    Attributes:
        id: Id of the request, which seeds the draws.
        user: Value of `data.user`; None: anonymous.
        k: Number of items.
        now: Moment of the request, with a time zone.
        context: Known columns of the request and of the user; missing columns are null.
        recent: Items that the user took last, newest first; None: those of `history`, then those of the fit.
        history: History of the user; None: unknown.
        latest: History of the user as of ordering, where it has changed since; None: it has not.
    """

    id: str
    user: int | str | None
    k: int
    now: datetime
    context: Mapping[str, Any] = field(default_factory=dict)
    recent: Sequence[int | str] | None = None
    history: UserHistory | None = None
    latest: UserHistory | None = None


class RemovedCandidates(NamedTuple):
    """Candidates that filters removed."""

    items: pl.Series
    filters: tuple[str, ...]
    """Name of the filter that removed each first."""


@dataclass(frozen=True)
class SlateCandidates:
    """Candidates that may be shown, before scoring."""

    items: pl.Series
    frame: Callable[[], pl.DataFrame]
    """Function that looks up `rows`."""
    sources: tuple[str, ...]
    """Source that ranked each candidate highest."""
    retrieved: int
    """Number of candidates before filters."""
    removed: RemovedCandidates
    fallback: tuple[str, ...]
    """Fallback sources that were asked."""
    alike_by: str | None = None
    """Column of `rows` by which ordering computes likeness; None: it does not."""

    @cached_property
    def rows(self) -> pl.DataFrame:
        """One row per candidate: the item, and the columns that filters and ordering read."""
        return self.frame()

    @cached_property
    def likeness(self) -> Likeness | None:
        """Likeness of the candidates; None where ordering does not read it, or without candidates."""
        return likeness_by(self.rows[self.alike_by]) if self.alike_by is not None and len(self.items) else None

    def look_up(self) -> None:
        """Look up the columns of ordering, which `slate` does otherwise: a server does it while the model scores."""
        _ = self.rows, self.likeness

    @property
    def removed_counts(self) -> Counter[str]:
        """Number of candidates that each filter removed first, by its name; filters that removed none are left out."""
        return Counter(self.removed.filters)

    @property
    def source_counts(self) -> Mapping[str, int]:
        """Number of candidates that each source ranked highest, by its name; sources without any are left out."""
        return Counter(self.sources)

    def head(self, max_items: int) -> SlateCandidates:
        """Return the first candidates."""
        if len(self.items) <= max_items:
            return self
        return replace(
            self, items=self.items[:max_items], frame=lambda: self.rows[:max_items], sources=self.sources[:max_items]
        )


@dataclass(frozen=True)
class Slate:
    """A slate; arrays of shape (n_items,), in the order in which items are shown."""

    items: pl.Series
    rows: np.ndarray
    """Rows of the items among the candidates, int64."""
    scores: np.ndarray
    """Scores of the model, float64."""
    values: np.ndarray
    """Values by the formula and the boosts, float64."""
    sources: tuple[str, ...]
    propensities: np.ndarray
    """Probability of each place, given those above, float64."""
    explored: bool
    """Whether places were drawn."""
    without_value: int
    """Number of candidates left out because their value is null or not finite."""
    removed: RemovedCandidates
    """Candidates that filters removed before ordering, by `SlateRequest.latest`."""
    place_propensities: Callable[[], PlacePropensities]
    """Function that computes the probability of each item at its place, over all slates of the request."""
    given_up: Callable[[], float]
    """Function that computes the expected label that drawn places give up, by the scores: those of the slate in the
    best order less those of this slate; 0 where nothing was drawn."""


class _Pool(NamedTuple):
    """Retrieved candidates of a request."""

    rows: Rows
    ranks: NDArray[np.int32]
    sources: NDArray[np.object_]
    """Name of the source that ranked each highest."""
    filtered: FilteredCandidates
    fallback: tuple[str, ...] = ()
    """Fallback sources that were asked."""


class ReleaseUsers(NamedTuple):
    """User columns and histories in a release."""

    columns: pl.DataFrame | None = None
    """User columns that stages read, sorted by the first one, the user; None: requests bring them."""
    past: PastItems | None = None
    """Histories from the log; None: no filter reads them."""


class Recommender:
    """The stages of a release but for the model.

    Args:
        retriever: The fitted sources.
        filters: The spec's section.
        ordering: The spec's section.
        lists: Items of the files that filters read, by the name of the filter.
        types: Types of candidates' columns, for the context of requests; None: types of the values.
        users: User columns and histories.
        digests: SHA-256 of the release's files by relative path.
        labels: Further labels whose scores ordering may read (`data.labels`).
    """

    def __init__(
        self,
        retriever: Retriever,
        filters: Filters,
        ordering: Ordering,
        lists: Mapping[str, pl.Series] | None = None,
        types: Mapping[str, pl.DataType] | None = None,
        users: ReleaseUsers = ReleaseUsers(),  # noqa: B008 - it cannot be changed
        digests: Mapping[str, str] | None = None,
        labels: Collection[str] = (),
    ) -> None:
        self._retriever = retriever
        self._filters = filters
        self._ordering = ordering
        self._lists = lists or {}
        self._types = types or {}
        self._users = users
        self.digests = digests or {}
        self.digest = digest_of_files(self.digests)
        labels = frozenset(map(score_column, labels))
        items = retriever.catalogue.items
        items = items.with_columns(items[retriever.catalogue.key].alias(Columns.ITEM))
        read = dict.fromkeys((*(name for rule in filters.rules for name in rule.reads), *columns_read(ordering)))
        self._items = {name: items[name] for name in items.columns if name in read or name == Columns.ITEM}
        self._keep_masks = {
            rule.name: rule.keeps(items, FilterRequest(EPOCH, None, self._lists))
            for rule in filters.rules
            if not rule.asks_request and {*rule.reads} <= {*items.columns}
        }
        """Masks over the catalogue of filters that do not depend on the request, computed once."""
        open_rules = [rule for rule in filters.rules if rule.name not in self._keep_masks]
        self._filtered_by = {Columns.ITEM, *(name for rule in open_rules for name in rule.reads)}
        self._request_rules = [rule for rule in open_rules if rule.asks_request]
        self._scores_read = [name for name in columns_read(ordering) if name in labels]
        self._ranks = [name for name in rank_types(retriever.section) if name in read]
        available = {*self._items, *self._ranks, *labels, SCORE, NOW}
        self._request_columns = [name for name in read if name not in available]
        self._user_type = retriever.recent.users.dtype
        sources = retriever.section.sources.values()
        self._source_context = tuple(dict.fromkeys(name for source in sources for name in _source_context(source)))
        """Columns of a request that a source reads."""
        alike_by = None if ordering.diversity is None else ordering.diversity.by
        # Not by a score, which candidates do not have before scoring.
        self._alike_by = None if alike_by in (*labels, SCORE) else alike_by

    @property
    def size(self) -> int:
        """Number of items that can be recommended."""
        return self._retriever.catalogue.size

    @property
    def candidates(self) -> int:
        """Largest number of candidates of a request, before fallbacks."""
        return self._retriever.section.candidates

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources."""
        return tuple(self._retriever.sources)

    @property
    def filters(self) -> Filters:
        """The section."""
        return self._filters

    @property
    def ordering(self) -> Ordering:
        """The section."""
        return self._ordering

    @property
    def retriever(self) -> Retriever:
        """The fitted sources."""
        return self._retriever

    @property
    def lists(self) -> Mapping[str, pl.Series]:
        """Items of the files that filters read, by the name of the filter."""
        return self._lists

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of the request and of the user that a stage reads."""
        return tuple(dict.fromkeys((*self._request_columns, *self._source_context)))

    @property
    def window(self) -> timedelta | None:
        """Length of the user's history that stages read; None: they read none."""
        reads_recent = any(getattr(source, "reads_recent", True) for source in self._retriever.section.sources.values())
        windows = (self._filters.remembers, RECENT_WINDOW if reads_recent else None)
        return max((window for window in windows if window is not None), default=None)

    @property
    def scores_read(self) -> tuple[str, ...]:
        """Columns of further labels' scores that ordering reads."""
        return tuple(self._scores_read)

    @property
    def item_type(self) -> pl.DataType:
        """Type of the ids of items."""
        return self._retriever.catalogue.ids.dtype

    def without_exploration(self) -> Self:
        """Return the same stages with an ordering that draws no place."""
        stages = copy(self)
        stages._ordering = self._ordering.model_copy(update={"explore": None})
        return stages

    @property
    def item_columns(self) -> tuple[str, ...]:
        """Columns of the log of which each candidate has its item's newest value."""
        return tuple(self._retriever.section.item_columns)

    def item_values(self, items: pl.Series) -> dict[str, pl.Series]:
        """Return the item columns of candidates; null for an item that the catalogue does not have."""
        if not self.item_columns:
            return {}
        catalogue = self._retriever.catalogue
        rows = pl.Series(catalogue.find_rows(items))
        places = rows.set(rows < 0, None).cast(pl.UInt32)
        return {name: catalogue.items[name].gather(places) for name in self.item_columns}

    def has_items(self, items: pl.Series) -> list[bool]:
        """Return whether the catalogue has each of some items."""
        return [bool(row >= 0) for row in self._retriever.catalogue.find_rows(items)]

    def find_user_context(self, user: int | str | None) -> dict[str, Any]:
        """Return the columns of a user's side tables that stages read; empty for an unknown user."""
        (context,) = self.find_user_contexts([user])
        return context

    def find_user_contexts(self, users: Sequence[int | str | None]) -> list[dict[str, Any]]:
        """Return what `find_user_context` returns for every user."""
        columns = self._users.columns
        if columns is None or columns.width == 1:
            return [{} for _ in users]
        key = columns.to_series(0)
        rows = find_positions(pl.Series(users, dtype=key.dtype, strict=False), key)
        contexts = iter(_select_frame_rows(columns[:, 1:], rows[rows >= 0]).to_dicts())
        return [next(contexts) if row >= 0 else {} for row in rows]

    def find_user_history(self, user: int | str | None) -> UserHistory | None:
        """Return a user's history in the log of the release; None for an unknown user."""
        past = self._users.past
        return None if past is None else past.find_history(user, self._retriever.catalogue.ids)

    def find(self, request: SlateRequest) -> SlateCandidates:
        """Return the candidates of a request after filters; where fewer than k are left, with those of the fallbacks.

        Raises:
            SlateRequestError: The number of requested items is 0 or above that of the catalogue.
        """
        return self.begin(request)()

    def begin(self, request: SlateRequest) -> Callable[[], SlateCandidates]:
        """Start the part of `find` that other threads do; return a function that returns the candidates.

        Raises:
            SlateRequestError: As for `find`.
        """
        self._check_size(request)
        queries = self._queries([request])
        finish_retrieval = self._retriever.begin(queries)

        def finish() -> SlateCandidates:
            (candidates,) = self._filter_candidates([request], queries, finish_retrieval())
            return candidates

        return finish

    def find_all(self, requests: Sequence[SlateRequest]) -> list[SlateCandidates]:
        """Return what `find` returns for every request; the sources are asked, and filters applied, for many at once.

        Raises:
            SlateRequestError: The number of requested items is 0 or above that of the catalogue.
        """
        batches: dict[tuple[bool, ...], list[int]] = {}
        for number, request in enumerate(requests):
            self._check_size(request)
            # A source may tell a null from a missing column, and queries have the same columns.
            batches.setdefault(tuple(name in request.context for name in self._source_context), []).append(number)
        candidates: dict[int, SlateCandidates] = {}
        for numbers in batches.values():
            batch = [requests[number] for number in numbers]
            queries = self._queries(batch)
            batch_candidates = self._filter_candidates(batch, queries, self._retriever.candidates(queries))
            candidates |= zip(numbers, batch_candidates, strict=True)
        return [candidates[number] for number in range(len(requests))]

    def _check_size(self, request: SlateRequest) -> None:
        size = self._retriever.catalogue.size
        if not 1 <= request.k <= size:
            raise SlateRequestError(f"k: got {request.k}; wanted 1 to {size}, the items that there are")

    def _filter_candidates(
        self, requests: Sequence[SlateRequest], queries: Queries, retrieved: Candidates
    ) -> list[SlateCandidates]:
        is_item = retrieved.items != _NO_ITEM
        counts = is_item.sum(axis=1).tolist()
        rows, ranks = retrieved.items[is_item], retrieved.ranks[is_item]
        best_source = np.where(ranks == NO_RANK, np.iinfo(np.int32).max, ranks).argmin(axis=1)
        sources = np.array(retrieved.sources, object)[best_source]
        filtered = self._filter_rows(rows, ranks, requests, counts).split(counts)
        ends = np.cumsum(counts).tolist()
        pools = [
            _Pool(rows[end - count : end], ranks[end - count : end], sources[end - count : end], request_filtered)
            for end, count, request_filtered in zip(ends, counts, filtered, strict=True)
        ]
        if self._filters.fallback:
            pools = [
                self._with_fallbacks(pool, request, queries.slice(number, number + 1), retrieved.sources)
                if len(pool.filtered.rows) < request.k
                else pool
                for number, (request, pool) in enumerate(zip(requests, pools, strict=True))
            ]
        kept_counts = [len(pool.filtered.rows) for pool in pools]
        kept_rows = np.concatenate([pool.rows[pool.filtered.rows] for pool in pools])
        kept_ranks = np.concatenate([pool.ranks[pool.filtered.rows] for pool in pools])
        ids = self._items[Columns.ITEM]
        items = _select_rows(ids, kept_rows)
        frame = cache(lambda: self._frame(kept_rows, kept_ranks, requests, kept_counts))
        candidates, first = [], 0
        for pool, count in zip(pools, kept_counts, strict=True):
            removed_positions = np.flatnonzero(pool.filtered.removed_by >= 0)
            candidates.append(
                SlateCandidates(
                    items=items.slice(first, count),
                    frame=partial(_slice_frame, frame, first, count),
                    sources=tuple(pool.sources[pool.filtered.rows].tolist()),
                    retrieved=len(pool.rows),
                    removed=RemovedCandidates(
                        _select_rows(ids, pool.rows[removed_positions]) if len(removed_positions) else ids.clear(),
                        tuple(pool.filtered.names[rule] for rule in pool.filtered.removed_by[removed_positions]),
                    ),
                    fallback=pool.fallback,
                    alike_by=self._alike_by,
                )
            )
            first += count
        return candidates

    def _with_fallbacks(
        self, pool: _Pool, request: SlateRequest, queries: Queries, source_names: Sequence[str]
    ) -> _Pool:
        """Return the candidates of a request and those of the fallbacks, until k may be shown."""
        for name, fallback_rows in self._iter_fallback_rows(queries):
            if len(pool.filtered.rows) >= request.k:
                break
            is_new = ~np.isin(fallback_rows, pool.rows)
            new_rows = fallback_rows[is_new]
            new_ranks = np.zeros((len(new_rows), len(source_names)), np.int32)
            new_ranks[:, source_names.index(name)] = np.flatnonzero(is_new) + 1
            pool = _Pool(
                np.concatenate([pool.rows, new_rows]),
                np.concatenate([pool.ranks, new_ranks]),
                np.concatenate([pool.sources, np.full(len(new_rows), name, object)]),
                pool.filtered.append(self._filter_rows(new_rows, new_ranks, [request], [len(new_rows)])),
                pool.fallback if name in pool.fallback else (*pool.fallback, name),
            )
        return pool

    def slate(
        self, request: SlateRequest, candidates: SlateCandidates, scores: np.ndarray,
        further: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> Slate:  # fmt: skip
        """Return the slate of a request.

        Args:
            request: The request.
            candidates: Candidates of the request.
            scores: Scores of the model, shape (n_candidates,).
            further: Scores of further labels by column, `score_<label>`, same shape.

        Raises:
            SlateRequestError: The number of scores is not that of the candidates, or ordering reads others.
        """
        score_columns = {SCORE: scores, **further}
        for name, column_scores in score_columns.items():
            if len(column_scores) != len(candidates.items):
                column_title = "scores" if name == SCORE else name
                raise SlateRequestError(
                    f"{column_title}: got {len(column_scores)} for {len(candidates.items)} candidates"
                )
        if missing := [name for name in self._scores_read if name not in score_columns]:
            raise SlateRequestError(f"ordering reads '{missing[0]}'; the model gave {', '.join(score_columns)}")
        model_scores = np.asarray(scores, np.float64)
        # By `hstack`, as `with_columns` waits for Polars' threads.
        scored = candidates.rows.hstack(
            [pl.Series(name, np.asarray(column_scores, np.float64)) for name, column_scores in score_columns.items()]
        )
        allowed_rows, removed = self._filter_before_ordering(request, candidates)
        if allowed_rows is None:
            ordered = order(scored, self._ordering, request.k, request.id, candidates.likeness)
        else:
            ordered = order(scored[allowed_rows], self._ordering, request.k, request.id)
        rows = ordered.rows if allowed_rows is None else allowed_rows[ordered.rows]

        def given_up() -> float:
            best_rows = ordered.best_rows() if allowed_rows is None else allowed_rows[ordered.best_rows()]
            return float(model_scores[best_rows].sum() - model_scores[rows].sum())

        return Slate(
            items=_select_rows(candidates.items, rows),
            rows=rows,
            scores=model_scores[rows],
            values=ordered.values,
            sources=tuple(candidates.sources[row] for row in rows),
            propensities=ordered.propensities,
            explored=ordered.explored,
            without_value=ordered.without_value,
            removed=removed,
            place_propensities=ordered.place_propensities,
            given_up=given_up,
        )

    def _filter_before_ordering(
        self, request: SlateRequest, candidates: SlateCandidates
    ) -> tuple[np.ndarray | None, RemovedCandidates]:
        """Return the candidates that are still allowed, None for all; before ordering, so that propensities stay exact.

        Filters that do not depend on the request are not applied again.
        """
        none_removed = RemovedCandidates(candidates.items.clear(), ())
        if request.latest is None or not self._request_rules:
            return None, none_removed
        filter_request = FilterRequest(request.now, request.latest, self._lists)
        filtered = apply_filters(candidates.rows, self._request_rules, [filter_request], [len(candidates.items)])
        removed_positions = np.flatnonzero(filtered.removed_by >= 0)
        if not len(removed_positions):
            return None, none_removed
        names = tuple(filtered.names[rule] for rule in filtered.removed_by[removed_positions])
        return filtered.rows, RemovedCandidates(candidates.items[removed_positions], names)

    def _users_of(self, requests: Sequence[SlateRequest]) -> pl.Series:
        return pl.Series([request.user for request in requests], dtype=self._user_type, strict=False)

    def _queries(self, requests: Sequence[SlateRequest]) -> Queries:
        """Return the queries of requests, which have the same columns of sources in their contexts."""
        catalogue, width = self._retriever.catalogue, self._retriever.section.recent_items
        users = self._users_of(requests)
        recent = self._retriever.find_recent_items(users)
        newest = [self._newest_items(request) for request in requests]
        rows = catalogue.find_rows(pl.concat(newest))
        end = 0
        for number, (request, items) in enumerate(zip(requests, newest, strict=True)):
            first, end = end, end + len(items)
            if request.recent is not None:
                recent[number] = _NO_ITEM
            if first == end:
                continue
            request_rows = rows[first:end][rows[first:end] != _NO_ITEM]
            # Items of the fit may also be live items: an item of both lists counts once, where it is newest.
            fitted = recent[number][~np.isin(recent[number], request_rows)]
            recent_rows = np.concatenate([request_rows, fitted])[:width]
            recent[number, : len(recent_rows)] = recent_rows
            recent[number, len(recent_rows) :] = _NO_ITEM
        context = [self._context_values(name, requests) for name in self._source_context if name in requests[0].context]
        return Queries(users, recent, pl.DataFrame(context))

    def _newest_items(self, request: SlateRequest) -> pl.Series:
        """Return the items that the user took since the fit, or those that the request names, newest first."""
        ids = self._retriever.catalogue.ids
        if request.recent is not None:
            return pl.Series(list(request.recent), dtype=ids.dtype, strict=False)
        past = request.history
        return ids.clear() if past is None else past.positive_items.cast(ids.dtype)

    def _context_values(self, name: str, requests: Sequence[SlateRequest]) -> pl.Series:
        values = [request.context.get(name) for request in requests]
        return pl.Series(name, values, self._types.get(name), strict=False)

    def _filter_rows(
        self, rows: Rows, ranks: NDArray[np.int32], requests: Sequence[SlateRequest], counts: Sequence[int]
    ) -> FilteredCandidates:
        keep_masks = {name: keep_mask[rows] for name, keep_mask in self._keep_masks.items()}
        if len(keep_masks) == len(self._filters.rules):
            return combine_masks(keep_masks, len(rows))
        frame = self._frame(rows, ranks, requests, counts, self._filtered_by)
        filter_requests = [FilterRequest(request.now, request.history, self._lists) for request in requests]
        return apply_filters(frame, self._filters.rules, filter_requests, counts, keep_masks)

    def _frame(
        self,
        rows: Rows,
        ranks: NDArray[np.int32],
        requests: Sequence[SlateRequest],
        counts: Sequence[int],
        columns_to_read: Collection[str] | None = None,
    ) -> pl.DataFrame:
        """Return the columns of the candidates of requests, some for each; None: all that a stage reads."""
        # Column by column: a frame's own methods wait for Polars' threads, which takes longer for a few hundred rows.
        moments = [microseconds(request.now) for request in requests]
        values = {NOW: pl.Series(NOW, moments, pl.Int64()).cast(pl.Datetime("us", "UTC"))}
        values |= {name: self._context_values(name, requests) for name in self._request_columns}
        of_row = pl.Series(np.repeat(np.arange(len(requests), dtype=np.uint32), counts))
        columns = [
            *(
                _select_rows(column, rows).alias(name)
                for name, column in self._items.items()
                if columns_to_read is None or name in columns_to_read
            ),
            *(
                column.new_from_index(0, len(rows)) if len(column) == 1 else column[of_row]
                for name, column in values.items()
                if columns_to_read is None or name in columns_to_read
            ),
            *(self._rank(name, ranks) for name in self._ranks if columns_to_read is None or name in columns_to_read),
        ]
        return pl.DataFrame(columns)

    def _rank(self, name: str, ranks: NDArray[np.int32]) -> pl.Series:
        of_source = ranks[:, self.sources.index(name.removeprefix(RANK_OF))].astype(np.float64)
        return pl.Series(name, np.where(of_source == NO_RANK, np.nan, of_source), nan_to_null=True)

    def _iter_fallback_rows(self, queries: Queries) -> Iterator[tuple[str, Rows]]:
        """Yield lists of doubling length of each fallback, until it has no more items or `max_fallback` is reached."""
        longest = min(self._retriever.catalogue.size, self._filters.max_fallback)
        for name in self._filters.fallback:
            max_items, previous_items = self._retriever.section.max_candidates(name), -1
            while previous_items < max_items:
                previous_items, max_items = max_items, min(2 * max_items, longest)
                ranked_rows = self._retriever.sources[name].retrieve(queries, max_items).items[0]
                items = ranked_rows[ranked_rows != _NO_ITEM]
                yield name, items
                if len(items) < max_items:
                    break


def _select_rows(column: pl.Series, rows: NDArray[Any]) -> pl.Series:
    """Return some rows of a column; as a series, since Polars checks numpy indices first, which is slower."""
    return column[pl.Series(rows.astype(np.uint32))]


def _select_frame_rows(frame: pl.DataFrame, rows: NDArray[Any]) -> pl.DataFrame:
    return pl.DataFrame([_select_rows(column, rows) for column in frame])


def _slice_frame(frame: Callable[[], pl.DataFrame], first: int, count: int) -> pl.DataFrame:
    return frame().slice(first, count)


def _source_context(source: SourceSection) -> tuple[str, ...]:
    # A section of the registry is a `SourceKind`.
    return tuple(getattr(source, "reads_context", ()))
