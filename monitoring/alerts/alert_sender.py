"""Bringing alerts to the declared endpoints: a few quick tries in a look, the rest at the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from monitoring.alerts.alert import Alert
from monitoring.alerts.alert_queue import AlertQueue, QueuedAlert, QueueState, endpoint_digest
from monitoring.alerts.webhook import PermanentDeliveryError, TemporaryDeliveryError, Webhook, token_of
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
    """Alerts that are tried again at the next look."""
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
        token = token_of(alerts.token_env)
        self._outbox = outbox
        self._urls = tuple(str(url) for url in alerts.urls)
        self._webhooks = {
            endpoint_digest(url): Webhook(url, token, alerts.timeout_seconds, pause_seconds) for url in self._urls
        }
        self._keep = timedelta(hours=alerts.keep_hours)
        self._clock = clock

    def put(self, alerts: Iterable[Alert]) -> int:
        """Keep alerts for the declared endpoints; return how many letters are new."""
        return sum(self._outbox.put(alert, self._urls, self._clock()) for alert in alerts)

    def deliver(self) -> Delivery:
        """Send everything that waits, oldest first, and return what came of it.

        After an endpoint failed in all quick tries, its other alerts wait for the next look. One that got an alert
        in the moment before a crash gets it again: receivers know it by its fingerprint and times.
        """
        if not self._outbox.count("waiting"):
            return Delivery()
        with self._outbox.delivering(_PATIENCE) as is_alone:
            if is_alone:
                return self._deliver_all()
        problem = "another process is delivering alerts; what waits is sent at the next look"
        return Delivery(waiting=self._outbox.count("waiting"), problems=(problem,))

    def _deliver_all(self) -> Delivery:
        lost_before = self._outbox.count("lost")
        letters = self._outbox.waiting()
        problems = [_UNREADABLE] * (self._outbox.count("lost") - lost_before)
        silent: dict[str, str] = {}
        sent = 0
        for letter in letters:
            place, problem = self._deliver(letter, silent)
            sent += place == "sent"
            problems += [problem] if problem else []
        lost = self._outbox.count("lost") - lost_before
        return Delivery(sent, lost, self._outbox.count("waiting"), tuple(dict.fromkeys(problems)))

    def _deliver(self, letter: QueuedAlert, silent: dict[str, str]) -> tuple[QueueState, str]:
        """Bring one letter where it belongs; endpoints that fall silent are noted, and not asked again."""
        webhook = self._webhooks.get(letter.endpoint)
        if webhook is None:
            return self._give_up(letter, "an endpoint that is not declared any more had alerts waiting")
        if letter.endpoint not in silent:
            try:
                webhook.post(letter.alert.webhook())
            except PermanentDeliveryError as error:
                return self._give_up(letter, str(error))
            except TemporaryDeliveryError as error:
                silent[letter.endpoint] = str(error)
            else:
                self._outbox.sent(letter)
                return "sent", ""
        problem = silent[letter.endpoint]
        if self._clock() - letter.since > self._keep:
            hours = self._keep.total_seconds() / 3600
            return self._give_up(letter, f"{problem}; alerts of more than {hours:g} h (keep_hours) are given up")
        self._outbox.delayed(letter, problem)
        return "waiting", problem

    def _give_up(self, letter: QueuedAlert, problem: str) -> tuple[QueueState, str]:
        self._outbox.lost(letter, problem)
        return "lost", problem
