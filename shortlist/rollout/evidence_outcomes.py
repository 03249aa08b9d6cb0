"""Outcomes joined with what the models had chosen to show."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

KEPT_SCORES: Final = 32_000_000
"""Scores of requests that wait for outcomes (128 MB); the oldest requests go first."""
KEPT_OUTCOMES: Final = 4_000_000
"""Outcomes that wait for their request's scores, or for more outcomes of the same request."""
REQUESTS: Final = pl.Schema(
    {
        "request": pl.UInt64(),
        "user": pl.UInt64(),
        "step": pl.Int32(),
        "canary": pl.Boolean(),
        "scores": pl.List(pl.Float32()),
        "slate": pl.Boolean(),
    }
)
OUTCOMES: Final = pl.Schema({"request": pl.UInt64(), "row": pl.Int32(), "label": pl.Int8()})
_COUNTS: Final = ("shown", "positive", "slates", "hits", "clicks")
_VALUES: Final = pl.Schema({"request": pl.UInt64(), **dict.fromkeys(_COUNTS, pl.Int64())})


class OutcomeJoin:
    """Requests and outcomes in any order, also many polls apart; a request is counted again when more becomes known.

    Args:
        top: Items that are shown of a request that brought its candidates, the best-scored ones.
        slate: What a slate counts: whether any of its items ends with a positive label, or how many do.
        kept_scores: Scores that wait for outcomes.
        kept_outcomes: Outcomes that wait.
    """

    def __init__(
        self,
        top: int,
        slate: Literal["hits", "clicks"] = "hits",
        kept_scores: int = KEPT_SCORES,
        kept_outcomes: int = KEPT_OUTCOMES,
    ) -> None:
        self._top, self._slate = top, slate
        self._kept = kept_scores, kept_outcomes
        self._requests = pl.DataFrame(schema=REQUESTS)
        self._outcomes = pl.DataFrame(schema=OUTCOMES)
        self._values = pl.DataFrame(schema=_VALUES)

    def add(self, requests: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
        """Return what changed in what users were shown.

        Of a request that brought its candidates, the `top` best-scored rows among those with an outcome are shown. A
        slate is one thing that is shown: whoever ordered it, not the model, chose its items and their places. Of
        several outcomes of a row the last one counts.

        Args:
            requests: New ones with their scores, all finite; columns of `REQUESTS`.
            outcomes: New ones; columns of `OUTCOMES`.

        Returns:
            user, step, canary, shown, positive, slates, hits, clicks (to be added; they may be negative), first (1 when
            the request had no outcome before); one row per request that changed.
        """
        fresh = requests.unique("request", keep="first", maintain_order=True)
        self._requests = pl.concat([self._requests, fresh.join(self._requests, on="request", how="anti")])
        self._outcomes = pl.concat([self._outcomes, outcomes])
        touched = pl.concat([requests.select("request"), outcomes.select("request")]).unique()
        values = self._valued(touched)
        changes = values.join(self._values, on="request", how="left", suffix="_before").select(
            "user",
            "step",
            "canary",
            *(pl.col(name) - pl.col(f"{name}_before").fill_null(0) for name in _COUNTS),
            first=pl.col("shown_before").is_null().cast(pl.Int64),
        )
        remembered = self._values.join(values, on="request", how="anti")
        self._values = pl.concat([remembered, values.select(_VALUES.names())])
        self._forget()
        return changes

    def knows(self, requests: pl.Series) -> bool:
        """Whether any of these requests, by hashed id, is one that was added."""
        return bool(requests.is_in(self._requests["request"].implode()).any())

    def _valued(self, touched: pl.DataFrame) -> pl.DataFrame:
        known = (
            self._outcomes.join(touched, on="request", how="semi")
            .unique(["request", "row"], keep="last", maintain_order=True)
            .group_by("request")
            .agg("row", "label")
        )
        of_slate = pl.col("slate").fill_null(value=False)
        found = (
            self._requests.join(known, on="request", how="inner")
            .with_columns(score=pl.col("scores").list.gather(pl.col("row"), null_on_oob=True))
            .drop("scores")
            .explode("row", "label", "score")
            .filter(pl.col("score").is_not_null())  # an outcome of a row that the request does not have
            .sort("score", "row", descending=[True, False])
            .group_by("request", "user", "step", "canary", "slate", maintain_order=True)
            .agg(pl.col("label"))
            .with_columns(label=pl.when(of_slate).then("label").otherwise(pl.col("label").list.head(self._top)))
            .with_columns(shown=pl.col("label").list.len().cast(pl.Int64), positive=_positives())
            .drop("label")
        )
        found = found.with_columns(
            slates=of_slate.cast(pl.Int64),
            clicks=pl.when(of_slate).then("positive").otherwise(0),
            hits=(of_slate & (pl.col("positive") > 0)).cast(pl.Int64),
        ).drop("slate")
        return found.with_columns(
            shown=pl.when(pl.col("slates") > 0).then("slates").otherwise("shown"),
            positive=pl.when(pl.col("slates") > 0).then(self._slate).otherwise("positive"),
        )

    def _forget(self) -> None:
        most_scores, most_outcomes = self._kept
        self._outcomes = self._outcomes.tail(most_outcomes)
        sizes = self._requests["scores"].list.len()
        if sizes.sum() > most_scores:
            # Half at once, so that it happens seldom.
            young = sizes.reverse().cum_sum().reverse() <= most_scores // 2
            self._requests = self._requests.filter(young).rechunk()
            self._values = self._values.join(self._requests, on="request", how="semi")


def _positives() -> pl.Expr:
    return pl.col("label").list.eval(pl.element() > 0).list.sum().cast(pl.Int64)
