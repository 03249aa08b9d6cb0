"""Scores one request: reads its columns, looks up features, asks the model, logs the response."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from shortlist.contracts import Columns, score_column
from shortlist.serving.export.signature import NO_CODE, SCORE
from shortlist.serving.log.log_writer import LogWriter, is_sampled
from shortlist.serving.log.logs import NO_SLATE, logged_inputs
from shortlist.serving.server.features.columns import Codes
from shortlist.serving.server.features.snapshot_refresher import SnapshotRefresher
from shortlist.serving.server.features.tensor_assembler import Tables, TensorAssembler, Tensors
from shortlist.serving.server.features.user_features import UserFeatureStore, distinct_users
from shortlist.serving.server.features.view_table import ViewTable
from shortlist.serving.server.inference.event_counts import EventCounts
from shortlist.serving.server.inference.event_receiver import EventReceiver
from shortlist.serving.server.prediction_log.feature_sample import NO_FEATURES, UsedFeatures
from shortlist.serving.server.prediction_log.logged_columns import memory_bytes
from shortlist.serving.server.request_inputs.input_reader import InputReader, Inputs, InputSpec
from shortlist.serving.server.request_inputs.version_inputs import VersionInputs
from shortlist.serving.server.requests.admission import Admission, AdmissionSlot, BufferedBytes
from shortlist.serving.server.requests.headers import GATEWAY_HEADER, RequestContext, recommend_model
from shortlist.serving.server.requests.request_errors import BadScoresError, UnknownModelError
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.metrics import Metrics
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.scoring.predictor import Predictor, Scores
from shortlist.serving.stack_secrets import sampling_key
from shortlist.storage.objects import ObjectStore

OK: Final = int(HTTPStatus.OK)


@dataclass(frozen=True)
class InferenceRequest:
    """An inference request, independent of its protocol."""

    model: str
    version: str
    """Model version that was asked for; empty: the version that is served."""
    tensors: Sequence[Tensor]
    context: RequestContext
    id: str = ""
    """Request id of the protocol, repeated in the response; empty when none was sent."""


class Output(NamedTuple):
    """A one-dimensional output tensor of a response."""

    name: str
    datatype: str
    values: NDArray[Any] | Sequence[str]


@dataclass(frozen=True)
class InferenceResponse:
    """Response to an inference request: scores in the order of its rows, or of the slate's items."""

    scores: Scores
    request_id: str
    degraded: bool
    """Whether some features could not be read and counted as unknown."""
    further_outputs: tuple[Output, ...] = ()
    """Outputs besides the scores of the label."""
    parameters: Mapping[str, bool | str] = field(default_factory=dict)
    """Further response parameters, by name."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """All output tensors, the scores of the label first."""
        return (Output(SCORE, "FP32", self.scores), *self.further_outputs)

    def select_outputs(self, names: Collection[str]) -> tuple[Output, ...]:
        """Return the scores and the named further outputs; all further outputs when no name is given."""
        return tuple(output for output in self.outputs if not names or output.name in names or output.name == SCORE)


class LoggedResponse(NamedTuple):
    """A response as it is written to the prediction log."""

    status: int
    scores: Scores
    degraded: bool
    features: UsedFeatures | None
    """Features that the model read; None when nothing was scored."""
    counts_delay_seconds: float | None
    """Delay of the live counts in seconds; None when the model reads no live counts."""
    further_scores: Mapping[str, Scores] = MappingProxyType({})
    """Scores of further labels, by the name of their output."""
    slate: tuple[Any, ...] = NO_SLATE
    """Values of the columns `SLATE_COLUMNS`, in their order."""


class ModelScores(NamedTuple):
    """Scores that the model returned for some rows."""

    scores: Scores
    degraded: bool
    features: UsedFeatures | None
    """Features that the model read; None when there were no rows."""
    further_scores: Mapping[str, Scores] = MappingProxyType({})
    """Scores of further labels, by the name of their output."""

    @property
    def unusable_rows(self) -> int:
        """Number of rows with a score that is not a finite number."""
        finite = np.isfinite(np.stack([self.scores, *self.further_scores.values()]))
        return int(np.count_nonzero(~finite.all(axis=0)))


UserFeatures = tuple[ViewTable, bool]
"""Features of users, and whether all of them could be read."""


class RecommendsItems(Protocol):
    """Interface of what answers requests for recommendations; see `RecommendationService`."""

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """What may be sent."""
        ...

    @property
    def outputs(self) -> Mapping[str, str]:
        """Datatype of every output by its name."""
        ...

    @property
    def context_names(self) -> Sequence[str]:
        """Columns of the log that a request may contain beside its user."""
        ...

    @property
    def scored_item_columns(self) -> Sequence[str]:
        """Item columns (`retrieval.item_columns`) that the model reads."""
        ...

    def item_values(self, items: Sequence[int | str]) -> list[dict[str, Any] | None]:
        """Return the item columns of items, by name; None for an item that is not released."""
        ...

    @property
    def max_k(self) -> int:
        """Most items of a slate."""
        ...

    @property
    def problem(self) -> str | None:
        """Why recommendations are degraded; None when they are not."""
        ...

    @property
    def index_age_seconds(self) -> float:
        """Seconds since the end (UTC) of the newest day that the candidate sources were fitted on."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether slates can be served."""
        ...

    async def answer(self, request: InferenceRequest, slot: AdmissionSlot | None) -> InferenceResponse:
        """Return the slate of a request, or raise `RequestError`."""
        ...


