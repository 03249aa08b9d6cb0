"""Answers requests for recommendations: candidates, filters, scores, order, and a line in the prediction log."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal

import numpy as np
import orjson
import polars as pl

from shortlist.filters.base import UserHistory
from shortlist.recommending.past_items import together
from shortlist.recommending.recommender import FoundCandidates, Recommender, Slate, SlateRequest, SlateRequestError
from shortlist.serving.export.signature import SCORE
from shortlist.serving.server.admission import Place
from shortlist.serving.server.feature_sample import UsedFeatures
from shortlist.serving.server.inputs import Input, Inputs
from shortlist.serving.server.release_refresher import ReleaseRefresher
from shortlist.serving.server.request_errors import BadRequestError, BadScoresError
from shortlist.serving.server.service import (
    OK,
    Given,
    InferenceRequest,
    InferenceResponse,
    Output,
    Scored,
    Service,
)
from shortlist.serving.server.slate_requests import AskedSlate, SlateRequestReader
from shortlist.serving.server.user_items import UserItems
from shortlist.spec.retrieval import SLATE_OUTPUTS

_NO_SLATE: Final = (None,) * 7


class Recommending:
    """The stages of a release around the model of a server.

    Args:
        service: Scores, logs and counts.
        release: Has the stages but for the model.
        history: What users were shown and took lately; None: no stage asks for it.
    """

    def __init__(self, service: Service, release: ReleaseRefresher, history: UserItems | None) -> None:
        self._service, self._release, self._history = service, release, history
        recommender = release.current  # a newer one has the same sections, and so reads and answers the same columns
        self._reader = SlateRequestReader(service.inputs, service.data, recommender.reads)
        self._most = service.settings.serving.max_rows
        assert service.data.item
        self._item = service.data.item
        item = "BYTES" if recommender.item_type == pl.String() else "INT64"
        kinds = dict(zip(SLATE_OUTPUTS, ("FP32", "FP64", "BYTES", "INT32", "FP64"), strict=True))
        further = dict.fromkeys(service.outputs[1:], "FP32")
        self.outputs: Mapping[str, str] = {SCORE: kinds.pop(SCORE), self._item: item, **kinds, **further}
        """Datatype of every output by its name."""

    @property
    def inputs(self) -> Sequence[Input]:
        """What may be sent."""
        return self._reader.inputs

    @property
    def problem(self) -> str | None:
        """Why candidates are not up to date, or what users were shown lately is not known; None when all is well."""
        problems = (part.problem for part in (self._release, self._history) if part is not None)
        return "; ".join(filter(None, problems)) or None

    @property
    def index_age_seconds(self) -> float:
        """Seconds since the end (UTC) of the newest day that the sources of candidates learnt from."""
        newest = date.fromisoformat(self._release.current.retriever.facts["last_day"]) + timedelta(days=1)
        # A refresh counts days that are not over.
        return max(0.0, time.time() - datetime.combine(newest, datetime.min.time(), UTC).timestamp())

    @property
    def is_ready(self) -> bool:
        """Whether everything is known that stages read of the past."""
        return self._release.has_looked and (self._history is None or self._history.has_looked)

    async def answer(self, question: InferenceRequest, place: Place | None) -> InferenceResponse:
        """Return the slate of a request; an empty one says why (`empty`), for what removed every item is the release.

        Args:
            question: The request.
            place: Its place of `Service.admission`, left while it waits for the model server.

        Raises:
            RequestError: What is wrong with it, or with the model.
        """
        started, now = time.perf_counter(), time.time_ns() // 1000
        asked = self._reader.read(question.tensors, now)
        stages = self._release.current  # another one may be put in place while the model scores
        request = self._request(stages, asked, question.context.request_id or question.id or uuid.uuid4().hex)
        behind = self._service.behind_seconds
        begun = self._begun(stages, request)
        users = await self._service.users_of(asked.inputs)  # another thread searches vectors meanwhile
        found = begun().head(self._most)
        inputs = self._reader.with_items(asked, found.items)
        # Looked up while the model scores: a callback comes when this waits for the model server.
        asyncio.get_running_loop().call_soon(found.look_up)
        scored = await self._service.score(inputs, place, users)
        bad = scored.unusable
        request = self._looked_again(stages, request)
        slate = stages.slate(request, found, scored.scores, scored.further)
        if (
            self._history is not None and len(slate.items) and not bad
        ):  # at once: another request of the same user may wait for its scores
            self._history.show(request.id, request.user, slate.items.to_list(), datetime.now(UTC))

        def answered() -> tuple[Inputs, Given]:
            shown = self._reader.with_items(asked, slate.items)
            return shown, self._given(stages, request, found, scored, slate, behind)

        times = now, (time.perf_counter() - started) * 1000
        await self._service.note(question.context, request.id, times, answered)
        if bad:
            raise BadScoresError(f"the model gave {bad} of {len(scored.scores)} scores that are no finite numbers")
        asyncio.get_running_loop().call_soon(self._count, request, found, slate)
        return self._response(request, found, scored, slate)

    def _request(self, stages: Recommender, asked: AskedSlate, request_id: str) -> SlateRequest:
        history = self._known(stages, asked.user)
        context = {**stages.context_of(asked.user), **asked.context}
        if self._service.data.user is not None:
            context[self._service.data.user] = asked.user
        return SlateRequest(request_id, asked.user, asked.k, asked.now, context, asked.recent, history)

    def _known(self, stages: Recommender, user: int | str | None) -> UserHistory | None:
        """Return what a user was shown and took: by the log that the release was made with, then by the live logs."""
        live = self._history.history(user) if self._history is not None else None
        return together(stages.past_of(user), live)

    def _looked_again(self, stages: Recommender, request: SlateRequest) -> SlateRequest:
        """Return a request with what its user was shown by now, where that is more than when candidates were found."""
        if stages.filters.remembers is None:
            return request
        known = self._known(stages, request.user)
        before = request.history
        if known is None or (
            before is not None and known.items.equals(before.items) and known.positive.equals(before.positive)
        ):
            return request
        return replace(request, latest=known)

    def _begun(self, stages: Recommender, request: SlateRequest) -> Callable[[], FoundCandidates]:
        most = stages.candidates
        if not 1 <= request.k <= most:
            raise BadRequestError(f"k: got {request.k}; wanted 1 to {most}, the candidates of a request")
        try:
            return stages.begin(request)
        except SlateRequestError as error:
            raise BadRequestError(str(error)) from None

    def _given(
        self, stages: Recommender, request: SlateRequest, found: FoundCandidates, scored: Scored, slate: Slate,
        behind: float | None,
    ) -> Given:  # fmt: skip
        """Return what the prediction log is told: the rows that are shown, and how they came about."""
        rows, used = slate.rows, scored.used
        if used is not None:
            used = UsedFeatures({name: each[rows] for name, each in used.tensors.items()}, used.counted_until)
        sources, filters = found.source_counts, found.removed_counts + Counter(slate.removed.filters)
        names = [rule.name for rule in stages.filters.rules]
        own = (
            stages.digest, list(slate.sources), slate.values, slate.propensities, slate.explored, request.k,
            found.retrieved, list(sources), np.array(list(sources.values()), np.int64),
            names, np.array([filters.get(name, 0) for name in names], np.int64),
            list(found.fallback), slate.without_value,
        )  # fmt: skip
        journey = journey_of(request, found, scored) if self._service.keeps_features(request.id) else _NO_SLATE
        further = {name: each[rows] for name, each in scored.further.items()}
        status = 500 if scored.unusable else OK
        return Given(status, scored.scores[rows], scored.degraded, used, behind, further, (*own, *journey))

    def _count(self, request: SlateRequest, found: FoundCandidates, slate: Slate) -> None:
        metrics = self._service.metrics
        metrics.rows.inc(len(found.items))
        metrics.slates.inc()
        metrics.short_slates.inc(len(slate.items) < request.k)
        if not len(slate.items):
            metrics.empty_slates.labels(_empty_reason(found, slate)).inc()
        for name, count in found.source_counts.items():
            metrics.candidates.labels(name).inc(count)
        for name, count in (found.removed_counts + Counter(slate.removed.filters)).items():
            metrics.removed.labels(name).inc(count)
        for name in found.fallback:
            metrics.fallbacks.labels(name).inc()

    def _response(
        self, request: SlateRequest, found: FoundCandidates, scored: Scored, slate: Slate
    ) -> InferenceResponse:
        items, kinds = slate.items, self.outputs
        places = np.arange(1, len(items) + 1, dtype=np.int32)
        given = (_listed(items), slate.values, slate.sources, places, slate.propensities)
        names = (self._item, *(name for name in SLATE_OUTPUTS if name != SCORE))
        told_by_name = dict(zip(names, given, strict=True))
        told_by_name.update((name, each[slate.rows]) for name, each in scored.further.items())
        beside = tuple(Output(name, kinds[name], values) for name, values in told_by_name.items())
        told: dict[str, bool | str] = {
            "explored": slate.explored, "short": len(items) < request.k, "fallback": ",".join(found.fallback),
        }  # fmt: skip
        if not len(items):
            told["empty"] = _why_empty(found, slate)
        return InferenceResponse(scored.scores[slate.rows], request.id, scored.degraded, beside, told)


def _empty_reason(found: FoundCandidates, slate: Slate) -> Literal["no_candidates", "filtered", "no_value"]:
    if len(found.items):
        return "filtered" if len(slate.removed.items) == len(found.items) else "no_value"
    return "filtered" if found.retrieved else "no_candidates"


def _why_empty(found: FoundCandidates, slate: Slate) -> str:
    if _empty_reason(found, slate) == "no_value":
        return f"none of {len(found.items)} candidates has a value that is a number"
    counts = found.removed_counts + Counter(slate.removed.filters)
    removed = ", ".join(f"'{name}' removed {count}" for name, count in counts.items())
    return f"no item is left for this request: {found.retrieved} candidates, {removed or 'none of any source'}"


def journey_of(request: SlateRequest, found: FoundCandidates, scored: Scored) -> tuple[Any, ...]:
    """Return the last of `SLATE_COLUMNS`: all that a slate came from, from which it can be made again."""
    return (
        request_text(request), _listed(found.items), scored.scores,
        np.concatenate([np.zeros(0, np.float32), *scored.further.values()]), list(found.sources),
        _listed(found.removed.items), list(found.removed.filters),
    )  # fmt: skip


def request_text(request: SlateRequest) -> str:
    """Return a request as JSON, from which `request_of` makes it again."""
    told = {
        "user": request.user, "k": request.k, "now": request.now, "context": dict(request.context),
        "recent": request.recent, "history": _history_told(request.history),
    }  # fmt: skip
    if request.latest is not None:
        told["latest"] = _history_told(request.latest)
    return orjson.dumps(told).decode()


def request_of(request_id: str, text: str, item_type: pl.DataType, types: Mapping[str, pl.DataType]) -> SlateRequest:
    """Return the request that a text of `request_text` says.

    Args:
        request_id: Its id.
        text: The JSON.
        item_type: Of the ids of items.
        types: Of candidates' columns, by name.
    """
    told = orjson.loads(text)
    request = SlateRequest(
        request_id, told["user"], told["k"], datetime.fromisoformat(told["now"]), told["context"], told["recent"]
    )
    dates = {
        name: datetime.fromisoformat(value).date()
        for name, value in request.context.items()
        if value is not None and types.get(name) == pl.Date()
    }
    past, latest = (_history_of(told.get(name), item_type) for name in ("history", "latest"))
    return replace(request, context={**request.context, **dates}, history=past, latest=latest)


def _history_told(past: UserHistory | None) -> list[Any] | None:
    return None if past is None else [past.items.to_list(), past.times.to_list(), past.positive.to_list()]


def _history_of(told: list[Any] | None, item_type: pl.DataType) -> UserHistory | None:
    if told is None:
        return None
    items, times, positive = told
    moments = pl.Series([datetime.fromisoformat(one) for one in times], dtype=pl.Datetime("us", "UTC"))
    return UserHistory(pl.Series(items, dtype=item_type), moments, pl.Series(positive, dtype=pl.Boolean()))


def _listed(items: pl.Series) -> Any:
    return items.to_list() if _is_text(items) else items.to_numpy()


def _is_text(items: pl.Series) -> bool:
    return items.dtype == pl.String()
