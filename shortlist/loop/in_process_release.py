"""A registered version as its servers answer, in this process: stages, model and published statistics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import polars as pl

from shortlist.contracts import Columns, ShortlistError
from shortlist.data.world.traffic import SLOTS
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.validation.slates import PairScorer
from shortlist.slates.filters.base import UserHistory
from shortlist.slates.past_items import merge_histories
from shortlist.slates.recommender import Recommender, Slate, SlateRequest
from shortlist.slates.refreshed_releases import announced_releases, open_refreshed
from shortlist.slates.release import open_release
from shortlist.spec.data import Data
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.run_context import RunContext

_BATCH_ROWS = 50_000
"""Candidates that are scored together; bounds the memory."""


class ReleaseAnswer(NamedTuple):
    """The slate of a request, and the slate without exploration."""

    slate: Slate
    best_slate: Slate
    """The same slate where no place was drawn."""


class DayHistories:
    """What users saw on the present day, which servers read from their live logs."""

    def __init__(self) -> None:
        self._events: pl.DataFrame | None = None
        """Users, sorted, and their events in the order in which they happened."""

    def add(self, seen: pl.DataFrame) -> None:
        """Add rows that users saw: `user_id`, `item_id`, `event_time` and `is_click`."""
        events = seen.select(
            pl.col("user_id", "item_id").cast(pl.Int64), Columns.TIME, pl.col("is_click").cast(pl.Boolean)
        )
        events = events if self._events is None else pl.concat([self._events, events])
        self._events = events.sort("user_id", maintain_order=True).rechunk()

    def of_users(self, users: Sequence[int]) -> list[UserHistory | None]:
        """Return the history of each user, None of one who saw nothing."""
        if self._events is None:
            return [None] * len(users)
        known_users, *columns = self._events
        numbers = known_users.to_numpy()
        first = np.searchsorted(numbers, users)
        counts = np.searchsorted(numbers, users, side="right") - first
        return [
            UserHistory(*(column.slice(start, count) for column in columns)) if count else None
            for start, count in zip(first.tolist(), counts.tolist(), strict=True)
        ]


class InProcessRelease:
    """Answers requests as a server of a version does, many at once.

    Args:
        version: Number of the version.
        stages: Stages of its release.
        scorer: Its model, with the statistics that servers look up.
    """

    def __init__(self, version: int, stages: Recommender, scorer: PairScorer) -> None:
        self.version, self.stages = version, stages
        self._greedy_stages = stages.without_exploration()
        self._scorer = scorer

    @classmethod
    def open(cls, context: RunContext, version: int, data: Data) -> Self:
        """Return a version with the newest published statistics and release.

        Raises:
            ShortlistError: It has no release, because its spec declared no retrieval, or its files were changed.
        """
        registry = context.tracker.registry
        release = registry.retrieval_of(version)
        if release is None:
            raise ShortlistError(f"version {version} of spec '{context.name}' has no release; declare `retrieval`")
        location = spec_feast_store_location(StorageConfig.parse(context.stores), context.name)
        announcement, blessed = location.require_announcement(), folder_digest(release)
        refreshed = announced_releases(location).get(blessed)
        stages = open_release(release, data) if refreshed is None else open_refreshed(refreshed, blessed, data)
        views = ViewIndex.read(Path(announcement["views"]))
        moment = datetime.fromisoformat(announcement["until"])
        return cls(version, stages, PairScorer(registry.fetch(version).folder, views, moment, stages.item_values))

    def slate_requests(
        self, sent: pl.DataFrame, context: Collection[str], seen_today: DayHistories
    ) -> list[SlateRequest]:
        """Return the requests of users of a generated world as a server reads them.

        Args:
            sent: One row per request: `request_id`, `user_id`, `event_time`, and the columns that applications send.
            context: Names of the columns that they send (`retrieval.context`).
            seen_today: What users saw on the day of the requests, for filters and sources that read it.
        """
        users = sent["user_id"].to_list()
        histories: list[UserHistory | None] = [None] * len(users)
        if self.stages.window is not None:
            histories = [
                merge_histories(self.stages.find_user_history(user), history)
                for user, history in zip(users, seen_today.of_users(users), strict=True)
            ]
        names = [name for name in context if name in sent.columns]
        return [
            SlateRequest(
                f"loop-{row['request_id']}", user, SLOTS, row[Columns.TIME],
                {**user_context, "user_id": user, **{name: row[name] for name in names}}, history=history,
            )
            for row, user, user_context, history in zip(
                sent.iter_rows(named=True), users, self.stages.find_user_contexts(users),
                histories, strict=True,
            )
        ]  # fmt: skip

    def answer(self, requests: Sequence[SlateRequest]) -> list[ReleaseAnswer]:
        """Return the slates of requests, whose context is what the application sends."""
        step = max(1, _BATCH_ROWS // self.stages.candidates)
        return [
            answered
            for first in range(0, len(requests), step)
            for answered in self._answer_batch(requests[first : first + step])
        ]

    def _answer_batch(self, requests: Sequence[SlateRequest]) -> list[ReleaseAnswer]:
        candidates = self.stages.find_all(requests)
        answers = []
        scored = self._scorer.score_all(requests, [found.items for found in candidates])
        for request, found, (scores, further) in zip(requests, candidates, scored, strict=True):
            slate = self.stages.slate(request, found, scores, further)
            best = self._greedy_stages.slate(request, found, scores, further) if slate.explored else slate
            answers.append(ReleaseAnswer(slate, best))
        return answers
