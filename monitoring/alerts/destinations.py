"""Destinations of alerts: webhooks in Alertmanager's format, and whatever Apprise knows (e-mail, chat, paging)."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from typing import Final, Protocol

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from monitoring.alerts.alert import Alert
from shortlist.contracts import ShortlistError
from shortlist.spec.monitoring import Alerts

_ATTEMPTS: Final = 3
_RETRY_STATUSES: Final = frozenset({408, 429})
"""Statuses below 500 after which a delivery is retried."""
_REFERENCE: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")


class DeliveryError(ShortlistError):
    """The destination did not accept the alert."""


class TemporaryDeliveryError(DeliveryError):
    """The destination is unavailable, too slow, or asks for a retry."""


class Destination(Protocol):
    """Something that accepts alerts."""

    def __str__(self) -> str:
        """Return its address without secrets."""

    def send(self, alert: Alert) -> None:
        """Send an alert.

        Raises:
            DeliveryError: It was not accepted.
        """


def open_destinations(alerts: Alerts, pause_seconds: float = 0.5) -> dict[str, Destination]:
    """Return the declared destinations, by the digest of what is declared: 12 hexadecimal digits.

    Args:
        alerts: The declaration; `${NAME}` in an address stands for an environment variable.
        pause_seconds: Wait after the first failed attempt; it doubles, with jitter.

    Raises:
        ShortlistError: A variable is not set, or Apprise does not understand an address. Secrets are never shown.
    """
    token = _read_token(alerts.token_env)
    return {
        hashlib.sha256(declared.encode()).hexdigest()[:12]: _open(
            declared, token, alerts.timeout_seconds, pause_seconds
        )
        for declared in alerts.urls
    }


def _open(declared: str, token: str | None, timeout_seconds: float, pause_seconds: float) -> Destination:
    url = _REFERENCE.sub(lambda reference: _variable(reference[1], f"monitoring.alerts.urls: '{declared}'"), declared)
    if url.startswith(("http://", "https://")):
        return Webhook(url, token, timeout_seconds, pause_seconds)
    return AppriseDestination(url, declared, timeout_seconds)


class Webhook:
    """An endpoint that accepts Alertmanager's webhook format."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float, pause_seconds: float) -> None:
        self._url = httpx.URL(url)
        self._headers = {"User-Agent": "shortlist"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._timeout = timeout_seconds
        self._pause = pause_seconds
        # httpx logs the whole URL at level INFO.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    def __str__(self) -> str:
        """Return scheme, host and port."""
        return f"{self._url.scheme}://{self._url.netloc.decode()}"  # netloc leaves user and password out

    def send(self, alert: Alert) -> None:
        """Send an alert, with a few quick attempts."""
        for attempt in Retrying(
            retry=retry_if_exception_type(TemporaryDeliveryError),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential_jitter(self._pause, max=30, jitter=self._pause),
            reraise=True,
        ):
            with attempt:
                self._post(alert.webhook())

    def _post(self, body: Mapping[str, object]) -> None:
        try:
            # Only the status is read: an endpoint that never ends its body does not block the delivery.
            with httpx.stream("POST", self._url, json=body, headers=self._headers, timeout=self._timeout) as answer:
                status = answer.status_code
        except httpx.HTTPError as error:
            error_text = str(error) or "no answer in time"
            raise TemporaryDeliveryError(f"{self}: {type(error).__name__}: {error_text}") from None
        if status in _RETRY_STATUSES or status >= 500:
            raise TemporaryDeliveryError(f"{self}: HTTP {status}")
        if not 200 <= status < 300:
            raise DeliveryError(f"{self}: HTTP {status}; check the URL and the token")


class AppriseDestination:
    """A service that Apprise sends to.

    Raises:
        ShortlistError: Apprise does not understand the address.
    """

    def __init__(self, url: str, declared: str, timeout_seconds: float) -> None:
        from apprise import Apprise, AppriseAsset, LogCapture

        asset = AppriseAsset(app_id="Shortlist", app_desc="Shortlist", app_url="")
        limits = f"{'&' if '?' in url else '?'}cto={timeout_seconds:g}&rto={timeout_seconds:g}"
        with LogCapture(level=logging.WARNING, fmt="%(message)s") as log:  # type: ignore[no-untyped-call]
            service = Apprise.instantiate(url + limits, asset=asset)
            reason = log.getvalue().strip().partition("\n")[0]
        if service is None:
            scheme = declared.partition("://")[0]
            # Apprise's own message may repeat the address, and with it a secret.
            reason = reason if "://" not in reason else f"Apprise cannot read this address of {scheme}://"
            raise ShortlistError(
                f"monitoring.alerts.urls: got '{declared}'; {reason}. Wanted: http(s)://, or an address that Apprise"
                " knows (https://appriseit.com/services)."
            )
        self._service = service

    def __str__(self) -> str:
        """Return the address with its secrets masked, without options."""
        return str(self._service.url(privacy=True)).partition("?")[0]  # type: ignore[no-untyped-call]

    def send(self, alert: Alert) -> None:
        """Send an alert as a message with a title."""
        from apprise import LogCapture, NotifyType

        kind = NotifyType.SUCCESS if alert.ends else NotifyType.FAILURE
        notes = [text for name, text in alert.annotations.items() if name != "summary"]
        with LogCapture(level=logging.WARNING, fmt="%(message)s") as log:  # type: ignore[no-untyped-call]
            is_accepted = self._service.notify(
                title=f"[{alert.status.upper()}] {alert.annotations.get('summary', alert.name)}",
                body="\n".join([*notes, alert.link]).strip() or alert.name,
                notify_type=kind,
            )
            reason = log.getvalue().strip().partition("\n")[0]
        if not is_accepted:
            raise TemporaryDeliveryError(f"{self}: {reason or 'the alert was not accepted'}")


def _variable(name: str, location: str) -> str:
    text = os.environ.get(name, "").strip()
    if not text:
        raise ShortlistError(f"{location}: the environment variable '{name}' is not set. Set it to the secret.")
    return text


def _read_token(variable: str | None) -> str | None:
    """Return the bearer token of an environment variable; the token itself is never shown."""
    if variable is None:
        return None
    token = _variable(variable, "monitoring.alerts.token_env")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ShortlistError(
            f"monitoring.alerts.token_env: the value of the environment variable '{variable}' is no bearer token: it"
            " has spaces, line breaks or letters outside ASCII. Set it to the token alone."
        )
    return token
