"""Answers a request: columns, features, scores, and a line in the prediction log."""

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
from shortlist.serving.server.admission import Admission, Held, Place
from shortlist.serving.server.columns import Codes
from shortlist.serving.server.event_counts import EventCounts
from shortlist.serving.server.feature_sample import NO_FEATURES, UsedFeatures
from shortlist.serving.server.headers import RequestContext, recommend_model
from shortlist.serving.server.inputs import Input, InputReader, Inputs
from shortlist.serving.server.logged_columns import bytes_of
from shortlist.serving.server.metrics import Metrics
from shortlist.serving.server.predictor import Predictor, Scores
from shortlist.serving.server.request_errors import BadScoresError, UnknownModelError
from shortlist.serving.server.settings import ServerSettings
from shortlist.serving.server.snapshot_refresher import SnapshotRefresher
from shortlist.serving.server.tensor_assembler import Tables, TensorAssembler, Tensors
from shortlist.serving.server.tensors import Tensor
from shortlist.serving.server.users import Users, distinct_users
from shortlist.serving.server.view_table import ViewTable

OK: Final = int(HTTPStatus.OK)


@dataclass(frozen=True)
class InferenceRequest:
    """A request, whatever protocol it came by."""

    model: str
    version: str
    """Empty: whichever is served."""
    tensors: Sequence[Tensor]
    context: RequestContext
    id: str = ""
    """The protocol's own name of the request; the answer repeats it."""


class Output(NamedTuple):
    """A tensor of an answer, of one dimension."""

    name: str
    datatype: str
    values: NDArray[Any] | Sequence[str]


@dataclass(frozen=True)
class InferenceResponse:
    """Scores in the order of the request; of a request for recommendations, in the order in which items are shown."""

    scores: Scores
    request_id: str
    degraded: bool
    """Features that could not be read counted as unknown."""
    beside: tuple[Output, ...] = ()
    """Outputs beside the scores."""
    told: Mapping[str, bool | str] = field(default_factory=dict)
    """Further parameters."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Every tensor."""
        return (Output(SCORE, "FP32", self.scores), *self.beside)

    def named(self, wanted: Collection[str]) -> tuple[Output, ...]:
        """Return the scores, and of what is beside them the outputs that a client names, or all where it names none."""
        return tuple(one for one in self.outputs if not wanted or one.name in wanted or one.name == SCORE)


class Given(NamedTuple):
    """What was answered, as the prediction log has it."""

    status: int
    scores: Scores
    degraded: bool
    used: UsedFeatures | None
    """Features that scored it; None where nothing was scored."""
    behind_seconds: float | None
    """How far behind the counts of the open tiles were; None where nothing is counted."""
    further: Mapping[str, Scores] = MappingProxyType({})
    """Scores of further labels, by the name of their output."""
    slate: tuple[Any, ...] = NO_SLATE
    """Values of `SLATE_COLUMNS`."""


class Scored(NamedTuple):
    """What the model gave for some rows."""

    scores: Scores
    degraded: bool
    used: UsedFeatures | None
    """Features that scored them; None where there was no row."""
    further: Mapping[str, Scores] = MappingProxyType({})
    """Scores of further labels, by the name of their output."""

    @property
    def unusable(self) -> int:
        """Number of rows of which a score is no finite number."""
        finite = np.isfinite(np.stack([self.scores, *self.further.values()]))
        return int(np.count_nonzero(~finite.all(axis=0)))


LookedUp = tuple[ViewTable, bool]
"""Users' features, and whether all could be read."""


class RecommendsItems(Protocol):
    """Answers requests for recommendations; `Recommending` is one."""

    @property
    def inputs(self) -> Sequence[Input]:
        """What may be sent."""
        ...

    @property
    def outputs(self) -> Mapping[str, str]:
        """Datatype of every output by its name."""
        ...

    @property
    def problem(self) -> str | None:
        """What is wrong though answers are given."""
        ...

    @property
    def index_age_seconds(self) -> float:
        """Seconds since the end (UTC) of the newest day that the sources of candidates learnt from."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether slates can be answered."""
        ...

    async def answer(self, question: InferenceRequest, place: Place | None) -> InferenceResponse:
        """Return the slate of a request; raises `RequestError`."""
        ...


