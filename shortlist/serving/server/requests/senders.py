"""Who sends a request: an identity that was proved, or the address that the gateway saw."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.serving.server.requests.request_errors import UnauthorizedError
from shortlist.spec.serving import BACKEND, Events

ADDRESS_HEADER: Final = "x-forwarded-for"
"""Addresses that a request came through. The gateway sets the last one, that of its own peer."""
_BEARER: Final = "Bearer "
_MAX_LENGTH: Final = 256
"""Most characters of an identity that are kept."""


class Senders:
    """Names the senders of requests, and checks those of events.

    Args:
        settings: Who may send events, and how senders prove who they are.
        host: Address that the server listens on.
        backend_token: Token of the application's backend, besides the declared one; None for none.

    Raises:
        ShortlistError: The declared environment variable with the token is not set.
    """

    def __init__(self, settings: Events, host: str, backend_token: str | None = None) -> None:
        self._identity_header = settings.identity_header
        self._token, self._backend_token = _token(settings), backend_token
        self._is_local = ipaddress.ip_address(host).is_loopback

    def name(self, headers: Mapping[str, str]) -> str | None:
        """Return the sender of a request; None where no gateway says it.

        `BACKEND` for whoever presents the declared token, else the identity that the gateway set, else the address
        of the gateway's peer.

        Args:
            headers: Headers of the request, their names in lower case.
        """
        if self._has_token(headers, self._token) or self._has_token(headers, self._backend_token):
            return BACKEND
        identity = headers.get((self._identity_header or "").lower(), "")
        if identity not in ("", BACKEND):
            return identity[:_MAX_LENGTH]
        return _address(headers.get(ADDRESS_HEADER, "").rpartition(",")[2].strip())

    def check(self, headers: Mapping[str, str]) -> None:
        """Check that a sender may send events.

        Args:
            headers: Headers of the request, their names in lower case.

        Raises:
            UnauthorizedError: The sender has no valid token or identity.
        """
        if self._token is not None:
            if not (self._has_token(headers, self._token) or self._has_token(headers, self._backend_token)):
                raise UnauthorizedError("wanted the header 'Authorization: Bearer TOKEN' with the declared token")
        elif self._identity_header is not None:
            if not headers.get(self._identity_header.lower()):
                raise UnauthorizedError(
                    f"wanted the header '{self._identity_header}', which the gateway sets for known senders"
                )
        elif not self._is_local:
            raise UnauthorizedError(
                "this server listens to other machines, and nothing says who may send events; declare"
                " serving.events.token_variable or serving.events.identity_header"
            )

    @staticmethod
    def _has_token(headers: Mapping[str, str], token: str | None) -> bool:
        sent = headers.get("authorization", "")
        return token is not None and hmac.compare_digest(sent.encode(), f"{_BEARER}{token}".encode())


@lru_cache(maxsize=4_096)
def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _token(settings: Events) -> str | None:
    if settings.token_variable is None:
        return None
    token = os.environ.get(settings.token_variable)
    if not token:
        raise ShortlistError(
            f"serving.events.token_variable: the environment variable {settings.token_variable} is not set; set it to"
            " the token that senders of events present, and start again"
        )
    return token