class Service:
    """Scores requests to one model, for all protocols."""

    def __init__(
        self, settings: ServerSettings, assembler: TensorAssembler, refresh: SnapshotRefresher,
        users: UserFeatureStore | None, predictor: Predictor, log: LogWriter, metrics: Metrics,
        counts: EventCounts | None = None,
    ) -> None:  # fmt: skip
        self.recommending: RecommendsItems | None = None
        """Serves recommendations; None when the version serves scores only."""
        self.events: EventReceiver | None = None
        """Takes what users saw and did; None where nothing is served."""
        self.settings = settings
        self.metrics = metrics
        serving = settings.serving
        location, poll_seconds = settings.store_location, settings.serving.refresh_seconds
        objects = ObjectStore.in_folder(settings.predictions.parent) if location is None else location.objects
        self.version_inputs = VersionInputs(objects, settings.version, metrics, poll_seconds)
        """Inputs that other versions on the port know."""
        self.inputs = InputReader(
            assembler.requirements, assembler.widths, serving.max_rows, serving.limits, self.version_inputs.passes_over
        )
        self.version_inputs.declare(self.inputs.accepted_names, [spec.name for spec in self.inputs.inputs])
        self.version_inputs.poll()  # written before the server is ready
        self._assembler = assembler
        self._refresh = refresh
        self._users = users
        self._predictor = predictor
        self._prediction_log = log
        self._counts = counts
        data = assembler.requirements.declared.data
        self._user, self._item = data.user, data.item
        self.outputs = assembler.signature.scores
        """Output names: the score of the label, then the scores of further labels."""
        self._score_datatypes = dict.fromkeys(self.outputs, "FP32")
        self._further_columns = tuple(map(score_column, data.labels))
        self._logged_columns = (Columns.TIME, *logged_inputs(data))
        self._sampling_key = sampling_key(settings.secrets)
        self._feature_share = serving.log.sampling * serving.log.feature_sampling
        self.data = data
        """Declared columns of the log."""
        self.admission = Admission(settings.serving.overload)
        self.buffered_bytes = BufferedBytes(serving.limits.max_buffered_bytes)
        """Request bytes buffered by all connections."""
        self.stopping = False

    def request_context(self, headers: Mapping[str, str]) -> RequestContext:
        """Return what the headers of a request say; without the gateway's key nothing that only a gateway may say.

        Args:
            headers: Headers of the request, their names in lower case.
        """
        stack_secrets = self.settings.stack_secrets
        if stack_secrets is not None and not stack_secrets.is_gateway(headers.get(GATEWAY_HEADER, "")):
            return RequestContext.without_gateway(headers)
        return RequestContext.from_headers(headers, None if self.events is None else self.events.senders.name(headers))

    def names_version(self, context: RequestContext, version: str = "") -> bool:
        """Whether the response to a request names the version that made it, and its track.

        A client that knows the track of its users could send requests to one track alone: a request that a gateway
        assigned to a track is only told if it names the version, or if its sender vouches for its users.

        Args:
            context: Headers of the request.
            version: Version that the request names; empty: none.
        """
        return bool(version) or context.track is None or self.settings.serving.vouches_for_users(context.sender)

    def response_headers(self, context: RequestContext, version: str = "") -> dict[str, str]:
        """Return the headers of the response to a request; see `names_version`."""
        return context.response_headers(self.settings.version) if self.names_version(context, version) else {}

    async def is_ready(self) -> bool:
        """Whether views, live counts, recommendations and the model are ready."""
        counted = self._counts is None or self._counts.counted_at is not None
        recommends = self.recommending is None or self.recommending.is_ready
        ready = self._refresh.current is not None and counted and recommends and not self.stopping
        return ready and await self._predictor.is_ready()

    def problems(self) -> dict[str, str]:
        """Return the reason per degraded part: views, users, log, events, candidates."""
        parts = {
            "views": self._refresh, "users": self._users, "log": self._prediction_log, "events": self._counts,
            "candidates": self.recommending,
        }  # fmt: skip
        problem_by_part = {
            name: part.problem for name, part in parts.items() if part is not None and part.problem is not None
        }
        if dropped := self._prediction_log.dropped:  # still missing after the disk has room again
            problem_by_part["log"] = (
                f"{problem_by_part.get('log', 'it is written again')} ({dropped:,} answers are missing in it)"
            )
        return problem_by_part

    def check_model(self, model: str, version: str, names_version: bool = True) -> None:
        """Check that a model and version are served here.

        Args:
            model: Model name.
            version: Version; empty: the one that is served.
            names_version: Whether the message says which version is served here.

        Raises:
            UnknownModelError: Another name or version is served here.
        """
        settings = self.settings
        names = [settings.model] if self.recommending is None else [settings.model, recommend_model(settings.model)]
        if model not in names or version not in ("", str(settings.version)):
            requested = f"'{model}'" + (f" version {version}" if version else "")
            served = " and ".join(f"'{name}'" for name in names)
            verb = "is" if len(names) == 1 else "are"
            served_version = f" version {settings.version}" if names_version else ""
            raise UnknownModelError(f"got model {requested}; here {verb} {served}{served_version}")

    def recommends(self, model: str) -> bool:
        """Whether a model name is the one of the recommendations."""
        return self.recommending is not None and model == recommend_model(self.settings.model)

    def inputs_of(self, model: str) -> Sequence[InputSpec]:
        """Return the inputs that a served model accepts."""
        if self.recommending is not None and self.recommends(model):
            return self.recommending.inputs
        return self.inputs.inputs

    def outputs_of(self, model: str) -> Mapping[str, str]:
        """Return the datatype of every output by its name; for an unknown model name, of the scores."""
        if self.recommending is not None and self.recommends(model):
            return self.recommending.outputs
        return self._score_datatypes

    async def answer(self, request: InferenceRequest, slot: AdmissionSlot | None = None) -> InferenceResponse:
        """Return the scores of a request.

        Args:
            request: The request.
            slot: Its admission slot, released while the model server cannot be reached.

        Raises:
            RequestError: The request is invalid, or the model cannot score it.
        """
        started = time.perf_counter()
        now = time.time_ns() // 1000
        self.check_model(request.model, request.version, self.names_version(request.context))
        if self.recommending is not None and self.recommends(request.model):
            return await self.recommending.answer(request, slot)
        inputs = self.inputs.read(request.tensors, now).as_of_receipt(now)
        if self._counts is not None:
            self._counts.check_record_length(inputs)
        request_id = request.context.request_id or request.id or uuid.uuid4().hex
        delay_seconds = self.counts_delay_seconds
        scored_rows = await self.score(inputs, slot)
        bad_rows = scored_rows.unusable_rows
        logged_response = LoggedResponse(
            500 if bad_rows else OK, *scored_rows[:3], delay_seconds, scored_rows.further_scores
        )
        times = now, (time.perf_counter() - started) * 1000
        await self.record_response(request.context, request_id, times, lambda: (inputs, logged_response))
        if bad_rows:
            raise BadScoresError(f"the model returned {bad_rows} of {inputs.rows} scores that are not finite")
        self.metrics.rows.inc(inputs.rows)
        further_outputs = tuple(Output(name, "FP32", scores) for name, scores in scored_rows.further_scores.items())
        return InferenceResponse(scored_rows.scores, request_id, scored_rows.degraded, further_outputs)

    def _split_by_label(self, scores: Scores) -> tuple[Scores, Mapping[str, Scores]]:
        """Return the scores of the label, and the scores of further labels by output name."""
        if len(self.outputs) == 1:
            return scores, {}
        label_scores, *further_scores = np.ascontiguousarray(scores.reshape(-1, len(self.outputs)).T)
        return label_scores, dict(zip(self.outputs[1:], further_scores, strict=True))

    @property
    def counts_delay_seconds(self) -> float | None:
        """Delay of the live counts in seconds; None when the model reads no live counts."""
        return None if self._counts is None else self._counts.delay_seconds

    async def record_response(
        self, context: RequestContext, request_id: str, times: tuple[int, float],
        rows_and_response: Callable[[], tuple[Inputs, LoggedResponse]],
    ) -> None:  # fmt: skip
        """Schedule the log row of a response, and add its rows to the event log when live counts are used.

        Args:
            context: Headers of the request.
            request_id: Its id.
            times: Start of the request in microseconds since 1970-01-01 UTC, and its duration in milliseconds.
            rows_and_response: Returns the inputs of the rows shown, and the response to log.
        """
        rows_and_response, event = cache(rows_and_response), None
        if self._counts is not None:
            inputs, response = rows_and_response()
            if inputs.rows and response.status == OK:
                event = self._counts.decide(request_id, times[0], inputs, context)
        uncounted = event.uncounted if event is not None else ()
        # Scheduled, not awaited: the response does not wait for the log.
        asyncio.get_running_loop().call_soon(self._log, context, request_id, times, uncounted, rows_and_response)
        if self._counts is not None and event is not None:
            await self._counts.log_rows(event)

    async def score(self, inputs: Inputs, slot: AdmissionSlot | None, users: UserFeatures | None = None) -> ModelScores:
        """Return the scores of rows.

        Args:
            inputs: The rows.
            slot: Admission slot of the request; see `Predictor.scores`.
            users: From `look_up_users`; None to look them up.

        Raises:
            RequestError: The model cannot score the rows.
        """
        if not inputs.rows:
            no_scores = np.zeros(0, np.float32)
            return ModelScores(no_scores, False, None, dict.fromkeys(self.outputs[1:], no_scores))
        counted_until = self._refresh.counted_until
        tables, degraded = await self.tables(inputs, users)
        if degraded:
            self.metrics.degraded.inc()
        tensors = self.tensors(inputs, tables)
        scores = await self._predictor.scores(tensors, inputs.rows, slot)
        label_scores, further_scores = self._split_by_label(scores)
        return ModelScores(label_scores, degraded, UsedFeatures(tensors, counted_until), further_scores)

    async def tables(self, inputs: Inputs, users: UserFeatures | None = None) -> tuple[Tables, bool]:
        """Return the tables to look features up in, and whether some features count as unknown.

        Args:
            inputs: The rows of the request.
            users: From `look_up_users`; None to look them up.
        """
        snapshot = self._refresh.current
        tables = dict(snapshot.tables) if snapshot is not None else {}
        degraded = snapshot is None or bool(snapshot.empty_views)
        for step in self._assembler.steps:
            if step is not self._assembler.user and step.name not in tables:
                tables[step.name] = ViewTable.empty(step, self._assembler.widths)
        users = users or await self.look_up_users(inputs)
        if self._assembler.user is not None and users is not None:
            tables[self._assembler.user.name], is_complete = users
            degraded = degraded or not is_complete
        return tables, degraded

    def tensors(self, inputs: Inputs, tables: Tables) -> Tensors:
        """Return the model's input tensors for a request."""
        counts = {} if self._counts is None else self._counts.columns(inputs)
        max_tags = self.settings.serving.limits.max_tag_values
        return self._assembler.tensors({**inputs.columns, **counts}, tables, inputs.rows, max_tags=max_tags)

    async def look_up_users(self, inputs: Inputs) -> UserFeatures | None:
        """Return the features of a request's users; None when the model reads no user features."""
        if self._users is None:
            return None
        assert self._user is not None
        column = cast(Codes, inputs.columns[self._user])
        users, codes = distinct_users(column, inputs.keys.get(self._user, column))
        return await self._users.table(users, codes)

    def _log(
        self, context: RequestContext, request_id: str, times: tuple[int, float], uncounted: Sequence[int],
        rows_and_response: Callable[[], tuple[Inputs, LoggedResponse]],
    ) -> None:  # fmt: skip
        """Add a row to the prediction log, in the column order of `prediction_schema`."""
        if self.events is not None:
            self.events.answers.add(request_id, self._item_ids(rows_and_response()[0]))
        if not is_sampled(request_id, self.settings.serving.log.sampling, self._sampling_key):
            return
        inputs, response = rows_and_response()
        now, spent_ms = times
        counts_delay_ms = None if response.counts_delay_seconds is None else response.counts_delay_seconds * 1000
        features = NO_FEATURES
        # A request that is in the smaller sample is in the larger one too.
        if response.features is not None and self.samples_features(request_id):
            features = response.features.columns(self._assembler.signature)
        row = (
            datetime.fromtimestamp(now / 1e6, UTC), request_id, context.user or self._user_id(inputs),
            context.user is not None, context.sender, context.track, context.rollout, context.step,
            self.settings.version, response.status, inputs.digest, spent_ms, response.degraded, counts_delay_ms,
            uncounted or None, self.settings.serving.log.sampling, self._item_ids(inputs),
            response.scores, *map(response.further_scores.get, self._further_columns),
            *map(inputs.sent.get, self._logged_columns), *features, *response.slate,
        )  # fmt: skip
        self._prediction_log.add(row, memory_bytes(row))

    def samples_features(self, request_id: str) -> bool:
        """Whether a response is logged with its features, and a slate with all stages of its request."""
        return self._feature_share > 0 and is_sampled(request_id, self._feature_share, self._sampling_key)

    def _user_id(self, inputs: Inputs) -> str | None:
        sent = inputs.keys.get(self._user or "", ())
        return str(sent[0]) if len(sent) == 1 and sent[0] not in (None, NO_CODE) else None

    def _item_ids(self, inputs: Inputs) -> Sequence[Any] | Codes | None:
        sent = inputs.keys.get(self._item or "")
        if sent is None:
            return None
        if len(sent) == inputs.rows:
            return sent
        return sent.repeat(inputs.rows) if isinstance(sent, np.ndarray) else [*sent] * inputs.rows
