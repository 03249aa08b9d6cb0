"""Answers a request: columns, features, scores, and a line in the prediction log."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from shortlist.contracts import Columns, score_column
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.log.log_writer import LogWriter, is_sampled
from shortlist.serving.log.logs import logged_inputs
from shortlist.serving.server.admission import Admission, Place
from shortlist.serving.server.columns import Codes
from shortlist.serving.server.event_counts import EventCounts
from shortlist.serving.server.feature_sample import NO_FEATURES, UsedFeatures
from shortlist.serving.server.headers import RequestContext
from shortlist.serving.server.inputs import InputReader, Inputs
from shortlist.serving.server.metrics import Metrics
from shortlist.serving.server.predictor import Predictor, Scores
from shortlist.serving.server.request_errors import BadScoresError, UnknownModelError
from shortlist.serving.server.settings import ServerSettings
from shortlist.serving.server.snapshot_refresher import SnapshotRefresher
from shortlist.serving.server.tensor_assembler import Tables, TensorAssembler, Tensors
from shortlist.serving.server.tensors import Tensor
from shortlist.serving.server.users import Users, distinct_users
from shortlist.serving.server.view_table import ViewTable


@dataclass(frozen=True)
class InferenceRequest:
    """A request, whatever protocol it came by."""

    model: str
    version: str
    """Empty: whichever is served."""
    tensors: Sequence[Tensor]
    origin: RequestContext
    id: str = ""
    """The protocol's own name of the request; the answer repeats it."""


@dataclass(frozen=True)
class InferenceResponse:
    """Scores in the order of the request."""

    scores: Scores
    request_id: str
    degraded: bool
    """Features that could not be read counted as unknown."""
    further: Mapping[str, Scores] = field(default_factory=dict)
    """Scores of further labels, by the name of their output."""


def asked_for(further: Mapping[str, Scores], outputs: Collection[str]) -> Mapping[str, Scores]:
    """Return the scores of further labels that a client wants: those that it names, or all where it names none."""
    return {name: scores for name, scores in further.items() if not outputs or name in outputs}


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
    """As `InferenceResponse.further`."""


