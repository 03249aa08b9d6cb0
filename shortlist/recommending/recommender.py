"""One request's way through the stages; scoring happens between the two halves, wherever the model is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import Columns, ShortlistError, score_column
from shortlist.filters.apply import Filtered, apply_filters, filtered_by
from shortlist.filters.base import EPOCH, FilterRequest, UserHistory, microseconds
from shortlist.ordering.base import Likeness
from shortlist.ordering.likeness import likeness_by
from shortlist.ordering.order import columns_read, order
from shortlist.recommending.candidate_columns import NOW, RANK_OF, SCORE, rank_types
from shortlist.recommending.past_items import PastItems
from shortlist.retrieval.catalogue import Rows, places_of
from shortlist.retrieval.retriever import Retriever
from shortlist.retrieval.source import Queries
from shortlist.retrieval.union import NO_RANK, Candidates
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import SourceSection
from shortlist.storage.artefacts import digest_of_files

RECENT_WINDOW: Final = timedelta(days=7)
"""How long a user's live items are recent ones for the sources; what is older was fitted, or refreshed."""
_NO_ITEM: Final = -1


class SlateRequestError(ShortlistError):
    """A request that cannot be answered as it was asked."""


@dataclass(frozen=True)
class SlateRequest:
    """Whom a slate is for.

    Attributes:
        id: Of the request; whatever is drawn follows from it.
        user: Value of `data.user`; None: anonymous.
        k: Items wanted.
        now: Moment of the request, with a time zone.
        context: Known columns of the request and of the user; those that are left out are null.
        recent: Items that the user took last, newest first; None: those of `history`, then those known when the sources
            were fitted.
        history: What the user was shown and took; None: not known.
        latest: Likewise when the slate is put in order, where that has changed since; None: it has not.
    """

    id: str
    user: int | str | None
    k: int
    now: datetime
    context: Mapping[str, Any] = field(default_factory=dict)
    recent: Sequence[int | str] | None = None
    history: UserHistory | None = None
    latest: UserHistory | None = None


class Removed(NamedTuple):
    """Candidates that filters removed."""

    items: pl.Series
    filters: tuple[str, ...]
    """Name of the filter that removed each first."""


@dataclass(frozen=True)
class FoundCandidates:
    """Candidates that may be shown, not scored yet."""

    items: pl.Series
    frame: Callable[[], pl.DataFrame]
    """Looks up `rows`."""
    sources: tuple[str, ...]
    """Source that ranked each highest."""
    retrieved: int
    """Candidates before filters."""
    removed: Removed
    fallback: tuple[str, ...]
    """Sources that were asked for more."""
    alike_by: str | None = None
    """Column of `rows` by which ordering asks how alike they are; None: it does not."""

    @cached_property
    def rows(self) -> pl.DataFrame:
        """One row for each: item, and the columns that filters and ordering read."""
        return self.frame()

    @cached_property
    def likeness(self) -> Likeness | None:
        """How alike they are; None where that is not asked, or of no candidates."""
        return likeness_by(self.rows[self.alike_by]) if self.alike_by is not None and len(self.items) else None

    def look_up(self) -> None:
        """Look up what ordering reads, which is otherwise done by `slate`: a server does it while the model scores."""
        _ = self.rows, self.likeness

    @property
    def removed_counts(self) -> Counter[str]:
        """Candidates that each filter removed first, by its name; filters that removed none are left out."""
        return Counter(self.removed.filters)

    @property
    def source_counts(self) -> Mapping[str, int]:
        """Candidates that each source ranked highest, by its name; sources without any are left out."""
        return Counter(self.sources)

    def head(self, most: int) -> FoundCandidates:
        """Return the first candidates."""
        if len(self.items) <= most:
            return self
        return replace(self, items=self.items[:most], frame=lambda: self.rows[:most], sources=self.sources[:most])


@dataclass(frozen=True)
class Slate:
    """An answer; arrays of shape (n_items,), in the order in which items are shown."""

    items: pl.Series
    rows: np.ndarray
    """Int64: their places among the candidates."""
    scores: np.ndarray
    """Float64: what the model gave."""
    values: np.ndarray
    """Float64: what each is worth by the formula and the boosts."""
    sources: tuple[str, ...]
    propensities: np.ndarray
    """Float64: probability of each place, given those above."""
    explored: bool
    """Whether places were drawn."""
    without_value: int
    """Candidates left out because their value is null or not finite."""
    removed: Removed
    """Candidates that filters removed after they were found, by `SlateRequest.latest`."""


