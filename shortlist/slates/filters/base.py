"""Interface of filters, and the part of a request that they read."""

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
    """Items that a user was shown, with their outcomes, oldest first."""

    items: pl.Series
    """Values of `data.item`."""
    times: pl.Series
    """Moments of the impressions, Datetime("us", "UTC"), ascending."""
    positive: pl.Series
    """Whether the outcomes were positive, boolean."""

    # In numpy, here and below: methods of a series are expressions, which wait for Polars' threads.

    @property
    def moments(self) -> NDArray[np.int64]:
        """The times in microseconds since 1970-01-01 UTC."""
        moments: NDArray[np.int64] = self.times.to_physical().to_numpy()
        return moments

    @property
    def positive_items(self) -> pl.Series:
        """Items with a positive outcome, newest first."""
        newest_first = np.flatnonzero(self.positive.to_numpy())[::-1]
        return self.items[pl.Series(newest_first.astype(np.uint32))]

    def since(self, moment: datetime) -> UserHistory:
        """Return the history from a moment on."""
        first = int(np.searchsorted(self.moments, microseconds(moment)))
        return UserHistory(self.items[first:], self.times[first:], self.positive[first:])


@dataclass(frozen=True)
class FilterRequest:
    """The part of a request that filters read beside its candidates."""

    now: datetime
    """Moment of the request, with a time zone."""
    history: UserHistory | None = None
    """History of the user; None: the user is unknown."""
    lists: Mapping[str, pl.Series] = field(default_factory=dict)
    """Items of the release's lists, by the name of the filter that reads them."""


class Filter(Section):
    """A filter of the spec's `filters`; kinds override the methods that they need."""

    name: str
    """Name in answers, metrics and messages."""

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check the filter against the columns of candidates.

        Raises:
            ShortlistError: A column is missing or of a type that the filter cannot use.
        """

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of candidates that the filter reads."""
        return ()

    @property
    def asks_request(self) -> bool:
        """Whether it depends on the request beyond its columns and list: on the moment, or the user's history."""
        return True

    @property
    def is_row_wise(self) -> bool:
        """Whether a candidate's columns and the list decide alone, so that many requests can be filtered at once."""
        return False

    @property
    def file(self) -> str | None:
        """File that the filter reads, relative to the folder of the log; None: it reads none."""
        return None

    @property
    def remembers(self) -> timedelta | None:
        """Length of the user's history that it reads; None: it reads none."""
        return None

    def read_list(self, files: Path, item_type: pl.DataType) -> pl.Series | None:
        """Return the items in the filter's file; None: it has no file.

        Args:
            files: Folder of the log, which holds the file.
            item_type: Type of `data.item`.

        Raises:
            ShortlistError: The file is missing or empty, or a line is not of the type of items.
        """
        return None

    @abstractmethod
    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return whether each candidate may be shown: bool, shape (n_candidates,)."""

    def count_violations(self, shown_items: pl.DataFrame, request: FilterRequest) -> int:
        """Return how many of the shown items it should have removed; kinds count by another algorithm than `keeps`."""
        return int((~self.keeps(shown_items, request)).sum())