class Service:
    """One model behind all protocols."""

    def __init__(
        self, settings: ServerSettings, assembler: TensorAssembler, refresh: SnapshotRefresher, users: Users | None,
        predictor: Predictor, log: LogWriter, metrics: Metrics, counts: EventCounts | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.metrics = metrics
        serving = settings.serving
        longest = serving.limits.max_text_length
        self.inputs = InputReader(assembler.needs, assembler.widths, serving.max_rows, longest)
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
        self._further = tuple(map(score_column, data.labels))
        self._logged = (Columns.TIME, *logged_inputs(data))
        self._feature_share = serving.log.sampling * serving.log.feature_sampling
        self.admission = Admission(settings.serving.overload)
        self.stopping = False

    async def is_ready(self) -> bool:
        """Whether there is a snapshot and a model to score with."""
        counted = self._counts is None or self._counts.counted_at is not None
        ready = self._refresh.current is not None and counted and not self.stopping
        return ready and await self._predictor.is_ready()

    def problems(self) -> dict[str, str]:
        """Return what is wrong though answers are given: newer views, users' features, the prediction log, events."""
        parts = {"views": self._refresh, "users": self._users, "log": self._prediction_log, "events": self._counts}
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
        if model != own.model or version not in ("", str(own.version)):
            got = f"'{model}'" + (f" version {version}" if version else "")
            raise UnknownModelError(f"got model {got}; here is '{own.model}' version {own.version}")

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
        inputs = self.inputs.read(question.tensors, now)
        request_id = question.origin.request_id or question.id or uuid.uuid4().hex
        behind = None if self._counts is None else self._counts.delay_seconds
        scores, degraded, used = await self._scores(inputs, place)
        scores, further = self._by_output(scores)
        unusable = ~np.isfinite(np.stack([scores, *further.values()])).all(axis=0)
        bad = int(np.count_nonzero(unusable))
        times = (now, (time.perf_counter() - started) * 1000)
        given = Given(500 if bad else 200, scores, degraded, used, behind, further)
        # After the answer is on its way: nobody waits for the log.
        asyncio.get_running_loop().call_soon(self._note, inputs, question.origin, request_id, given, times)
        if self._counts is not None and inputs.rows and not bad:
            await self._counts.keep(request_id, now, inputs)
        if bad:
            raise BadScoresError(f"the model gave {bad} of {inputs.rows} scores that are no finite numbers")
        self.metrics.rows.inc(inputs.rows)
        return InferenceResponse(scores, request_id, degraded, further)

    def _by_output(self, scores: Scores) -> tuple[Scores, Mapping[str, Scores]]:
        """Return the scores of the label, and those of further labels by the name of their output."""
        if len(self.outputs) == 1:
            return scores, {}
        first, *others = np.ascontiguousarray(scores.reshape(-1, len(self.outputs)).T)
        return first, dict(zip(self.outputs[1:], others, strict=True))

    async def _scores(self, inputs: Inputs, place: Place | None) -> tuple[Scores, bool, UsedFeatures | None]:
        if not inputs.rows:
            return np.zeros(0, np.float32), False, None
        counted_until = self._refresh.counted_until
        tables, degraded = await self.tables(inputs)
        if degraded:
            self.metrics.degraded.inc()
        tensors = self.tensors(inputs, tables)
        scores = await self._predictor.scores(tensors, inputs.rows, place)
        return scores, degraded, UsedFeatures(tensors, counted_until)

    async def tables(self, inputs: Inputs) -> tuple[Tables, bool]:
        """Return what there is to look up for a request, and whether some of it counts as unknown."""
        snapshot = self._refresh.current
        tables = dict(snapshot.tables) if snapshot is not None else {}
        degraded = snapshot is None or bool(snapshot.unknown)
        for step in self._assembler.steps:
            if step is not self._assembler.user and step.name not in tables:
                tables[step.name] = ViewTable.unknown(step, self._assembler.widths)
        if self._assembler.user is not None:
            tables[self._assembler.user.name], whole = await self._of_users(inputs)
            degraded = degraded or not whole
        return tables, degraded

    def tensors(self, inputs: Inputs, tables: Tables) -> Tensors:
        """Return the inputs of the model for a request."""
        counts = {} if self._counts is None else self._counts.columns(inputs)
        return self._assembler.tensors({**inputs.columns, **counts}, tables, inputs.rows)

    async def _of_users(self, inputs: Inputs) -> tuple[ViewTable, bool]:
        assert self._users is not None
        assert self._user is not None
        column = cast(Codes, inputs.columns[self._user])
        users, codes = distinct_users(column, inputs.keys.get(self._user, column))
        return await self._users.table(users, codes)

    def _note(
        self,
        inputs: Inputs,
        origin: RequestContext,
        request_id: str,
        given: Given,
        times: tuple[int, float],
    ) -> None:
        """Add a row to the prediction log; its columns are `prediction_schema`'s."""
        if not is_sampled(request_id, self.settings.serving.log.sampling):
            return
        now, spent_ms = times
        behind_ms = None if given.behind_seconds is None else given.behind_seconds * 1000
        features, values = NO_FEATURES, inputs.rows * len(inputs.sent)
        # The hashes that are in the smaller share are in the larger one too.
        if given.used is not None and self._feature_share > 0 and is_sampled(request_id, self._feature_share):
            features, values = given.used.columns(self._assembler.signature), values + given.used.values
        self._prediction_log.add((
            datetime.fromtimestamp(now / 1e6, UTC), request_id, origin.user or self._user_of(inputs),
            origin.user is not None, origin.track, origin.rollout, origin.step, self.settings.version, given.status,
            inputs.digest, spent_ms, given.degraded, behind_ms, self.settings.serving.log.sampling,
            self._items_of(inputs), given.scores, *map(given.further.get, self._further),
            *map(inputs.sent.get, self._logged), *features,
        ), values)  # fmt: skip

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
