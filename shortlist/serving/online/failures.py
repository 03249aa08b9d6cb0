"""Why a request is not answered with scores."""

from __future__ import annotations

from typing import ClassVar

from shortlist.contracts import ShortlistError


class RequestError(ShortlistError):
    """A request that gets an error instead of scores."""

    http: ClassVar[int] = 500


class BadRequestError(RequestError):
    """The client's mistake: what, got, wanted."""

    http = 400


class UnknownModelError(RequestError):
    """Another model, or another version, than the one that is served here."""

    http = 404


class UnavailableError(RequestError):
    """The model server cannot be reached, or broke, for longer than a request may wait."""

    http = 503


class BadScoresError(RequestError):
    """The model gave no usable score."""

    http = 500
