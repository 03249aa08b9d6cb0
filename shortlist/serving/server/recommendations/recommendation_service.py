"""Serves recommendations: retrieves, filters, scores and orders candidates, and logs the slate."""

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
import polars.selectors as cs

from shortlist.serving.export.signature import SCORE
from shortlist.serving.server.inference.service import (
    OK,
    InferenceRequest,
    InferenceResponse,
    LoggedResponse,
    ModelScores,
    Output,
    Service,
)
from shortlist.serving.server.prediction_log.feature_sample import UsedFeatures
from shortlist.serving.server.recommendations.release_refresher import ReleaseRefresher
from shortlist.serving.server.recommendations.user_items import UserItems
from shortlist.serving.server.request_inputs.input_reader import Inputs, InputSpec
from shortlist.serving.server.request_inputs.slate_requests import SlateQuery, SlateRequestReader
from shortlist.serving.server.requests.admission import AdmissionSlot
from shortlist.serving.server.requests.request_errors import BadRequestError, BadScoresError
from shortlist.slates.filters.base import UserHistory
from shortlist.slates.past_items import merge_histories
from shortlist.slates.recommender import Recommender, Slate, SlateCandidates, SlateRequest, SlateRequestError
from shortlist.spec.retrieval import SLATE_OUTPUTS

_NO_SLATE: Final = (None,) * 7


