"""What tells the rows of a day of the log from any others, whatever their order and however they are cut into files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.contracts import Columns, ShortlistError
from shortlist.spec.data import Data

Hashes = npt.NDArray[np.uint64]

DIGESTS: Final = "digests"
"""Note of the valid log: day (ISO 8601) -> digest. Its validation has every row's hash at hand; reading the rows again
and hashing them cost 0.8 s of processor time in 2 M rows of 40 columns."""


def row_columns(data: Data) -> list[str]:
    """Return the columns of the valid log that make a row what it is.

    Vectors, which nothing counts, are left out, and so are the numbers that an undeclared impression gets from its
    place in the log.
    """
    renamed = {data.label: Columns.LABEL, data.impression: Columns.IMPRESSION}
    kept = [renamed.get(column.name, column.name) for column in data.columns if column.type != "vector"]
    return list(dict.fromkeys([Columns.TIME, *([Columns.IMPRESSION] if data.impression else []), *kept]))


def row_hashes(frame: pl.DataFrame) -> Hashes:
    """Return a 64-bit hash of each row; equal rows have equal hashes, a null is a value like any other."""
    return frame.hash_rows(seed=1, seed_1=2, seed_2=3, seed_3=4).to_numpy()


class RowDigest:
    """The digest of rows that stream by; it holds within one version of Polars, which it names."""

    def __init__(self) -> None:
        self._total = np.uint64(0)

    def add(self, hashes: Hashes) -> None:
        """Take rows, in any order."""
        self._total = np.add(self._total, hashes.sum(dtype=np.uint64))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the digest that `str` gave.

        Raises:
            ShortlistError: Another version of Polars made it.
        """
        version, _, total = text.partition(":")
        if version != pl.__version__:
            raise ShortlistError(
                f"a digest of rows was made with Polars {version}, this step has {pl.__version__}, and their hashes"
                " differ; run again without the cache"
            )
        digest = cls()
        digest._total = np.uint64(int(total, 16))
        return digest

    def __str__(self) -> str:
        """Return it as text."""
        return f"{pl.__version__}:{int(self._total):016x}"


def noted(notes: Mapping[str, Mapping[str, str]], day: str) -> str | None:
    """Return the digest of a day that a log's notes hold; None where they hold none."""
    return notes.get(DIGESTS, {}).get(day)
