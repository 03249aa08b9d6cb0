"""The HTTP side of the webhook receiver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final, Literal

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monitoring.alerts.alerts import ALARM
from monitoring.exposition import MonitoringCollector
from monitoring.receiver.bearer import Bearer
from monitoring.receiver.retrainer import Retrainer, RetrainerResponse, RetryLaterError
from monitoring.store.monitoring_store import MonitoringStore
from shortlist.contracts import ShortlistError
from shortlist.storage.storage_config import redact_passwords


class StoresCollector(Collector):
    """Reads the monitoring stores anew whenever somebody asks.

    Args:
        stores: Of one spec each.
    """

    def __init__(self, stores: Iterable[MonitoringStore]) -> None:
        self._collectors = [MonitoringCollector(monitoring_store) for monitoring_store in stores]

    def describe(self) -> Iterator[Metric]:
        """Return nothing: no monitoring store is read only because a registry learns of this collector."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return every number; Prometheus' text format wants those of one name together."""
        families: dict[str, Metric] = {}
        for collector in self._collectors:
            for metric in collector.collect():
                families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type)).samples.extend(
                    metric.samples
                )
        yield from families.values()


_Text = Annotated[str, StringConstraints(max_length=4_096)]
_Texts = Annotated[dict[_Text, _Text], Field(max_length=64)]
_MOST_ALERTS: Final = 1_000


class NotificationError(ShortlistError):
    """A body is no notification of Alertmanager's; sending it again does not help."""


class _Received(BaseModel):
    # Alertmanager adds fields from release to release; what is not read here may be anything.
    model_config = ConfigDict(frozen=True, extra="ignore")


class ReceivedAlert(_Received):
    """One alert of a notification."""

    status: Literal["firing", "resolved"]
    labels: _Texts
    annotations: _Texts = {}
    startsAt: AwareDatetime  # noqa: N815 - Alertmanager's name
    fingerprint: _Text = ""


class Notification(_Received):
    """A group of alerts, as Alertmanager posts it (https://prometheus.io/docs/alerting/latest/configuration)."""

    version: Literal["4"]
    status: Literal["firing", "resolved"]
    alerts: tuple[ReceivedAlert, ...] = Field(max_length=_MOST_ALERTS)

    @property
    def alarmed(self) -> tuple[str, ...]:
        """The specs whose alarm is firing, each once, in the order of the alerts.

        Every other alert, and the end of an alarm, is for people.
        """
        firing = (one for one in self.alerts if one.status == "firing" and one.labels.get("alertname") == ALARM)
        return tuple(dict.fromkeys(one.labels["spec"] for one in firing if one.labels.get("spec")))


def read_notification(body: bytes) -> Notification:
    """Return what a body says.

    Raises:
        NotificationError: It is something else; the message names the field, and never what it held.
    """
    try:
        return Notification.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise NotificationError(
            f"{where}: {first['msg']}; wanted a notification of Alertmanager's, version 4"
        ) from None


_LONGEST_BODY: Final = 1024 * 1024
"""Bytes; a notification of a thousand alerts has about half as many."""
_BODY_SECONDS: Final = 10.0
_MOST_REQUESTS: Final = 64
"""To /alerts at once; more are answered 503. Probes and numbers are outside this limit."""
_PATIENCE: Final = 20.0
"""Seconds that a request waits for the one before it to start a training."""
_RETRY_SECONDS: Final = 30
"""What callers are asked to wait; Alertmanager tries again by itself."""

_log = logging.getLogger(__name__)


