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
SENDER_HEADER: Final = "x-shortlist-sender"
"""Who sent the request, for the access log of the gateway; a server asks `Senders`."""
GATEWAY_HEADER: Final = "x-shortlist-gateway"
"""Key with which the gateway of a machine proves to a server that it set the other headers."""
UNREADY_HEADER: Final = "x-shortlist-unready"
"""Header of a refusal by a server that cannot score at present; another server may be able to."""
VERSION_HEADER: Final = "x-shortlist-version"

_RECOMMEND: Final = ".recommend"

_PRINTABLE: Final = re.compile("[!-~]+")
MAX_REQUEST_ID_LENGTH: Final = 256
"""Most characters of a request's id."""
MAX_USER_LENGTH: Final = 256
"""Values of other headers are cut to this number of characters."""


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
            return headers.get(name, "")[:MAX_USER_LENGTH] or None

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

    @classmethod
    def without_gateway(cls, headers: Mapping[str, str]) -> Self:
        """Return the values of headers that clients may send, without those that a gateway sets."""
        context = cls.from_headers(headers)
        return cls(request_id=context.request_id, user=context.user)

    def response_headers(self, version: int) -> dict[str, str]:
        """Return the headers of the response."""
        return {VERSION_HEADER: str(version)} | ({TRACK_HEADER: self.track} if self.track is not None else {})


def recommend_model(model: str) -> str:
    """Return the model name for requests for recommendations, which differs from the one for scores.

    >>> recommend_model("demo")
    'demo.recommend'
    """
    return f"{model}{_RECOMMEND}"
