"""Delivery of one alert to one endpoint, which accepts it, refuses it, or has to be tried again."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from shortlist.contracts import ShortlistError

_ATTEMPTS: Final = 3
_RETRY_STATUSES: Final = frozenset({408, 429})
"""Statuses below 500 after which a delivery is retried."""


class PermanentDeliveryError(ShortlistError):
    """The endpoint refused the alert; a retry would not help."""


class TemporaryDeliveryError(ShortlistError):
    """The endpoint is unavailable, too slow, or asks for a retry."""


class Webhook:
    """An endpoint that accepts alerts.

    Args:
        url: URL of the endpoint; it may hold a secret, and is never shown whole.
        token: Bearer token; None where the endpoint needs none.
        timeout_seconds: Longest wait for each part of the exchange.
        pause_seconds: Wait after the first failed try; it doubles, with jitter.
    """

    def __init__(self, url: str, token: str | None, timeout_seconds: float, pause_seconds: float) -> None:
        self._url = httpx.URL(url)
        self._headers = {"User-Agent": "shortlist"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._timeout = timeout_seconds
        self._pause = pause_seconds
        # httpx logs the whole URL at level INFO.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    def __str__(self) -> str:
        return f"{self._url.scheme}://{self._url.netloc.decode()}"  # netloc leaves user and password out

    def post(self, body: dict[str, Any]) -> None:
        """Send a body, with a few quick tries.

        Raises:
            PermanentDeliveryError: The endpoint refused it.
            TemporaryDeliveryError: Every attempt failed.
        """
        for attempt in Retrying(
            retry=retry_if_exception_type(TemporaryDeliveryError),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential_jitter(self._pause, max=30, jitter=self._pause),
            reraise=True,
        ):
            with attempt:
                self._try(body)

    def _try(self, body: dict[str, Any]) -> None:
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
            raise PermanentDeliveryError(
                f"{self}: HTTP {status}; the alert is not sent again. Check the URL and the token"
            )


def read_token(variable: str | None) -> str | None:
    """Return the bearer token that an environment variable holds; None when none is declared.

    Raises:
        ShortlistError: The variable is not set, or is not valid in a header. The token itself is never shown.
    """
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ShortlistError(
            f"monitoring.alerts.token_env: the environment variable '{variable}' is not set. Set it to the bearer token"
            " of the alert endpoints, or remove token_env."
        )
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ShortlistError(
            f"monitoring.alerts.token_env: the value of the environment variable '{variable}' is no bearer token: it"
            " has spaces, line breaks or letters outside ASCII. Set it to the token alone."
        )
    return token
