"""What a release would show: its slates for requests of the log's newest days, with which live slates are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from monitoring.reference.column_counts import ColumnCounts
from monitoring.reference.distributions import Kind, make_bins
from monitoring.reference.reference_parts import ShownReference
from monitoring.windows.known_columns import empty_as_null, with_side_columns
from monitoring.windows.kpi import REQUEST, SCORE
from shortlist.contracts import Columns
from shortlist.features.counts.vocabulary import ValueIds
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.signature import FOLDER
from shortlist.serving.validation.slates import TOP_K, PairScorer, read_histories
from shortlist.slates.recommender import Recommender, SlateCandidates, SlateRequest
from shortlist.spec.data import Data
from shortlist.spec.monitoring import DriftLimits
from shortlist.spec.retrieval import columns_of, item_tables
from shortlist.storage.tables import DayTable

DAYS: Final = 5
"""Newest days of the log whose requests are replayed; their differences show how much days of this release differ."""
REQUESTS_PER_DAY: Final = 400
"""Most replayed requests of a day."""
MAX_PAIRS: Final = 200_000
"""Most candidates that are scored with one model; of a release with more candidates, fewer requests are replayed."""
_BATCH: Final = 200
"""Requests whose candidates are found at once."""


class ReplayedRows(NamedTuple):
    """Rows of replayed slates of every model."""

    references: Mapping[str, ShownReference]
    sample: pl.DataFrame
    """The rows, with the name of the `model`."""


class ReplayedRelease(NamedTuple):
    """A release, and the models that may be served with it."""

    folder: Path
    models: Mapping[str, Path]
    """Folders of the models by name."""
    seed: int = 0
    """Seed of the sample of replayed requests."""


class SlateReplay:
    """Replays requests of the log with the stages of a release, as a server of each day would have answered them.

    Args:
        stages: Stages of the release.
        data: The log's declaration.
        table: The valid log.
        fitted: Folder of the fitted features, whose views are looked up as of the beginning of each request's day.
        seed: Seed of the sample of requests.
    """

    def __init__(self, stages: Recommender, data: Data, table: DayTable, fitted: Path, seed: int) -> None:
        self._stages, self._data, self._table, self._seed = stages, data, table, seed
        self._views = ViewIndex.read(fitted / "views")

    def show(self, models: Mapping[str, Path], days: tuple[date, ...]) -> dict[str, pl.DataFrame]:
        """Return the shown rows of each model: request, user, time, day, item, `score` and the columns of the request.

        Args:
            models: Folders of the models by name. Candidates are found once for all of them.
            days: The days.
        """
        shown_by_model: dict[str, list[pl.DataFrame]] = {model: [] for model in models}
        scorers = {
            model: PairScorer(folder, self._views, item_values=self._stages.item_values)
            for model, folder in models.items()
        }
        for day in days:
            requests = self._requests(day)
            candidates = [
                request_candidates
                for first in range(0, len(requests), _BATCH)
                for request_candidates in self._stages.find_all(requests[first : first + _BATCH])
            ]
            for model, scorer in scorers.items():
                shown_by_model[model].append(self._show_day(scorer, day, requests, candidates))
        return {model: pl.concat(frames) for model, frames in shown_by_model.items()}

    def _show_day(
        self, scorer: PairScorer, day: date, requests: Sequence[SlateRequest], candidates: Sequence[SlateCandidates]
    ) -> pl.DataFrame:
        scored = scorer.score_all(requests, [request_candidates.items for request_candidates in candidates])
        rows = [
            (request, self._stages.slate(request, request_candidates, scores, further))
            for request, request_candidates, (scores, further) in zip(requests, candidates, scored, strict=True)
        ]
        assert self._data.user and self._data.item
        lengths = [len(slate.items) for _, slate in rows]
        shown = {
            REQUEST: [request.id for request, _ in rows],
            self._data.user: [request.user for request, _ in rows],
            Columns.TIME: [request.now for request, _ in rows],
            **{name: [request.context.get(name) for request, _ in rows] for name in self._context},
        }
        declared = {name: self._data.by_name[name].polars_type for name in (self._data.user, *self._context)}
        kinds = {**declared, Columns.TIME: pl.Datetime("us", "UTC")}
        by_request = pl.DataFrame(shown, schema_overrides=kinds)
        by_row = by_request.select(pl.all().repeat_by(pl.Series(lengths)).explode())
        return by_row.with_columns(
            pl.lit(day).alias(Columns.DAY),
            pl.col(self._data.user).cast(pl.String).alias(Columns.USER),
            pl.concat([slate.items for _, slate in rows]).alias(self._data.item),
            pl.Series(SCORE, [score for _, slate in rows for score in slate.scores], pl.Float32),
        )

    @property
    def _context(self) -> list[str]:
        columns = {column.name for column in self._data.columns}
        return [name for name in self._stages.retriever.section.context if name in columns]

    def _requests(self, day: date) -> list[SlateRequest]:
        """Return a sample of a day's requests, with what their application sent."""
        user = self._data.user
        assert user
        key = self._data.request or user
        columns = list(dict.fromkeys((user, key, Columns.TIME, *self._context)))
        rows = self._table.scan(frozenset([day])).filter(pl.col(user).is_not_null()).select(columns).collect()
        requests = rows.sort(Columns.TIME, maintain_order=True).unique(key, keep="first", maintain_order=True)
        max_requests = min(REQUESTS_PER_DAY, max(1, MAX_PAIRS // (DAYS * self._stages.candidates)))
        if requests.height > max_requests:
            requests = requests.sample(max_requests, seed=self._seed).sort(Columns.TIME, maintain_order=True)
        histories = {}
        if self._stages.window is not None:
            histories = read_histories(self._data, self._table, frozenset([day]), requests[user].unique())
        places = min(TOP_K, self._stages.candidates, self._stages.size)
        return [
            SlateRequest(
                f"replay-{day}-{number}", row[user], places, row[Columns.TIME],
                {**self._stages.find_user_context(row[user]), user: row[user],
                 **{name: row[name] for name in self._context}},
                history=histories.get(row[user]),
            )
            for number, row in enumerate(requests.iter_rows(named=True))
        ]  # fmt: skip


def show_slates(
    replay: SlateReplay, models: Mapping[str, Path], data: Data, log: Path, days: tuple[date, ...],
    compared: Mapping[str, Kind], vocabularies: Mapping[str, ValueIds], limits: DriftLimits,
) -> ReplayedRows:  # fmt: skip
    """Return the distributions of what each model's release would show.

    Args:
        replay: Replays the release.
        models: Folders of the models by name; those that were not exported are left out.
        data: The log's declaration.
        log: Folder of the valid log, whose side tables are joined.
        days: Days of the log in order; the newest ones are replayed.
        compared: Kinds of all compared columns.
        vocabularies: Vocabularies by column.
        limits: How columns are binned.
    """
    assert data.item
    item_columns = {data.item, *columns_of(item_tables(data))}
    kinds = {name: kind for name, kind in compared.items() if name in item_columns}
    replayed_days = days[-DAYS:]
    exported = {model: folder for model, folder in models.items() if (folder / FOLDER).is_dir()}
    references, samples = {}, []
    for model, rows in replay.show(exported, replayed_days).items():
        shown_rows = empty_as_null(with_side_columns(rows, data, log))
        if not shown_rows.height:
            continue
        references[model] = _describe(shown_rows, kinds, replayed_days, vocabularies, limits)
        samples.append(shown_rows.with_columns(pl.lit(model).alias("model")))
    return ReplayedRows(references, pl.concat(samples) if samples else pl.DataFrame())


def _describe(
    shown_rows: pl.DataFrame, kinds: Mapping[str, Kind], days: tuple[date, ...], vocabularies: Mapping[str, ValueIds],
    limits: DriftLimits,
) -> ShownReference:  # fmt: skip
    with_score: dict[str, Kind] = {**kinds, SCORE: "numeric"}
    bins = {name: make_bins(shown_rows[name], kind, limits) for name, kind in with_score.items()}
    counts = ColumnCounts(bins, days, vocabularies, date.min)
    for day, rows in _by_day(shown_rows):
        counts.add(day, rows)
    columns = counts.columns()
    scores = columns.pop(SCORE)
    mean = shown_rows[SCORE].mean()
    assert isinstance(mean, float)
    return ShownReference(columns=columns, unknown_shares=counts.unknown_shares(), scores=scores, mean_score=mean)


def _by_day(rows: pl.DataFrame) -> Iterator[tuple[date, pl.DataFrame]]:
    for (day,), day_rows in rows.group_by([Columns.DAY], maintain_order=True):
        assert isinstance(day, date)
        yield day, day_rows
