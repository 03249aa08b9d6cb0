"""Names by which clients ask, and of the headers (in gRPC: metadata) that travel with a request and its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

REQUEST_ID_HEADER: Final = "x-request-id"
USER_HEADER: Final = "x-shortlist-user"
"""Sent by clients: who is sticky to a track. The next ones are Envoy's own; it replaces a client's."""
TRACK_HEADER: Final = "x-shortlist-track"
ROLLOUT_HEADER: Final = "x-shortlist-rollout"
STEP_HEADER: Final = "x-shortlist-step"
UNREADY_HEADER: Final = "x-shortlist-unready"
"""Of a refusal by a server that cannot score at present; another one may."""
VERSION_HEADER: Final = "x-shortlist-version"

_RECOMMEND: Final = ".recommend"

_PRINTABLE: Final = re.compile("[!-~]+")
_LONGEST: Final = 256
"""Characters of a header that are kept."""


@dataclass(frozen=True)
class RequestContext:
    """What the headers of a request say; None where they say nothing."""

    request_id: str | None = None
    user: str | None = None
    track: str | None = None
    rollout: str | None = None
    step: int | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """Return what headers say, their names in lower case."""

        def said(name: str) -> str | None:
            return headers.get(name, "")[:_LONGEST] or None

        step = said(STEP_HEADER)
        return cls(
            request_id=said(REQUEST_ID_HEADER),
            user=said(USER_HEADER),
            # It is sent back: what no header of gRPC's may hold would end the answer.
            track=track if (track := said(TRACK_HEADER)) is not None and _PRINTABLE.fullmatch(track) else None,
            rollout=said(ROLLOUT_HEADER),
            step=int(step) if step is not None and step.isascii() and step.isdecimal() and len(step) < 6 else None,
        )

    def answer(self, version: int) -> dict[str, str]:
        """Return the headers of the answer."""
        return {VERSION_HEADER: str(version)} | ({TRACK_HEADER: self.track} if self.track is not None else {})


def recommend_model(model: str) -> str:
    """Return the name under which clients ask for recommendations, beside the one under which they ask for scores.

    >>> recommend_model("demo")
    'demo.recommend'
    """
    return f"{model}{_RECOMMEND}"
