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
from monitoring.receiver.bearer import BearerTokens
from monitoring.receiver.retrainer import Retrainer, RetrainerResponse, RetryLaterError
from monitoring.store.monitoring_store import MonitoringStore
from shortlist.contracts import ShortlistError
from shortlist.storage.storage_config import redact_passwords


class StoresCollector(Collector):
    """Reads several monitoring stores again on every scrape.

    Args:
        stores: One store per spec.
    """

    def __init__(self, stores: Iterable[MonitoringStore]) -> None:
        self._collectors = [MonitoringCollector(monitoring_store) for monitoring_store in stores]

    def describe(self) -> Iterator[Metric]:
        """Return no metric, so that registering this collector reads no monitoring store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return every metric; Prometheus' text format needs all samples of one name together."""
        families: dict[str, Metric] = {}
        for collector in self._collectors:
            for metric in collector.collect():
                families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type)).samples.extend(
                    metric.samples
                )
        yield from families.values()


_Text = Annotated[str, StringConstraints(max_length=4_096)]
_Texts = Annotated[dict[_Text, _Text], Field(max_length=64)]
_MAX_ALERTS: Final = 1_000


class NotificationError(ShortlistError):
    """A body is no notification of Alertmanager's; a retry would not help."""


class _ReceivedModel(BaseModel):
    # Alertmanager adds fields in new releases; fields that are not read here are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore")


class ReceivedAlert(_ReceivedModel):
    """One alert of a notification."""

    status: Literal["firing", "resolved"]
    labels: _Texts
    annotations: _Texts = {}
    startsAt: AwareDatetime  # noqa: N815 - Alertmanager's name
    fingerprint: _Text = ""


class Notification(_ReceivedModel):
    """A group of alerts, as Alertmanager posts it (https://prometheus.io/docs/alerting/latest/configuration)."""

    version: Literal["4"]
    status: Literal["firing", "resolved"]
    alerts: tuple[ReceivedAlert, ...] = Field(max_length=_MAX_ALERTS)

    @property
    def alarmed_specs(self) -> tuple[str, ...]:
        """The specs whose alarm is firing, each once, in the order of the alerts.

        All other alerts, and resolved alarms, are for people.
        """
        firing = (alert for alert in self.alerts if alert.status == "firing" and alert.labels.get("alertname") == ALARM)
        return tuple(dict.fromkeys(alert.labels["spec"] for alert in firing if alert.labels.get("spec")))


def read_notification(body: bytes) -> Notification:
    """Return the notification in a body.

    Raises:
        NotificationError: The body is invalid; the message names the field, and never its value.
    """
    try:
        return Notification.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        field_path = ".".join(map(str, problem["loc"])) or "body"
        raise NotificationError(
            f"{field_path}: {problem['msg']}; wanted a notification of Alertmanager's, version 4"
        ) from None


_MAX_BODY_BYTES: Final = 1024 * 1024
"""Most bytes of a body; a notification of a thousand alerts has about half as many."""
_BODY_SECONDS: Final = 10.0
_MAX_REQUESTS: Final = 64
"""Most concurrent requests to /alerts; further ones get 503. Probes and metrics are not limited."""
_LOCK_TIMEOUT_SECONDS: Final = 20.0
"""Longest wait of a request for an earlier one of the same spec to start a training."""
_RETRY_SECONDS: Final = 30
"""Wait before a retry that callers are asked for; Alertmanager retries by itself."""

_log = logging.getLogger(__name__)


