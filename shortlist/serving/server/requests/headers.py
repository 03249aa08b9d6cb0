"""Names of the headers (in gRPC: metadata) of requests and responses, and of the recommendation model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

REQUEST_ID_HEADER: Final = "x-request-id"
USER_HEADER: Final = "x-shortlist-user"
"""User that stays on one track; sent by clients. Envoy sets the next headers and replaces a client's values."""
TRACK_HEADER: Final = "x-shortlist-track"
ROLLOUT_HEADER: Final = "x-shortlist-rollout"
STEP_HEADER: Final = "x-shortlist-step"
UNREADY_HEADER: Final = "x-shortlist-unready"
"""Header of a refusal by a server that cannot score at present; another server may be able to."""
VERSION_HEADER: Final = "x-shortlist-version"

_RECOMMEND: Final = ".recommend"

_PRINTABLE: Final = re.compile("[!-~]+")
MAX_REQUEST_ID_LENGTH: Final = 256
"""Most characters of a request's id."""
_MAX_LENGTH: Final = 256
"""Header values are cut to this number of characters."""


@dataclass(frozen=True)
class RequestContext:
    """What the headers of a request say; None for what they do not."""

    request_id: str | None = None
    user: str | None = None
    track: str | None = None
    rollout: str | None = None
    step: int | None = None
    sender: str | None = None
    """Who sent it; see `Senders.name`."""

    @classmethod
    def from_headers(cls, headers: Mapping[str, str], sender: str | None = None) -> Self:
        """Return the values of headers, whose names are in lower case, with the sender."""

        def header(name: str) -> str | None:
            return headers.get(name, "")[:_MAX_LENGTH] or None

        step = header(STEP_HEADER)
        return cls(
            request_id=header(REQUEST_ID_HEADER),
            user=header(USER_HEADER),
            # It is sent back: a value that gRPC does not allow in a header would break the response.
            track=track if (track := header(TRACK_HEADER)) is not None and _PRINTABLE.fullmatch(track) else None,
            rollout=header(ROLLOUT_HEADER),
            step=int(step) if step is not None and step.isascii() and step.isdecimal() and len(step) < 6 else None,
            sender=sender,
        )

    def response_headers(self, version: int) -> dict[str, str]:
        """Return the headers of the response."""
        return {VERSION_HEADER: str(version)} | ({TRACK_HEADER: self.track} if self.track is not None else {})


def recommend_model(model: str) -> str:
    """Return the model name for requests for recommendations, which differs from the one for scores.

    >>> recommend_model("demo")
    'demo.recommend'
    """
    return f"{model}{_RECOMMEND}"
