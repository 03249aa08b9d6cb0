"""Why a request is not answered with scores."""

from __future__ import annotations

from collections.abc import Iterable
from reprlib import Repr
from typing import ClassVar, Final

from shortlist.contracts import ShortlistError
from shortlist.serving.server.headers import UNREADY_HEADER

_LONGEST_MESSAGE: Final = 500
"""Characters; gRPC sends a message in a header of at most 8 KB, where a character may take twelve bytes."""
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


def shown(value: object) -> str:
    """Return a value that a client sent for a message, cut where it is long or deeply nested.

    >>> shown([[[[[1]]]]]), len(shown("x" * 1_000_000))
    ('[[[[...]]]]', 80)
    """
    return _SHORT.repr(value)


def quoted(names: Iterable[str]) -> str:
    """Return names for a message.

    >>> quoted(["score", "score_like"])
    "'score' or 'score_like'"
    """
    return " or ".join(f"'{name}'" for name in names)


class RequestError(ShortlistError):
    """A request that gets an error instead of scores."""

    http: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 3]}...")

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's headers add."""
        return {}


class BadRequestError(RequestError):
    """The client's mistake: what, got, wanted."""

    http = 400


class TooLargeError(RequestError):
    """More bytes than a request may have."""

    http = 413


class TooManyBytesError(RequestError):
    """All requests together have more bytes than a server holds; large ones are sent again later."""

    http = 429


class TooSlowError(RequestError):
    """A body that is not whole in time."""

    http = 408


class UnknownModelError(RequestError):
    """Another model, or another version, than the one that is served here."""

    http = 404


class ModelUnavailableError(RequestError):
    """The model server cannot be reached, or broke, for longer than a request may wait."""

    http = 503

    @property
    def headers(self) -> dict[str, str]:
        """That another server may be able to."""
        return {UNREADY_HEADER: "1", "retry-after": "1"}


class OverloadedError(RequestError):
    """The server has more to do than it can in time.

    Args:
        message: For the client.
        retry_seconds: After which it may try again.
    """

    http = 503

    def __init__(self, message: str, retry_seconds: int) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds

    @property
    def headers(self) -> dict[str, str]:
        """When to come back."""
        return {"retry-after": str(self.retry_seconds)}


class BadScoresError(RequestError):
    """The model gave no usable score."""

    http = 500
