"""What a filter has to say of itself, and what it is given of a request."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.spec.base import Section

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since 1970-01-01 UTC."""
    return (moment - EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True)
class UserHistory:
    """What a user was shown and took, oldest first."""

    items: pl.Series
    """Values of `data.item`."""
    times: pl.Series
    """Datetime("us", "UTC"), ascending."""
    positive: pl.Series
    """Boolean: whether the outcome was positive."""

    # In numpy, here and below: a series' own methods are expressions, which wait for Polars' threads.

    @property
    def moments(self) -> NDArray[np.int64]:
        """The times in microseconds since 1970-01-01 UTC."""
        moments: NDArray[np.int64] = self.times.to_physical().to_numpy()
        return moments

    @property
    def taken(self) -> pl.Series:
        """Items with a positive outcome, newest first."""
        return self.items[np.flatnonzero(self.positive.to_numpy())[::-1]]

    def since(self, moment: datetime) -> UserHistory:
        """Return what is not older than a moment."""
        first = int(np.searchsorted(self.moments, microseconds(moment)))
        return UserHistory(self.items[first:], self.times[first:], self.positive[first:])


@dataclass(frozen=True)
class FilterRequest:
    """What filters know of a request beside its candidates."""

    now: datetime
    """With a time zone."""
    history: UserHistory | None = None
    """None: nothing is known of this user."""
    lists: Mapping[str, pl.Series] = field(default_factory=dict)
    """Items of the release's lists, by the name of the filter that reads them."""


class Filter(Section):
    """A filter of the spec's `filters`. A kind overrides what it needs."""

    name: str
    """In answers, metrics and messages."""

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check the filter against the columns of candidates.

        Raises:
            ShortlistError: A column is missing or of a type that the filter cannot use.
        """

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of candidates that it reads."""
        return ()

    @property
    def asks_request(self) -> bool:
        """Whether its verdict depends on more than the columns it reads and its list: the moment, the user's past."""
        return True

    @property
    def file(self) -> str | None:
        """The user's file that it reads, relative to the folder of the log; None: it has no file."""
        return None

    @property
    def remembers(self) -> timedelta | None:
        """How much of the past it has to be told of what users were shown; None: nothing."""
        return None

    def read_list(self, files: Path, item_type: pl.DataType) -> pl.Series | None:
        """Return the items that the filter's own file names; None: it has no file.

        Args:
            files: Folder of the user's files.
            item_type: Type of `data.item`.

        Raises:
            ShortlistError: The file is missing, empty, or holds what is no item.
        """
        return None

    @abstractmethod
    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return bool, shape (n_candidates,): which of them may be shown."""

    def broken(self, shown: pl.DataFrame, request: FilterRequest) -> int:
        """Return how many of the shown items it should have removed; a kind counts in another way than `keeps` does."""
        return int((~self.keeps(shown, request)).sum())