class RecommendationService:
    """Serves slates with the stages of a release and the model of a server.

    Args:
        service: Scores the candidates, logs the slate, and keeps the counters.
        release: The newest release: all stages except the model.
        history: Items that users were shown and took lately; None when no stage reads them.
    """

    def __init__(self, service: Service, release: ReleaseRefresher, history: UserItems | None) -> None:
        self._service, self._release, self._history = service, release, history
        recommender = release.current  # a newer release has the same sections, so inputs and outputs stay the same
        self._reader = SlateRequestReader(service.inputs, service.data, recommender.reads, recommender.item_columns)
        scored_names = {spec.name for spec in service.inputs.inputs}
        self.scored_item_columns = tuple(name for name in recommender.item_columns if name in scored_names)
        """Item columns (`retrieval.item_columns`) that the model reads."""
        self._max_rows = service.settings.serving.max_rows
        assert service.data.item
        self._item = service.data.item
        item_datatype = "BYTES" if recommender.item_type == pl.String() else "INT64"
        datatypes = dict(zip(SLATE_OUTPUTS, ("FP32", "FP64", "BYTES", "INT32", "FP64"), strict=True))
        further_datatypes = dict.fromkeys(service.outputs[1:], "FP32")
        self.outputs: Mapping[str, str] = {
            SCORE: datatypes.pop(SCORE),
            self._item: item_datatype,
            **datatypes,
            **further_datatypes,
        }
        """Datatype of every output by its name."""

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """What may be sent."""
        return self._reader.inputs

    @property
    def context_names(self) -> Sequence[str]:
        """Columns of the log that a request may contain beside its user."""
        return self._reader.context_names

    def item_values(self, items: Sequence[int | str]) -> list[dict[str, Any] | None]:
        """Return the item columns of items, by name, as candidates have them; None for an item that is not released."""
        stages = self._release.current
        ids = pl.Series(items, dtype=stages.item_type)
        values = pl.DataFrame(stages.item_values(ids)).with_columns(cs.float().fill_nan(None))
        is_released = stages.has_items(ids)
        return [row if has_item else None for row, has_item in zip(values.to_dicts(), is_released, strict=True)]

    @property
    def max_k(self) -> int:
        """Most items of a slate: the candidates of a request, or all items."""
        recommender = self._release.current
        return min(recommender.candidates, recommender.size)

    @property
    def problem(self) -> str | None:
        """Why candidates or users' histories are out of date; None when they are current."""
        problems = (part.problem for part in (self._release, self._history) if part is not None)
        return "; ".join(filter(None, problems)) or None

    @property
    def index_age_seconds(self) -> float:
        """Seconds since the end (UTC) of the newest day that the candidate sources were fitted on."""
        newest = date.fromisoformat(self._release.current.retriever.facts["last_day"]) + timedelta(days=1)
        # A refresh counts days that have not ended yet.
        return max(0.0, time.time() - datetime.combine(newest, datetime.min.time(), UTC).timestamp())

    @property
    def is_ready(self) -> bool:
        """Whether the release and the users' histories have been loaded."""
        return self._release.has_polled and (self._history is None or self._history.has_polled)

    async def answer(self, question: InferenceRequest, slot: AdmissionSlot | None) -> InferenceResponse:
        """Return the slate of a request; an empty slate carries its reason in the parameter `empty`.

        Args:
            question: The request.
            slot: Its slot of `Service.admission`, released while the model server cannot be reached.

        Raises:
            RequestError: The request is invalid, or the model cannot score its candidates.
        """
        started, now = time.perf_counter(), time.time_ns() // 1000
        query = self._reader.read(question.tensors, now)
        stages = self._release.current  # a newer release may be loaded while the model scores
        slate_request = self._request(stages, query, question.context.request_id or question.id or uuid.uuid4().hex)
        delay_seconds = self._service.counts_delay_seconds
        finish_retrieval = self._begin_retrieval(stages, slate_request)
        user_features = await self._service.look_up_users(query.inputs)  # meanwhile another thread searches vectors
        candidates = finish_retrieval().head(self._max_rows)
        inputs = self._reader.with_items(query, candidates.items, stages.item_values(candidates.items))
        # Runs while the model scores: the callback is called when this coroutine waits for the model server.
        asyncio.get_running_loop().call_soon(candidates.look_up)
        scored_rows = await self._service.score(inputs, slot, user_features)
        bad_rows = scored_rows.unusable_rows
        slate_request = self._with_latest_history(stages, slate_request)
        slate = stages.slate(slate_request, candidates, scored_rows.scores, scored_rows.further_scores)
        if (
            self._history is not None and len(slate.items) and not bad_rows
        ):  # immediately: another request of the same user may be waiting for its scores
            self._history.record_slate(slate_request.id, slate_request.user, slate.items.to_list(), datetime.now(UTC))

        def rows_and_response() -> tuple[Inputs, LoggedResponse]:
            shown_rows = self._reader.with_items(query, slate.items, stages.item_values(slate.items))
            return shown_rows, self._logged_response(
                stages, slate_request, candidates, scored_rows, slate, delay_seconds
            )

        times = now, (time.perf_counter() - started) * 1000
        await self._service.record_response(question.context, slate_request.id, times, rows_and_response)
        if bad_rows:
            raise BadScoresError(
                f"the model returned {bad_rows} of {len(scored_rows.scores)} scores that are not finite"
            )
        asyncio.get_running_loop().call_soon(self._count, slate_request, candidates, slate)
        return self._response(slate_request, candidates, scored_rows, slate)

    def _request(self, stages: Recommender, query: SlateQuery, request_id: str) -> SlateRequest:
        history = self._user_history(stages, query.user)
        context = {**stages.find_user_context(query.user), **query.context}
        if self._service.data.user is not None:
            context[self._service.data.user] = query.user
        return SlateRequest(request_id, query.user, query.k, query.now, context, query.recent, history)

    def _user_history(self, stages: Recommender, user: int | str | None) -> UserHistory | None:
        """Return the user's history: from the log that the release was built from, then from the live logs."""
        live_history = self._history.history(user) if self._history is not None else None
        return merge_histories(stages.find_user_history(user), live_history)

    def _with_latest_history(self, stages: Recommender, request: SlateRequest) -> SlateRequest:
        """Return the request with the user's newest history, if it changed since candidates were retrieved."""
        if stages.filters.remembers is None:
            return request
        latest = self._user_history(stages, request.user)
        earlier_history = request.history
        if latest is None or (
            earlier_history is not None
            and latest.items.equals(earlier_history.items)
            and latest.positive.equals(earlier_history.positive)
        ):
            return request
        return replace(request, latest=latest)

    def _begin_retrieval(self, stages: Recommender, request: SlateRequest) -> Callable[[], SlateCandidates]:
        max_candidates = stages.candidates
        if not 1 <= request.k <= max_candidates:
            raise BadRequestError(f"k: got {request.k}; wanted 1 to {max_candidates}, the candidates of a request")
        try:
            return stages.begin(request)
        except SlateRequestError as error:
            raise BadRequestError(str(error)) from None

    def _logged_response(
        self, stages: Recommender, request: SlateRequest, candidates: SlateCandidates, scored_rows: ModelScores,
        slate: Slate, delay_seconds: float | None,
    ) -> LoggedResponse:  # fmt: skip
        """Return the response to log: the rows shown, and how the slate was made."""
        rows, features = slate.rows, scored_rows.features
        if features is not None:
            features = UsedFeatures(
                {name: tensor[rows] for name, tensor in features.tensors.items()}, features.counted_until
            )
        sources, filters = candidates.source_counts, candidates.removed_counts + Counter(slate.removed.filters)
        names = [rule.name for rule in stages.filters.rules]
        slate_values = (
            stages.digest, list(slate.sources), slate.values, slate.propensities, *slate.place_propensities(),
            slate.explored, slate.given_up(), request.k,
            candidates.retrieved, list(sources), np.array(list(sources.values()), np.int64),
            names, np.array([filters.get(name, 0) for name in names], np.int64),
            list(candidates.fallback), slate.without_value,
        )  # fmt: skip
        trace = (
            slate_trace(request, candidates, scored_rows)
            if slate.explored or self._service.samples_features(request.id)
            else _NO_SLATE
        )
        further_scores = {name: scores[rows] for name, scores in scored_rows.further_scores.items()}
        status = 500 if scored_rows.unusable_rows else OK
        return LoggedResponse(
            status,
            scored_rows.scores[rows],
            scored_rows.degraded,
            features,
            delay_seconds,
            further_scores,
            (*slate_values, *trace),
        )

    def _count(self, request: SlateRequest, candidates: SlateCandidates, slate: Slate) -> None:
        metrics = self._service.metrics
        metrics.rows.inc(len(candidates.items))
        metrics.slates.inc()
        metrics.short_slates.inc(len(slate.items) < request.k)
        if not len(slate.items):
            metrics.empty_slates.labels(_empty_reason(candidates, slate)).inc()
        for name, count in candidates.source_counts.items():
            metrics.candidates.labels(name).inc(count)
        for name, count in (candidates.removed_counts + Counter(slate.removed.filters)).items():
            metrics.removed.labels(name).inc(count)
        for name in candidates.fallback:
            metrics.fallbacks.labels(name).inc()

    def _response(
        self, request: SlateRequest, candidates: SlateCandidates, scored_rows: ModelScores, slate: Slate
    ) -> InferenceResponse:
        items, datatypes = slate.items, self.outputs
        positions = np.arange(1, len(items) + 1, dtype=np.int32)
        slate_values = (_item_values(items), slate.values, slate.sources, positions, slate.propensities)
        names = (self._item, *(name for name in SLATE_OUTPUTS if name != SCORE))
        values_by_name = dict(zip(names, slate_values, strict=True))
        values_by_name.update((name, scores[slate.rows]) for name, scores in scored_rows.further_scores.items())
        further_outputs = tuple(Output(name, datatypes[name], values) for name, values in values_by_name.items())
        parameters: dict[str, bool | str] = {
            "explored": slate.explored, "short": len(items) < request.k, "fallback": ",".join(candidates.fallback),
        }  # fmt: skip
        if not len(items):
            parameters["empty"] = _empty_message(candidates, slate)
        return InferenceResponse(
            scored_rows.scores[slate.rows], request.id, scored_rows.degraded, further_outputs, parameters
        )