class Receiver:
    """Answers the requests.

    Args:
        retrainers: By spec.
        bearer: Who may ask.
    """

    def __init__(self, retrainers: Mapping[str, Retrainer], tokens: BearerTokens) -> None:
        self._retrainers = retrainers
        self._tokens = tokens
        self._locks = {spec: asyncio.Lock() for spec in retrainers}
        self._active_requests = 0
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "shortlist_receiver_requests", "Requests to /alerts by HTTP status", ["status"], registry=self._registry
        )
        self._alarms = Counter(
            "shortlist_receiver_alarms",
            "Alarms by result: started, hold, page, unknown, later",
            ["spec", "result"],
            registry=self._registry,
        )
        self._registry.register(StoresCollector(retrainer.monitoring_store for retrainer in retrainers.values()))

    async def alerts(self, request: Request) -> Response:
        """Handle a notification: start a training where the retrain policy decides so."""
        self._active_requests += 1
        try:
            if self._active_requests > _MAX_REQUESTS:
                raise RetryLaterError(f"{_MAX_REQUESTS} requests are under way; try again later")
            response = await self._respond(request)
        except ClientDisconnect:
            response = _message_response(400, "the body ended early")
        except ShortlistError as problem:
            _log.warning("%s", redact_passwords(str(problem)))
            response = _message_response(503, redact_passwords(str(problem)), {"Retry-After": str(_RETRY_SECONDS)})
        finally:
            self._active_requests -= 1
        self._requests.labels(str(response.status_code)).inc()
        return response

    async def alive(self, _request: Request) -> Response:
        """Return 200: the process is alive."""
        return _message_response(200, "alive")

    async def ready(self, _request: Request) -> Response:
        """Return 200 while tokens and monitoring stores can be read; Kubeflow is not checked."""
        try:
            await run_in_threadpool(self._check_readable)
        except ShortlistError as problem:
            return _message_response(503, redact_passwords(str(problem)))
        return _message_response(200, "ready")

    async def metrics(self, _request: Request) -> Response:
        """Return the receiver's counters and the metrics of the monitoring stores."""
        text = await run_in_threadpool(generate_latest, self._registry)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _respond(self, request: Request) -> Response:
        if not await run_in_threadpool(self._tokens.is_authorized, request.headers.get("authorization")):
            _log.warning("refused: no or a wrong bearer token")
            return _message_response(401, "no or a wrong bearer token", {"WWW-Authenticate": "Bearer"})
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _message_response(415, "content-type: wanted application/json")
        body = await _read_body(request)
        if isinstance(body, Response):
            return body
        try:
            notification = read_notification(body)
        except NotificationError as problem:
            return _message_response(400, str(problem))
        return JSONResponse({"alarms": await self._consider_alarms(notification)})

    async def _consider_alarms(self, notification: Notification) -> dict[str, dict[str, str]]:
        answers: dict[str, dict[str, str]] = {}
        problems: list[str] = []
        for spec in notification.alarmed_specs:
            try:
                answers[spec] = await self._consider(spec)
            except ShortlistError as problem:  # the other specs go on, and a retry changes nothing for them
                self._alarms.labels(spec, "later").inc()
                problems.append(str(problem))
        if problems:
            raise RetryLaterError("; ".join(problems))
        return answers

    async def _consider(self, spec: str) -> dict[str, str]:
        retrainer = self._retrainers.get(spec)
        if retrainer is None:
            # The spec's name is no label here: a caller could create any number of series.
            self._alarms.labels("", "unknown").inc()
            return {"result": "unknown", "reason": "no such spec is trained from here"}
        try:
            async with asyncio.timeout(_LOCK_TIMEOUT_SECONDS):
                await self._locks[spec].acquire()
        except TimeoutError:
            raise RetryLaterError(f"{spec}: another request is still starting a training") from None
        try:
            answer: RetrainerResponse = await run_in_threadpool(retrainer.consider)
        finally:
            self._locks[spec].release()
        self._alarms.labels(spec, answer.result).inc()
        _log.info("%s: %s: %s", spec, answer.result, answer.reason)
        return {"result": answer.result, "reason": answer.reason, "run": answer.run}

    def _check_readable(self) -> None:
        self._tokens.check()
        for retrainer in self._retrainers.values():
            retrainer.monitoring_store.retrainings()


def receiver_app(retrainers: Mapping[str, Retrainer], tokens: BearerTokens) -> Starlette:
    """Return the application: `POST /alerts`, `/healthz`, `/readyz`, `/metrics`.

    Args:
        retrainers: Retrainers by spec.
        tokens: Bearer tokens of those who may post alerts; the other pages hold no secrets.
    """
    receiver = Receiver(retrainers, tokens)
    return Starlette(
        routes=[
            Route("/alerts", receiver.alerts, methods=["POST"]),
            Route("/healthz", receiver.alive),
            Route("/readyz", receiver.ready),
            Route("/metrics", receiver.metrics),
        ],
        exception_handlers={HTTPException: _http_error_response},
    )


async def _read_body(request: Request) -> bytes | Response:
    """Return the body, or the response that refuses it as too long or too slow."""
    content = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > _MAX_BODY_BYTES:
                    return _message_response(413, f"body: wanted at most {_MAX_BODY_BYTES} bytes")
    except TimeoutError:
        return _message_response(408, f"body: not whole after {_BODY_SECONDS:g} s")
    return bytes(content)


def _message_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"message" if status < 400 else "error": text}, status, headers)


async def _http_error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _message_response(
        error.status_code, f"{request.method} {request.scope['path']}: {error.detail}", error.headers
    )
