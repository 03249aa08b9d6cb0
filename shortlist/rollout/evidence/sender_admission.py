"""Which requests are evidence: all of authenticated backends, and few of any other address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.spec.serving import BACKEND
from shortlist.system.sender_networks import sender_networks

MAX_ADDRESS_SHARE: Final = 0.0025
"""Largest share of a track's requests at a step that one address may contribute; one request always counts. It is a
quarter of the smallest difference that any check looks for (1 %)."""
MAX_ADDRESSES: Final = 1_000_000
"""Most addresses that are remembered, each at every step; further ones are no evidence."""
_STEP_SENDER: Final = ["step", "sender"]
_TRACK: Final = ["step", "canary"]
_TRACK_SENDER: Final = [*_TRACK, "sender"]
_ADDRESSES: Final = pl.Schema(
    {
        "step": pl.Int32(),
        "canary": pl.Boolean(),
        "sender": pl.String(),
        "offered": pl.Int64(),  # requests of the first user
        "admitted": pl.Int64(),
    }
)
_FIRST_USERS: Final = pl.Schema({"step": pl.Int32(), "sender": pl.String(), "user": pl.UInt64()})


class SenderAdmission:
    """Admits requests as evidence of a rollout.

    An authenticated backend vouches for its users, and all its requests are admitted. Whoever else sends requests may
    invent users, and learn their track from the scores. Of an address that no backend vouches for, one user is admitted
    at each step, the first, with at most `MAX_ADDRESS_SHARE` of the requests that are admitted on the track.

    Args:
        vouches: Whether a sender of the logs vouches for its users (`Serving.vouches_for_users`).
    """

    def __init__(self, vouches: Callable[[str | None], bool]) -> None:
        self._vouches = vouches
        self._addresses = pl.DataFrame(schema=_ADDRESSES)
        self._first_users = pl.DataFrame(schema=_FIRST_USERS)
        self._vouched: dict[tuple[int, bool], int] = {}

    def admit(self, requests: pl.DataFrame) -> pl.Series:
        """Return whether each request is admitted.

        Args:
            requests: Columns step (Int32), canary, sender (see `Senders.name`), and user (UInt64), which is
                the request itself where it names none.
        """
        vouching = [sender for sender in requests["sender"].unique() if self._vouches(sender)]
        is_vouched = requests["sender"].is_in(vouching).fill_null(value=False)
        for step, canary, count in requests.filter(is_vouched).group_by(_TRACK).len().iter_rows():
            self._vouched[step, canary] = self._vouched.get((step, canary), 0) + count
        if is_vouched.all():
            return is_vouched
        numbered = requests.select(*_TRACK, "sender", "user").with_row_index("row")
        admitted_rows = self._admit_addresses(numbered.filter(~is_vouched))
        return is_vouched | numbered["row"].is_in(admitted_rows.implode())

    def _admit_addresses(self, requests: pl.DataFrame) -> pl.Series:
        """Return the numbers of the requests that are admitted, all of which no backend vouches for."""
        requests = requests.with_columns(sender_networks(requests["sender"]).fill_null(""))
        first_users = pl.concat([self._first_users, requests.select(_FIRST_USERS.names()).cast(_FIRST_USERS)])
        self._first_users = first_users.unique(_STEP_SENDER, keep="first", maintain_order=True).head(MAX_ADDRESSES)
        offered = requests.join(self._first_users, on=[*_STEP_SENDER, "user"], how="semi", maintain_order="left")
        self._count(offered.select(*_TRACK_SENDER, offered=1, admitted=0))
        limits = [
            {
                "step": step,
                "canary": canary,
                "limit": _address_limit(counts["offered"].to_numpy(), self._vouched.get((step, canary), 0)),
            }
            for (step, canary), counts in self._addresses.group_by(_TRACK)
        ]
        admitted = (
            offered.join(self._addresses, on=_TRACK_SENDER, how="left", maintain_order="left")
            .join(
                pl.DataFrame(limits, schema={"step": pl.Int32, "canary": pl.Boolean, "limit": pl.Int64}),
                on=_TRACK,
                maintain_order="left",
            )
            .filter(pl.col("admitted") + pl.int_range(pl.len()).over(_TRACK_SENDER) < pl.col("limit"))
        )
        self._count(admitted.select(*_TRACK_SENDER, offered=0, admitted=1))
        return admitted["row"]

    def _count(self, rows: pl.DataFrame) -> None:
        counts = pl.concat([self._addresses, rows.cast(_ADDRESSES)])
        self._addresses = counts.group_by(_TRACK_SENDER).agg(pl.col("offered", "admitted").sum())


def _address_limit(offered: npt.NDArray[np.int64], vouched: int) -> int:
    """Return the largest number of requests of an address that is at most its share of all that are then admitted.

    Args:
        offered: Number of requests of each address.
        vouched: Number of requests of authenticated backends.
    """
    lower_limit = int(offered.max(initial=0))
    limit = lower_limit + 1
    while lower_limit < limit:
        limit = lower_limit
        admitted_total = vouched + int(offered.clip(max=limit).sum())
        lower_limit = min(limit, max(int(MAX_ADDRESS_SHARE * admitted_total), 1))
    return limit


def is_backend(sender: str | None) -> bool:
    """Whether a sender presented the token of the application's own servers."""
    return sender == BACKEND