def _empty_reason(candidates: SlateCandidates, slate: Slate) -> Literal["no_candidates", "filtered", "no_value"]:
    if len(candidates.items):
        return "filtered" if len(slate.removed.items) == len(candidates.items) else "no_value"
    return "filtered" if candidates.retrieved else "no_candidates"


def _empty_message(candidates: SlateCandidates, slate: Slate) -> str:
    if _empty_reason(candidates, slate) == "no_value":
        return f"none of {len(candidates.items)} candidates has a value that is a number"
    counts = candidates.removed_counts + Counter(slate.removed.filters)
    removed = ", ".join(f"'{name}' removed {count}" for name, count in counts.items())
    return f"no item is left for this request: {candidates.retrieved} candidates, {removed or 'none of any source'}"


def slate_trace(request: SlateRequest, candidates: SlateCandidates, scored_rows: ModelScores) -> tuple[Any, ...]:
    """Return the last values of `SLATE_COLUMNS`: everything needed to compute the slate again."""
    return (
        request_to_json(request), _item_values(candidates.items), scored_rows.scores,
        np.concatenate([np.zeros(0, np.float32), *scored_rows.further_scores.values()]), list(candidates.sources),
        _item_values(candidates.removed.items), list(candidates.removed.filters),
    )  # fmt: skip


def request_to_json(request: SlateRequest) -> str:
    """Return a request as JSON; see `request_from_json`."""
    fields = {
        "user": request.user, "k": request.k, "now": request.now, "context": dict(request.context),
        "recent": request.recent, "history": _history_to_json(request.history),
    }  # fmt: skip
    if request.latest is not None:
        fields["latest"] = _history_to_json(request.latest)
    return orjson.dumps(fields).decode()


def request_from_json(
    request_id: str, text: str, item_type: pl.DataType, types: Mapping[str, pl.DataType]
) -> SlateRequest:
    """Return the request in a JSON text of `request_to_json`.

    Args:
        request_id: Its id.
        text: The JSON.
        item_type: Type of item ids.
        types: Types of the candidates' columns, by name.
    """
    fields = orjson.loads(text)
    request = SlateRequest(
        request_id,
        fields["user"],
        fields["k"],
        datetime.fromisoformat(fields["now"]),
        fields["context"],
        fields["recent"],
    )
    dates = {
        name: datetime.fromisoformat(value).date()
        for name, value in request.context.items()
        if value is not None and types.get(name) == pl.Date()
    }
    history, latest = (_history_from_json(fields.get(name), item_type) for name in ("history", "latest"))
    return replace(request, context={**request.context, **dates}, history=history, latest=latest)


def _history_to_json(history: UserHistory | None) -> list[Any] | None:
    return None if history is None else [history.items.to_list(), history.times.to_list(), history.positive.to_list()]


def _history_from_json(columns: list[Any] | None, item_type: pl.DataType) -> UserHistory | None:
    if columns is None:
        return None
    items, times, positive = columns
    history_times = pl.Series([datetime.fromisoformat(time) for time in times], dtype=pl.Datetime("us", "UTC"))
    return UserHistory(pl.Series(items, dtype=item_type), history_times, pl.Series(positive, dtype=pl.Boolean()))


def _item_values(items: pl.Series) -> Any:
    return items.to_list() if _is_text(items) else items.to_numpy()


def _is_text(items: pl.Series) -> bool:
    return items.dtype == pl.String()
