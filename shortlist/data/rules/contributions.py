"""What one request, one user and one sender contribute to some rows, and which of their rows are beyond their share.

Clients choose how much they send and, unless a server vouches for them, who they say that they are. No contribution is
larger than a share of all rows; of a larger one, rows are left out by a hash.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from shortlist.spec.data import TYPICAL_CONTRIBUTIONS, TYPICAL_CONTRIBUTIONS_TO_ITEM

BY_REQUEST: Final = ":request"
BY_USER: Final = ":user"
BY_SENDER: Final = ":sender"
CONTRIBUTORS: Final = {BY_REQUEST: pl.UInt64(), BY_USER: pl.String(), BY_SENDER: pl.String()}
"""Columns that name who contributed a row; null: nobody, or a sender that vouches for its users."""
ROW_ID: Final = ":row"
"""Column with the identity of a row, by whose hash rows are left out."""
AMOUNT: Final = ":amount"
"""Column with the number of rows that a row stands for."""
_GROUP, _NAME, _PLACE, _COUNT, _CAP, _TOTAL = ":group", ":name", ":place", ":count", ":cap", ":total"


def find_excesses(rows: pl.DataFrame, share: float, item: str | None = None) -> pl.Series:
    """Return why rows are beyond the share of their request, user or sender; null where they are not.

    The share is one of all rows, and one of the rows of each item.

    Args:
        rows: Rows with `CONTRIBUTORS`, `ROW_ID`, `AMOUNT` and the item.
        share: Largest share.
        item: Column with the item; None: there is none.
    """
    reasons = pl.repeat(None, rows.height, dtype=pl.String(), eager=True)
    for by in CONTRIBUTORS:
        for of in dict.fromkeys((None, item)) if rows[by].count() else ():
            places = reasons.is_null().arg_true()
            typical = TYPICAL_CONTRIBUTIONS if of is None else 1 if by == BY_REQUEST else TYPICAL_CONTRIBUTIONS_TO_ITEM
            excess = find_excess(rows[places], by, share, of, typical)
            reasons = reasons.scatter(places, excess)
    return reasons


def find_excess(
    rows: pl.DataFrame, by: str, share: float, of: str | None = None, typical: int = TYPICAL_CONTRIBUTIONS
) -> pl.Series:
    """Return why rows are beyond the share of who contributed them; null where they are not.

    The largest contributions are cut to one size: the share of what is left, but at least `typical` times the median
    contribution. Where most rows have no contributor, or any has no sender, being of servers that vouch for their
    users, the share alone decides: whoever sends more than they do is not the typical sender.

    Args:
        rows: Rows with `by`, `of`, `ROW_ID` and `AMOUNT`.
        by: Column that names who contributed a row; null for nobody.
        share: Largest share of all rows.
        of: Column with groups, such as items, each of which is judged by itself; null: none. None: all rows are one.
        typical: See above.

    >>> log = pl.DataFrame({":user": ["a"] * 15 + list("bcdefg"), ROW_ID: range(21), AMOUNT: [1] * 21})
    >>> find_excess(log, ":user", 0.01).drop_nulls().unique().to_list()
    ['user: 15 of 21 rows, wanted at most 10']
    """
    group = pl.lit(0) if of is None else pl.col(of)
    columns = group.alias(_GROUP), pl.col(by).alias(_NAME), ROW_ID, pl.col(AMOUNT).cast(pl.Int64)
    counted = rows.select(columns).with_row_index(_PLACE).filter(pl.col(_GROUP).is_not_null())
    named = counted.filter(pl.col(_NAME).is_not_null())
    contributions = named.group_by(_GROUP, _NAME).agg(pl.col(AMOUNT).sum().alias(_COUNT))
    totals = counted.group_by(_GROUP).agg(pl.col(AMOUNT).sum().alias(_TOTAL))
    named_share = 1.0 if by == BY_SENDER else 0.5
    caps = _caps(contributions.join(totals, on=_GROUP), share, typical, named_share)
    large = contributions.join(caps, on=_GROUP)
    large = large.filter(pl.col(_COUNT) > pl.col(_CAP))
    shuffled = named.join(large, on=[_GROUP, _NAME]).sort(pl.col(ROW_ID).hash(seed=1), _PLACE)
    is_beyond = pl.col(AMOUNT).cum_sum().over(_GROUP, _NAME) > pl.col(_CAP)
    reason = pl.format(
        "{}: {} of {} rows" + (f" of one {of}" if of else "") + ", wanted at most {}",
        pl.lit(by.lstrip(":")), _COUNT, _TOTAL, _CAP,
    )  # fmt: skip
    beyond = shuffled.filter(is_beyond).select(_PLACE, reason.alias("reason"))
    reasons = pl.repeat(None, rows.height, dtype=pl.String(), eager=True)
    return reasons.scatter(beyond[_PLACE], beyond["reason"])


def _caps(contributions: pl.DataFrame, share: float, typical: int, named_share: float) -> pl.DataFrame:
    """Return the total and the largest allowed contribution of each group.

    Where the m largest are cut to c and all others have r, c = share (m c + r); the first m that leaves nobody above c
    is the number of those that are cut. The median decides where at least `named_share` of a group has contributors.
    """
    count, total = pl.col(_COUNT), pl.col(_TOTAL)
    ordered = contributions.sort(_COUNT, descending=True).with_columns(
        pl.int_range(pl.len()).over(_GROUP).alias(_PLACE), (count.cum_sum() - count).over(_GROUP).alias("before")
    )
    cut = share * (total - pl.col("before")) / (1 - share * pl.col(_PLACE))
    suffices = (share * pl.col(_PLACE) < 1) & (cut >= count)
    cut_of_all = share * (total.first() - count.sum()) / (1 - share * pl.len())
    least = (
        pl.when(count.sum() >= named_share * total.first()).then(typical * count.get((pl.len() - 1) // 2)).otherwise(1)
    )
    cap = pl.coalesce(cut.filter(suffices).first(), pl.when(share * pl.len() < 1).then(cut_of_all), 0.0).floor()
    return ordered.group_by(_GROUP).agg(total.first(), pl.max_horizontal(cap, least).cast(pl.Int64).alias(_CAP))
