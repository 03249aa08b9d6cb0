"""Errors of requests, with their HTTP status and headers."""

from __future__ import annotations

from collections.abc import Iterable
from reprlib import Repr
from typing import ClassVar, Final

from shortlist.contracts import ShortlistError
from shortlist.serving.server.requests.headers import UNREADY_HEADER

_MAX_MESSAGE_LENGTH: Final = 500
"""In characters; gRPC sends the message in a header of at most 8 KB, where a character may take twelve bytes."""
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


def shorten(value: object) -> str:
    """Return a client's value for an error message, cut where it is long or deeply nested.

    >>> shorten([[[[[1]]]]]), len(shorten("x" * 1_000_000))
    ('[[[[...]]]]', 80)
    """
    return _SHORT.repr(value)


def quoted(names: Iterable[str]) -> str:
    """Return quoted names for an error message.

    >>> quoted(["score", "score_like"])
    "'score' or 'score_like'"
    """
    return " or ".join(f"'{name}'" for name in names)


class RequestError(ShortlistError):
    """A request is answered with an error instead of scores."""

    http: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= _MAX_MESSAGE_LENGTH else f"{message[: _MAX_MESSAGE_LENGTH - 3]}...")

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the error adds to the response."""
        return {}


class BadRequestError(RequestError):
    """The request is invalid; the message names the input, the value and what is expected."""

    http = 400


class UnauthorizedError(RequestError):
    """Who sends the request has not shown that they may."""

    http = 401

    @property
    def headers(self) -> dict[str, str]:
        """Header with the scheme that is wanted (RFC 9110, section 15.5.2)."""
        return {"www-authenticate": "Bearer"}


class TooLargeError(RequestError):
    """The request has more bytes than a request may have."""

    http = 413


class UnsupportedEncodingError(RequestError):
    """The body has a content encoding that cannot be read."""

    http = 415

    @property
    def headers(self) -> dict[str, str]:
        """Header with the encodings that can be read (RFC 9110, section 15.5.16)."""
        return {"accept-encoding": "gzip, deflate"}


class TooManyBytesError(RequestError):
    """All buffered requests together exceed the limit; the client should retry later."""

    http = 429


class TooSlowError(RequestError):
    """The body was not received in time."""

    http = 408


class UnknownModelError(RequestError):
    """The model or version is not served here."""

    http = 404


class ModelUnavailableError(RequestError):
    """The model server was unavailable for longer than a request may wait."""

    http = 503

    @property
    def headers(self) -> dict[str, str]:
        """Headers saying that another server may be able to score, and when to retry."""
        return {UNREADY_HEADER: "1", "retry-after": "1"}


class OverloadedError(RequestError):
    """The server has too many requests to answer this one in time.

    Args:
        message: Message for the client.
        retry_seconds: Time after which the client may retry.
    """

    http = 503

    def __init__(self, message: str, retry_seconds: int) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds

    @property
    def headers(self) -> dict[str, str]:
        """Header saying when to retry."""
        return {"retry-after": str(self.retry_seconds)}


class BadScoresError(RequestError):
    """The model returned no usable scores."""

    http = 500