class Receiver:
    """Answers the requests.

    Args:
        retrainers: By spec.
        bearer: Who may ask.
    """

    def __init__(self, retrainers: Mapping[str, Retrainer], bearer: Bearer) -> None:
        self._retrainers = retrainers
        self._bearer = bearer
        self._turns = {spec: asyncio.Lock() for spec in retrainers}
        self._under_way = 0
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "shortlist_receiver_requests", "Requests to /alerts by HTTP status", ["status"], registry=self._registry
        )
        self._alarms = Counter(
            "shortlist_receiver_alarms",
            "Alarms by what came of them: started, hold, page, unknown, later",
            ["spec", "result"],
            registry=self._registry,
        )
        self._registry.register(StoresCollector(retrainer.monitoring_store for retrainer in retrainers.values()))

    async def alerts(self, request: Request) -> Response:
        """Take a notification, and start a training where the monitoring store says so."""
        self._under_way += 1
        try:
            if self._under_way > _MOST_REQUESTS:
                raise RetryLaterError(f"{_MOST_REQUESTS} requests are under way; try again later")
            response = await self._answered(request)
        except ClientDisconnect:
            response = _says(400, "the body ended early")
        except ShortlistError as problem:
            _log.warning("%s", redact_passwords(str(problem)))
            response = _says(503, redact_passwords(str(problem)), {"Retry-After": str(_RETRY_SECONDS)})
        finally:
            self._under_way -= 1
        self._requests.labels(str(response.status_code)).inc()
        return response

    async def alive(self, _request: Request) -> Response:
        """Say that the process answers."""
        return _says(200, "alive")

    async def ready(self, _request: Request) -> Response:
        """Say whether tokens and monitoring stores can be read; whether Kubeflow is there shows when it is needed."""
        try:
            await run_in_threadpool(self._check)
        except ShortlistError as problem:
            return _says(503, redact_passwords(str(problem)))
        return _says(200, "ready")

    async def metrics(self, _request: Request) -> Response:
        """Return what was counted here, and what the monitoring stores say."""
        text = await run_in_threadpool(generate_latest, self._registry)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _answered(self, request: Request) -> Response:
        if not await run_in_threadpool(self._bearer.admits, request.headers.get("authorization")):
            _log.warning("refused: no or a wrong bearer token")
            return _says(401, "no or a wrong bearer token", {"WWW-Authenticate": "Bearer"})
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _says(415, "content-type: wanted application/json")
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            notification = read_notification(body)
        except NotificationError as problem:
            return _says(400, str(problem))
        return JSONResponse({"alarms": await self._considered(notification)})

    async def _considered(self, notification: Notification) -> dict[str, dict[str, str]]:
        answers: dict[str, dict[str, str]] = {}
        problems: list[str] = []
        for spec in notification.alarmed:
            try:
                answers[spec] = await self._consider(spec)
            except ShortlistError as problem:  # the others are not held up by it, and asking twice changes nothing
                self._alarms.labels(spec, "later").inc()
                problems.append(str(problem))
        if problems:
            raise RetryLaterError("; ".join(problems))
        return answers

    async def _consider(self, spec: str) -> dict[str, str]:
        retrainer = self._retrainers.get(spec)
        if retrainer is None:
            # Not its name in the counter: a caller could make as many as it likes.
            self._alarms.labels("", "unknown").inc()
            return {"result": "unknown", "reason": "no such spec is trained from here"}
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._turns[spec].acquire()
        except TimeoutError:
            raise RetryLaterError(f"{spec}: another request is still starting a training") from None
        try:
            answer: RetrainerResponse = await run_in_threadpool(retrainer.consider)
        finally:
            self._turns[spec].release()
        self._alarms.labels(spec, answer.result).inc()
        _log.info("%s: %s: %s", spec, answer.result, answer.reason)
        return {"result": answer.result, "reason": answer.reason, "run": answer.run}

    def _check(self) -> None:
        self._bearer.check()
        for retrainer in self._retrainers.values():
            retrainer.monitoring_store.retrainings()


def receiver_app(retrainers: Mapping[str, Retrainer], bearer: Bearer) -> Starlette:
    """Return the application: `POST /alerts`, `/healthz`, `/readyz`, `/metrics`.

    Args:
        retrainers: By spec.
        bearer: Who may post alerts; the other pages hold nothing that is secret.
    """
    receiver = Receiver(retrainers, bearer)
    return Starlette(
        routes=[
            Route("/alerts", receiver.alerts, methods=["POST"]),
            Route("/healthz", receiver.alive),
            Route("/readyz", receiver.ready),
            Route("/metrics", receiver.metrics),
        ],
        exception_handlers={HTTPException: _no_such_page},
    )


async def _body(request: Request) -> bytes | Response:
    """Return a body, or why it is refused: too long, or too slow."""
    found = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for piece in request.stream():
                found += piece
                if len(found) > _LONGEST_BODY:
                    return _says(413, f"body: wanted at most {_LONGEST_BODY} bytes")
    except TimeoutError:
        return _says(408, f"body: not whole after {_BODY_SECONDS:g} s")
    return bytes(found)


def _says(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"message" if status < 400 else "error": text}, status, headers)


async def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _says(error.status_code, f"{request.method} {request.scope['path']}: {error.detail}", error.headers)
