"""Simulated windows of live slates: users of a generated world answer what a release shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from monitoring.drift.drift import find_drift
from monitoring.live_quality import measure_quality, slates_reference
from monitoring.reference.reference import Reference
from monitoring.windows.known_columns import empty_as_null, with_side_columns
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.records import WindowReport
from shortlist.contracts import Columns
from shortlist.data.world.answering_world import AnsweringWorld
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.loop.in_process_release import InProcessRelease
from shortlist.loop.policies import slate_matrix
from shortlist.slates.recommender import Slate, SlateRequest
from shortlist.spec.spec import Spec

PLACES = 10
Show = Callable[[Sequence[SlateRequest]], Sequence[Slate]]
"""Function from requests to slates."""


class SlateWindows:
    """Windows of a release before the users of a world, and their reports.

    Args:
        spec: A spec with a generated log and retrieval.
        world: Its users.
        log: Folder of the valid log, for its side tables.
        reference: Reference of the version.
        model: Name of the model.
        preprocessing: Its preprocessing.
    """

    def __init__(
        self, spec: Spec, world: AnsweringWorld, log: Path, reference: Reference, model: str,
        preprocessing: Preprocessing,
    ) -> None:  # fmt: skip
        self._spec, self._world, self._log = spec, world, log
        self._reference, self._model, self._preprocessing = reference, model, preprocessing
        self.reports: list[WindowReport] = []

    def add(self, until: float, release: InProcessRelease, show: Show) -> WindowReport:
        """Let users ask until a moment, in days of the world, and return the report of what they were shown."""
        rows = self._rows(until, release, show)
        start, end = rows[Columns.TIME].min(), rows[Columns.TIME].max()
        assert isinstance(start, datetime) and isinstance(end, datetime)
        requests = rows["request_id"].n_unique()
        window = LiveWindow(
            start=start, end=end + timedelta(seconds=1), requests=requests, rows=rows, coverage=1.0, late=0,
            duplicates=0, orphans=0, future=0, scored=rows.select("version", "impression_weight", "score"),
        )  # fmt: skip
        settings, expected = self._spec.monitoring, self._reference.of_slates(self._model)
        quality = slates_reference(
            self._reference.models[self._model], self._reference.shown[self._model], self.reports, release.version
        )
        report = WindowReport(
            spec=self._spec.name, start=window.start, end=window.end, made=window.end, champion=release.version,
            versions={release.version: rows.height}, requests=requests, rows=rows.height, coverage=1.0,
            findings=find_drift(rows, expected, quality.scores, self._preprocessing, settings.drift),
            quality=measure_quality(window, {release.version: quality}, (), settings.quality, settings.window.min_rows),
        )  # fmt: skip
        self.reports.append(report)
        return report

    def _rows(self, until: float, release: InProcessRelease, show: Show) -> pl.DataFrame:
        answered = []
        while (requests := self._world.ask(until)).user.size:
            sent = requests.frame(self._world.source)
            slates = show([_slate_request(release, row) for row in sent.iter_rows(named=True)])
            events = self._world.answer(requests, slate_matrix([slate.items for slate in slates], PLACES))
            scores = np.concatenate([slate.scores for slate in slates])
            answered.append(events.with_columns(pl.Series("score", scores, pl.Float32)))
        columns = {column.name for column in self._spec.data.columns if column.known == "before"}
        events = pl.concat(answered)
        request = pl.col("request_id").cast(pl.String)
        rows = events.select(
            request, *sorted(columns & {*events.columns} - {"request_id"}), "score",
            (pl.col("position") - 1).cast(pl.Int32).alias("row"),
            pl.col("user_id").cast(pl.String).alias(Columns.USER), pl.lit(release.version).alias("version"),
            pl.lit("stable").alias("track"), pl.lit(1.0, pl.Float32).alias("impression_weight"),
            pl.col("is_click").fill_null(0).cast(pl.Int8).alias(Columns.LABEL),
            pl.col(Columns.TIME).min().over(request),
        )  # fmt: skip
        return empty_as_null(with_side_columns(rows, self._spec.data, self._log))


def _slate_request(release: InProcessRelease, row: dict[str, object]) -> SlateRequest:
    user, moment = row["user_id"], row[Columns.TIME]
    assert isinstance(user, int)
    assert isinstance(moment, datetime)
    context = {**release.stages.find_user_context(user), "user_id": user}
    context |= {"surface": row["surface"], "device": row["device"]}
    return SlateRequest(f"window-{row['request_id']}", user, PLACES, moment, context)