class KnownUsers(NamedTuple):
    """What a release knows of users."""

    columns: pl.DataFrame | None = None
    """Those that stages read, sorted by the first one, the user; None: requests tell them."""
    past: PastItems | None = None
    """What they were shown and took by the log; None: no filter asks for it."""


class Recommender:
    """The stages of a release but for the model.

    Args:
        retriever: The fitted sources.
        filters: The spec's section.
        ordering: The spec's section.
        lists: Items of the files that filters read, by the name of the filter.
        types: Of candidates' columns, by which what a request tells is typed; None: as its values say.
        users: What is known of users.
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
        users: KnownUsers = KnownUsers(),  # noqa: B008 - it cannot be changed
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
        self._decided = {
            rule.name: rule.keeps(items, FilterRequest(EPOCH, None, self._lists))
            for rule in filters.rules
            if not rule.asks_request and {*rule.reads} <= {*items.columns}
        }
        """Which items filters keep that ask for nothing else: looked at once, and not for every request."""
        open_rules = [rule for rule in filters.rules if rule.name not in self._decided]
        self._filtered_by = {Columns.ITEM, *(name for rule in open_rules for name in rule.reads)}
        self._asking = [rule for rule in open_rules if rule.asks_request]
        self._scores_read = [name for name in columns_read(ordering) if name in labels]
        self._ranks = [name for name in rank_types(retriever.section) if name in read]
        known = {*self._items, *self._ranks, *labels, SCORE, NOW}
        self._of_request = [name for name in read if name not in known]
        self._user_type = retriever.recent.schema["user"]
        sources = retriever.section.sources.values()
        self._told = tuple(dict.fromkeys(name for source in sources for name in _context_of(source)))
        """Columns of a request that a source reads."""
        alike_by = None if ordering.diversity is None else ordering.diversity.by
        # Not by a score, which candidates that are found do not have yet.
        self._alike_by = None if alike_by in (*labels, SCORE) else alike_by

    @property
    def size(self) -> int:
        """Number of items that can be recommended."""
        return self._retriever.catalogue.size

    @property
    def candidates(self) -> int:
        """Most candidates of a request, before sources are asked for more."""
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
        return tuple(dict.fromkeys((*self._of_request, *self._told)))

    @property
    def window(self) -> timedelta | None:
        """How long stages ask back what a user was shown and took; None: they never do."""
        takes = any(getattr(source, "reads_recent", True) for source in self._retriever.section.sources.values())
        windows = (self._filters.remembers, RECENT_WINDOW if takes else None)
        return max((one for one in windows if one is not None), default=None)

    @property
    def scores_read(self) -> tuple[str, ...]:
        """Columns of further labels' scores that ordering reads."""
        return tuple(self._scores_read)

    @property
    def item_type(self) -> pl.DataType:
        """Of the ids of items."""
        return self._retriever.catalogue.ids.dtype

    def context_of(self, user: int | str | None) -> dict[str, Any]:
        """Return what the release knows of a user: columns of side tables that stages read; nothing of an unknown."""
        columns = self._users.columns
        if columns is None or user is None or columns.width == 1:
            return {}
        key = columns.to_series(0)
        (row,) = places_of(pl.Series([user], dtype=key.dtype, strict=False), key)
        return {} if row < 0 else columns[int(row), 1:].row(0, named=True)

    def past_of(self, user: int | str | None) -> UserHistory | None:
        """Return what a user was shown and took by the log that the release was made with; None: nothing is known."""
        past = self._users.past
        return None if past is None else past.of(user, self._retriever.catalogue.ids)

    def find(self, request: SlateRequest) -> FoundCandidates:
        """Return the candidates of a request after filters; where fewer than k are left, with those of the fallbacks.

        Raises:
            SlateRequestError: More items are asked for than there are, or none.
        """
        return self.begin(request)()

    def begin(self, request: SlateRequest) -> Callable[[], FoundCandidates]:
        """Begin to find the candidates of a request, as far as other threads do it; return what finishes it.

        Raises:
            SlateRequestError: As for `find`.
        """
        size = self._retriever.catalogue.size
        if not 1 <= request.k <= size:
            raise SlateRequestError(f"k: got {request.k}; wanted 1 to {size}, the items that there are")
        queries = self._queries(request)
        begun = self._retriever.begin(queries)
        return lambda: self._found(request, queries, begun())

    def _found(self, request: SlateRequest, queries: Queries, found: Candidates) -> FoundCandidates:
        given = found.items[0] != _NO_ITEM
        first = np.where(found.ranks[0] == 0, np.iinfo(np.int32).max, found.ranks[0]).argmin(axis=1)
        rows, ranks = found.items[0][given], found.ranks[0][given]
        names = np.array(found.sources, object)
        sources = names[first[given]]
        filtered = self._filtered(rows, ranks, request)
        asked: list[str] = []
        for name, more in self._more(queries):
            if len(filtered.rows) >= request.k:
                break
            is_new = ~np.isin(more, rows)
            new = more[is_new]
            rows = np.concatenate([rows, new])
            of_new = np.zeros((len(new), len(found.sources)), np.int32)
            of_new[:, found.sources.index(name)] = np.flatnonzero(is_new) + 1
            ranks = np.concatenate([ranks, of_new])
            sources = np.concatenate([sources, np.full(len(new), name, object)])
            asked += [] if name in asked else [name]
            filtered = filtered.followed_by(self._filtered(new, of_new, request))
        gone = np.flatnonzero(filtered.removed_by >= 0)
        left, their_ranks = rows[filtered.rows], ranks[filtered.rows]
        return FoundCandidates(
            items=_at(self._items[Columns.ITEM], left),
            frame=lambda: self._frame(left, their_ranks, request),
            sources=tuple(sources[filtered.rows].tolist()),
            retrieved=len(rows),
            removed=Removed(
                _at(self._items[Columns.ITEM], rows[gone]),
                tuple(filtered.names[rule] for rule in filtered.removed_by[gone]),
            ),
            fallback=tuple(asked),
            alike_by=self._alike_by,
        )

    def slate(
        self, request: SlateRequest, found: FoundCandidates, scores: np.ndarray,
        further: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> Slate:  # fmt: skip
        """Return the slate of a request.

        Args:
            request: The request.
            found: Its candidates.
            scores: Of the model, shape (n_candidates,).
            further: Its scores of further labels by column, `score_<label>`, likewise.

        Raises:
            SlateRequestError: The number of scores is not that of the candidates, or ordering reads others.
        """
        every = {SCORE: scores, **further}
        for name, own in every.items():
            if len(own) != len(found.items):
                what = "scores" if name == SCORE else name
                raise SlateRequestError(f"{what}: got {len(own)} for {len(found.items)} candidates")
        if missing := [name for name in self._scores_read if name not in every]:
            raise SlateRequestError(f"ordering reads '{missing[0]}'; the model gave {', '.join(every)}")
        given = np.asarray(scores, np.float64)
        # Side by side, and not by `with_columns`, which waits for Polars' threads.
        scored = found.rows.hstack([pl.Series(name, np.asarray(own, np.float64)) for name, own in every.items()])
        left, removed = self._filtered_again(request, found)
        if left is None:
            ordered = order(scored, self._ordering, request.k, request.id, found.likeness)
        else:
            ordered = order(scored[left], self._ordering, request.k, request.id)
        rows = ordered.rows if left is None else left[ordered.rows]
        return Slate(
            items=_at(found.items, rows),
            rows=rows,
            scores=given[rows],
            values=ordered.values,
            sources=tuple(found.sources[row] for row in rows),
            propensities=ordered.propensities,
            explored=ordered.explored,
            without_value=ordered.without_value,
            removed=removed,
        )

    def _filtered_again(self, request: SlateRequest, found: FoundCandidates) -> tuple[np.ndarray | None, Removed]:
        """Return which candidates are still allowed, None for all; before ordering, so that propensities stay exact.

        Filters that ask nothing of a request gave their verdict, which cannot change.
        """
        nothing = Removed(found.items[:0], ())
        if request.latest is None or not self._asking:
            return None, nothing
        known = FilterRequest(request.now, request.latest, self._lists)
        filtered = apply_filters(found.rows, self._asking, known)
        gone = np.flatnonzero(filtered.removed_by >= 0)
        if not len(gone):
            return None, nothing
        names = tuple(filtered.names[rule] for rule in filtered.removed_by[gone])
        return filtered.rows, Removed(found.items[gone], names)

    def _queries(self, request: SlateRequest) -> Queries:
        catalogue = self._retriever.catalogue
        users = pl.Series([request.user], dtype=self._user_type, strict=False)
        fitted = np.zeros(0, np.int32)
        if request.recent is not None:
            newest = pl.Series(list(request.recent), dtype=catalogue.ids.dtype, strict=False)
        else:
            fitted = self._retriever.recent_of(users)[0]
            past = request.history
            newest = catalogue.ids[:0] if past is None else past.taken
        rows = catalogue.rows_of(newest)
        rows = rows[rows != _NO_ITEM]
        # What was fitted may have been live before: an item of both lists counts once, where it is newest.
        known = np.concatenate([rows, fitted[~np.isin(fitted, rows)]]) if len(rows) else fitted
        recent = np.full((1, self._retriever.section.recent_items), _NO_ITEM, np.int32)
        known = known[: recent.shape[1]]
        recent[0, : len(known)] = known
        context = [self._context_values(name, request.context[name]) for name in self._told if name in request.context]
        return Queries(users, recent, pl.DataFrame(context))

    def _context_values(self, name: str, value: Any) -> pl.Series:
        return pl.Series(name, [value], self._types.get(name), strict=False)

    def _filtered(self, rows: Rows, ranks: NDArray[np.int32], request: SlateRequest) -> Filtered:
        decided = {name: kept[rows] for name, kept in self._decided.items()}
        if len(decided) == len(self._filters.rules):
            return filtered_by(decided, len(rows))
        known = FilterRequest(request.now, request.history, self._lists)
        return apply_filters(self._frame(rows, ranks, request, self._filtered_by), self._filters.rules, known, decided)

    def _frame(
        self, rows: Rows, ranks: NDArray[np.int32], request: SlateRequest, wanted: Collection[str] | None = None
    ) -> pl.DataFrame:
        """Return the columns of candidates; None: all that a stage reads."""
        # Column by column: a frame's own methods wait for Polars' threads, which takes longer for a few hundred rows.
        moment = microseconds(request.now)
        values = {NOW: pl.Series(NOW, [moment], pl.Int64()).cast(pl.Datetime("us", "UTC"))}
        values |= {name: self._context_values(name, request.context.get(name)) for name in self._of_request}
        columns = [
            *(
                _at(column, rows).alias(name)
                for name, column in self._items.items()
                if wanted is None or name in wanted
            ),
            *(one.new_from_index(0, len(rows)) for name, one in values.items() if wanted is None or name in wanted),
            *(self._rank(name, ranks) for name in self._ranks if wanted is None or name in wanted),
        ]
        return pl.DataFrame(columns)

    def _rank(self, name: str, ranks: NDArray[np.int32]) -> pl.Series:
        of_source = ranks[:, self.sources.index(name.removeprefix(RANK_OF))].astype(np.float64)
        return pl.Series(name, np.where(of_source == NO_RANK, np.nan, of_source), nan_to_null=True)

    def _more(self, queries: Queries) -> Iterator[tuple[str, Rows]]:
        """Give ever longer lists of the fallbacks, each until it has no more, or as many as a request looks at."""
        longest = min(self._retriever.catalogue.size, self._filters.max_fallback)
        for name in self._filters.fallback:
            most, before = self._retriever.section.max_candidates(name), -1
            while before < most:
                before, most = most, min(2 * most, longest)
                listed = self._retriever.sources[name].retrieve(queries, most).items[0]
                items = listed[listed != _NO_ITEM]
                yield name, items
                if len(items) < most:
                    break


def _at(column: pl.Series, rows: NDArray[Any]) -> pl.Series:
    """Return some rows of a column; Polars looks through numpy's whole numbers before it takes them for rows."""
    return column[pl.Series(rows.astype(np.uint32))]


def _context_of(source: SourceSection) -> tuple[str, ...]:
    # A section of the registry is a `SourceKind`.
    return tuple(getattr(source, "reads_context", ()))
