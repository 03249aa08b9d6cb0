"""One alert, one endpoint: taken, refused for good, or to be tried again."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from shortlist.contracts import ShortlistError

_ATTEMPTS: Final = 3
_LATER: Final = frozenset({408, 429})
"""Answers below 500 that say: try again."""


class PermanentDeliveryError(ShortlistError):
    """The endpoint understood, and will never take it."""


class TemporaryDeliveryError(ShortlistError):
    """The endpoint is not there, too slow, or asks for patience."""


class Webhook:
    """An endpoint that takes alerts.

    Args:
        url: Where to; it may hold a secret, and is never shown whole.
        token: Bearer token, if it wants one.
        timeout_seconds: Longest wait for each part of the exchange.
        pause_seconds: Wait after the first failed try; it doubles, with jitter.
    """

    def __init__(self, url: str, token: str | None, timeout_seconds: float, pause_seconds: float) -> None:
        self._url = httpx.URL(url)
        self._headers = {"User-Agent": "shortlist"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._timeout = timeout_seconds
        self._pause = pause_seconds
        # httpx tells the whole URL to whoever listens to its log.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    def __str__(self) -> str:
        return f"{self._url.scheme}://{self._url.netloc.decode()}"  # netloc leaves user and password out

    def post(self, body: dict[str, Any]) -> None:
        """Send a body, with a few quick tries.

        Raises:
            PermanentDeliveryError: The endpoint will never take it.
            UnavailableError: Every try failed.
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
            # An answer's code is all that counts: who never ends its body does not hold us up.
            with httpx.stream("POST", self._url, json=body, headers=self._headers, timeout=self._timeout) as answer:
                status = answer.status_code
        except httpx.HTTPError as error:
            why = str(error) or "no answer in time"
            raise TemporaryDeliveryError(f"{self}: {type(error).__name__}: {why}") from None
        if status in _LATER or status >= 500:
            raise TemporaryDeliveryError(f"{self}: HTTP {status}")
        if not 200 <= status < 300:
            raise PermanentDeliveryError(
                f"{self}: HTTP {status}; the alert is not sent again. Check the URL and the token"
            )


def token_of(variable: str | None) -> str | None:
    """Return the bearer token that an environment variable holds; None when none is declared.

    Raises:
        ShortlistError: The variable is not set, or holds what no header can carry. The token itself is never shown.
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
            f"monitoring.alerts.token_env: what the environment variable '{variable}' holds is no bearer token: it has"
            " spaces, line breaks or letters outside ASCII. Set it to the token alone."
        )
    return token