class Service:
    """One model behind all protocols."""

    def __init__(
        self, settings: ServerSettings, assembler: TensorAssembler, refresh: SnapshotRefresher, users: Users | None,
        predictor: Predictor, log: LogWriter, metrics: Metrics, counts: EventCounts | None = None,
    ) -> None:  # fmt: skip
        self.recommending: RecommendsItems | None = None
        """Answers requests for recommendations; None: there are none."""
        self.settings = settings
        self.metrics = metrics
        serving = settings.serving
        self.inputs = InputReader(assembler.needs, assembler.widths, serving.max_rows, serving.limits)
        self._assembler = assembler
        self._refresh = refresh
        self._users = users
        self._predictor = predictor
        self._prediction_log = log
        self._counts = counts
        data = assembler.needs.declared.data
        self._user, self._item = data.user, data.item
        self.outputs = assembler.signature.scores
        """Names of what it answers: the score of the label, then those of further labels."""
        self._scores = dict.fromkeys(self.outputs, "FP32")
        self._further = tuple(map(score_column, data.labels))
        self._logged = (Columns.TIME, *logged_inputs(data))
        self._feature_share = serving.log.sampling * serving.log.feature_sampling
        self.data = data
        """The log's declaration."""
        self.admission = Admission(settings.serving.overload)
        self.held = Held(serving.limits.max_buffered_bytes)
        """The requests of all connections."""
        self.stopping = False

    async def is_ready(self) -> bool:
        """Whether there is a snapshot and a model to score with."""
        counted = self._counts is None or self._counts.counted_at is not None
        recommends = self.recommending is None or self.recommending.is_ready
        ready = self._refresh.current is not None and counted and recommends and not self.stopping
        return ready and await self._predictor.is_ready()

    def problems(self) -> dict[str, str]:
        """Return what is wrong though answers are given: views, users' features, the log, events, candidates."""
        parts = {
            "views": self._refresh, "users": self._users, "log": self._prediction_log, "events": self._counts,
            "candidates": self.recommending,
        }  # fmt: skip
        found = {name: part.problem for name, part in parts.items() if part is not None and part.problem is not None}
        if dropped := self._prediction_log.dropped:  # that stays so when the disk has room again
            found["log"] = f"{found.get('log', 'it is written again')} ({dropped:,} answers are missing in it)"
        return found

    def check_model(self, model: str, version: str) -> None:
        """Refuse a model that is not served here.

        Raises:
            UnknownModelError: Its name or version is another.
        """
        own = self.settings
        names = [own.model] if self.recommending is None else [own.model, recommend_model(own.model)]
        if model not in names or version not in ("", str(own.version)):
            got = f"'{model}'" + (f" version {version}" if version else "")
            here = " and ".join(f"'{name}'" for name in names)
            verb = "is" if len(names) == 1 else "are"
            raise UnknownModelError(f"got model {got}; here {verb} {here} version {own.version}")

    def recommends(self, model: str) -> bool:
        """Whether a model that is served here answers with items that it finds itself."""
        return self.recommending is not None and model == recommend_model(self.settings.model)

    def inputs_of(self, model: str) -> Sequence[Input]:
        """Return what may be sent to a model that is served here."""
        if self.recommending is not None and self.recommends(model):
            return self.recommending.inputs
        return self.inputs.inputs

    def outputs_of(self, model: str) -> Mapping[str, str]:
        """Return the datatype of every output by its name; of an unknown model those of the scores."""
        if self.recommending is not None and self.recommends(model):
            return self.recommending.outputs
        return self._scores

    async def answer(self, question: InferenceRequest, place: Place | None = None) -> InferenceResponse:
        """Return the scores of a request.

        Args:
            question: The request.
            place: Its place of `admission`, left while it waits for the model server.

        Raises:
            RequestError: What is wrong with it, or with the model.
        """
        started = time.perf_counter()
        now = time.time_ns() // 1000
        self.check_model(question.model, question.version)
        if self.recommending is not None and self.recommends(question.model):
            return await self.recommending.answer(question, place)
        inputs = self.inputs.read(question.tensors, now)
        if self._counts is not None:
            self._counts.check(inputs)
        request_id = question.context.request_id or question.id or uuid.uuid4().hex
        behind = self.behind_seconds
        scored = await self.score(inputs, place)
        bad = scored.unusable
        given = Given(500 if bad else OK, *scored[:3], behind, scored.further)
        times = now, (time.perf_counter() - started) * 1000
        await self.note(question.context, request_id, times, lambda: (inputs, given))
        if bad:
            raise BadScoresError(f"the model gave {bad} of {inputs.rows} scores that are no finite numbers")
        self.metrics.rows.inc(inputs.rows)
        beside = tuple(Output(name, "FP32", own) for name, own in scored.further.items())
        return InferenceResponse(scored.scores, request_id, scored.degraded, beside)

    def _by_output(self, scores: Scores) -> tuple[Scores, Mapping[str, Scores]]:
        """Return the scores of the label, and those of further labels by the name of their output."""
        if len(self.outputs) == 1:
            return scores, {}
        first, *others = np.ascontiguousarray(scores.reshape(-1, len(self.outputs)).T)
        return first, dict(zip(self.outputs[1:], others, strict=True))

    @property
    def behind_seconds(self) -> float | None:
        """How far behind the counts of the open tiles are; None where nothing is counted."""
        return None if self._counts is None else self._counts.delay_seconds

    async def note(
        self, context: RequestContext, request_id: str, times: tuple[int, float],
        answered: Callable[[], tuple[Inputs, Given]],
    ) -> None:  # fmt: skip
        """See that an answer is logged, and its rows counted where rows are counted as they arrive.

        Args:
            context: Of the request.
            request_id: Its id.
            times: Microseconds since 1970-01-01 UTC when it began, and milliseconds that were spent on it.
            answered: Returns what the rows that are shown say, and what is answered.
        """
        answered = cache(answered)
        # After the answer is on its way: nobody waits for the log.
        asyncio.get_running_loop().call_soon(self._log, context, request_id, times, answered)
        if self._counts is not None:
            inputs, given = answered()
            if inputs.rows and given.status == OK:
                await self._counts.keep(request_id, times[0], inputs)

    async def score(self, inputs: Inputs, place: Place | None, users: LookedUp | None = None) -> Scored:
        """Return the scores of rows.

        Args:
            inputs: What is known of them.
            place: The request's; see `Predictor.scores`.
            users: From `users_of`; None: they are looked up.

        Raises:
            RequestError: What is wrong with the model.
        """
        if not inputs.rows:
            none = np.zeros(0, np.float32)
            return Scored(none, False, None, dict.fromkeys(self.outputs[1:], none))
        counted_until = self._refresh.counted_until
        tables, degraded = await self.tables(inputs, users)
        if degraded:
            self.metrics.degraded.inc()
        tensors = self.tensors(inputs, tables)
        scores = await self._predictor.scores(tensors, inputs.rows, place)
        first, further = self._by_output(scores)
        return Scored(first, degraded, UsedFeatures(tensors, counted_until), further)

    async def tables(self, inputs: Inputs, users: LookedUp | None = None) -> tuple[Tables, bool]:
        """Return what there is to look up for a request, and whether some of it counts as unknown.

        Args:
            inputs: What is known of its rows.
            users: From `users_of`; None: they are looked up.
        """
        snapshot = self._refresh.current
        tables = dict(snapshot.tables) if snapshot is not None else {}
        degraded = snapshot is None or bool(snapshot.unknown)
        for step in self._assembler.steps:
            if step is not self._assembler.user and step.name not in tables:
                tables[step.name] = ViewTable.unknown(step, self._assembler.widths)
        users = users or await self.users_of(inputs)
        if self._assembler.user is not None and users is not None:
            tables[self._assembler.user.name], whole = users
            degraded = degraded or not whole
        return tables, degraded

    def tensors(self, inputs: Inputs, tables: Tables) -> Tensors:
        """Return the inputs of the model for a request."""
        counts = {} if self._counts is None else self._counts.columns(inputs)
        most_tags = self.settings.serving.limits.max_tag_values
        return self._assembler.tensors({**inputs.columns, **counts}, tables, inputs.rows, most_tags=most_tags)

    async def users_of(self, inputs: Inputs) -> LookedUp | None:
        """Return the features of a request's users; None: the model reads none."""
        if self._users is None:
            return None
        assert self._user is not None
        column = cast(Codes, inputs.columns[self._user])
        users, codes = distinct_users(column, inputs.keys.get(self._user, column))
        return await self._users.table(users, codes)

    def _log(
        self, context: RequestContext, request_id: str, times: tuple[int, float],
        answered: Callable[[], tuple[Inputs, Given]],
    ) -> None:  # fmt: skip
        """Add a row to the prediction log; its columns are `prediction_schema`'s."""
        if not is_sampled(request_id, self.settings.serving.log.sampling):
            return
        inputs, given = answered()
        now, spent_ms = times
        behind_ms = None if given.behind_seconds is None else given.behind_seconds * 1000
        features = NO_FEATURES
        # The hashes that are in the smaller share are in the larger one too.
        if given.used is not None and self.keeps_features(request_id):
            features = given.used.columns(self._assembler.signature)
        row = (
            datetime.fromtimestamp(now / 1e6, UTC), request_id, context.user or self._user_of(inputs),
            context.user is not None, context.track, context.rollout, context.step, self.settings.version, given.status,
            inputs.digest, spent_ms, given.degraded, behind_ms, self.settings.serving.log.sampling,
            self._items_of(inputs), given.scores, *map(given.further.get, self._further),
            *map(inputs.sent.get, self._logged), *features, *given.slate,
        )  # fmt: skip
        self._prediction_log.add(row, bytes_of(row))

    def keeps_features(self, request_id: str) -> bool:
        """Whether an answer is logged with what scored it, and a slate with all stages of its request."""
        return self._feature_share > 0 and is_sampled(request_id, self._feature_share)

    def _user_of(self, inputs: Inputs) -> str | None:
        sent = inputs.keys.get(self._user or "", ())
        return str(sent[0]) if len(sent) == 1 and sent[0] not in (None, NO_CODE) else None

    def _items_of(self, inputs: Inputs) -> Sequence[Any] | Codes | None:
        sent = inputs.keys.get(self._item or "")
        if sent is None:
            return None
        if len(sent) == inputs.rows:
            return sent
        return sent.repeat(inputs.rows) if isinstance(sent, np.ndarray) else [*sent] * inputs.rows
