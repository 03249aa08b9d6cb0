"""Rules of a log that says how its rows were shown: propensities sum to 1, and random rows are random."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.data.rules.log_facts import LogFacts, Problems, format_count
from shortlist.spec.data import Data

_FEWEST_ROWS: Final = 100
"""Fewest randomised rows of a place on a day whose propensities are summed."""
_MAX_FACTOR: Final = 2.0
"""Largest factor by which the estimated sum of propensities may differ from 1, beyond chance."""
_CHANCE_Z: Final = 6.0


def randomized_rows_vary(facts: LogFacts, data: Data) -> Problems:
    """Rows that were shown at random have more than one item."""
    rows = _randomized_rows(facts, data)
    if rows is not None and data.item is not None and rows.height > 1 and rows[data.item].n_unique() == 1:
        yield (
            f"all rows with '{data.randomized}' = 1 are of {data.item} {rows[data.item][0]}; slates that were drawn at"
            " random hold many items. Correct the column, or leave data.randomized out"
        )


def propensities_sum_to_one(facts: LogFacts, data: Data) -> Problems:
    """The propensities of all items at a place sum to 1, by an estimate from the items that were drawn there.

    The sum is that of `p / (1 - (1 - p)^n)` over the items of n drawn rows (Horvitz and Thompson, 1952): each item
    stands for those that were as unlikely to be drawn at all. It holds where everybody's draws are alike, not of served
    slates, whose items are likely for one user and hardly ever shown to others.
    """
    rows = _randomized_rows(facts, data)
    if rows is None or data.propensity is None or data.position is None:
        return
    rows = rows.drop_nulls([data.propensity, data.position])
    for (day, position), drawn in rows.group_by([Columns.DAY, data.position], maintain_order=True):
        if drawn.height < _FEWEST_ROWS:
            continue
        p = drawn.group_by(data.item).agg(pl.col(data.propensity).mean())[data.propensity].to_numpy()
        inclusion = -np.expm1(drawn.height * np.log1p(-np.minimum(p, 1 - 1e-12)))
        total = float((p / inclusion).sum())
        deviation = float(np.sqrt((p**2 * (1 - inclusion) / inclusion**2).sum()))
        if not 1 / _MAX_FACTOR - _CHANCE_Z * deviation <= total <= _MAX_FACTOR + _CHANCE_Z * deviation:
            yield (
                f"propensities do not sum up: on {day}, those of all items at place {position} sum to about"
                f" {total:.3g} by {format_count(drawn.height)} randomised rows; wanted 1. '{data.propensity}' is the"
                " probability of this item at this place, given the request"
            )
            return


def _randomized_rows(facts: LogFacts, data: Data) -> pl.DataFrame | None:
    """Return a sample of the rows that were shown at random; None where the log does not tell."""
    if data.randomized is None or data.item is None or not facts.profile.rows:
        return None
    return facts.profile.sample.rows().filter(pl.col(data.randomized) == 1).drop_nulls(data.item)
