"""Sends alerts to the declared endpoints: a few quick attempts in a monitoring run, the rest in the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from monitoring.alerts.alert import Alert
from monitoring.alerts.alert_queue import AlertQueue, QueuedAlert, QueueState, endpoint_digest
from monitoring.alerts.webhook import PermanentDeliveryError, TemporaryDeliveryError, Webhook, read_token
from shortlist.spec.monitoring import Alerts

_PATIENCE: Final = 60.0
"""Seconds to wait for another process that delivers."""
_UNREADABLE: Final = "a waiting alert's file was torn or edited; it is in the outbox's lost/"


@dataclass(frozen=True)
class Delivery:
    """What a round of deliveries did."""

    sent: int = 0
    lost: int = 0
    """Alerts given up in this round; they are in the outbox's `lost/`."""
    waiting: int = 0
    """Alerts that are tried again in the next monitoring run."""
    problems: tuple[str, ...] = ()
    """What went wrong, a sentence each, none twice."""


class AlertSender:
    """Sends what is in an outbox.

    Args:
        outbox: What to send.
        alerts: Where to, as declared.
        pause_seconds: Wait after the first failed try; it doubles, with jitter.
        clock: Tells the time; only ages are computed from it.

    Raises:
        ShortlistError: The declared token is not in the environment, or is none.
    """

    def __init__(
        self,
        outbox: AlertQueue,
        alerts: Alerts,
        pause_seconds: float = 0.5,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        token = read_token(alerts.token_env)
        self._outbox = outbox
        self._urls = tuple(str(url) for url in alerts.urls)
        self._webhooks = {
            endpoint_digest(url): Webhook(url, token, alerts.timeout_seconds, pause_seconds) for url in self._urls
        }
        self._keep = timedelta(hours=alerts.keep_hours)
        self._clock = clock

    def put(self, alerts: Iterable[Alert]) -> int:
        """Keep alerts for the declared endpoints; return how many are new."""
        return sum(self._outbox.put(alert, self._urls, self._clock()) for alert in alerts)

    def deliver(self) -> Delivery:
        """Send everything that waits, oldest first, and return what came of it.

        After an endpoint failed in all quick tries, its other alerts wait for the next monitoring run. One that got
        an alert just before a crash gets it again: receivers recognise it by its fingerprint and times.
        """
        if not self._outbox.count("waiting"):
            return Delivery()
        with self._outbox.delivering(_PATIENCE) as is_alone:
            if is_alone:
                return self._deliver_all()
        problem = "another process is delivering alerts; what waits is sent in the next monitoring run"
        return Delivery(waiting=self._outbox.count("waiting"), problems=(problem,))

    def _deliver_all(self) -> Delivery:
        lost_before = self._outbox.count("lost")
        queued_alerts = self._outbox.waiting()
        problems = [_UNREADABLE] * (self._outbox.count("lost") - lost_before)
        silent: dict[str, str] = {}
        sent = 0
        for queued in queued_alerts:
            state, problem = self._deliver(queued, silent)
            sent += state == "sent"
            problems += [problem] if problem else []
        lost = self._outbox.count("lost") - lost_before
        return Delivery(sent, lost, self._outbox.count("waiting"), tuple(dict.fromkeys(problems)))

    def _deliver(self, queued: QueuedAlert, silent: dict[str, str]) -> tuple[QueueState, str]:
        """Send one alert; an endpoint that does not answer is remembered in `silent`, and not asked again."""
        webhook = self._webhooks.get(queued.endpoint)
        if webhook is None:
            return self._give_up(queued, "alerts waited for an endpoint that is no longer declared")
        if queued.endpoint not in silent:
            try:
                webhook.post(queued.alert.webhook())
            except PermanentDeliveryError as error:
                return self._give_up(queued, str(error))
            except TemporaryDeliveryError as error:
                silent[queued.endpoint] = str(error)
            else:
                self._outbox.sent(queued)
                return "sent", ""
        problem = silent[queued.endpoint]
        if self._clock() - queued.since > self._keep:
            hours = self._keep.total_seconds() / 3600
            return self._give_up(queued, f"{problem}; alerts of more than {hours:g} h (keep_hours) are given up")
        self._outbox.delayed(queued, problem)
        return "waiting", problem

    def _give_up(self, queued: QueuedAlert, problem: str) -> tuple[QueueState, str]:
        self._outbox.lost(queued, problem)
        return "lost", problem
