"""Join of outcomes with the items that the models chose to show."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

MAX_WAITING_SCORES: Final = 32_000_000
"""Most scores of requests that wait for outcomes (128 MB); beyond it the oldest requests are dropped."""
MAX_WAITING_OUTCOMES: Final = 4_000_000
"""Most outcomes that wait for the scores of their request, or for more outcomes of the same request."""
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
    """Joins requests and outcomes that arrive in any order; a request is counted again when new outcomes arrive.

    Args:
        top: Number of best-scored items that count as shown, of a request that brought its candidates.
        slate: Value of a slate: `hits`, whether any item has a positive label; `clicks`, how many items have one.
        max_scores: Most scores that wait for outcomes.
        max_outcomes: Most outcomes that wait.
    """

    def __init__(
        self,
        top: int,
        slate: Literal["hits", "clicks"] = "hits",
        max_scores: int = MAX_WAITING_SCORES,
        max_outcomes: int = MAX_WAITING_OUTCOMES,
    ) -> None:
        self._top, self._slate = top, slate
        self._limits = max_scores, max_outcomes
        self._requests = pl.DataFrame(schema=REQUESTS)
        self._outcomes = pl.DataFrame(schema=OUTCOMES)
        self._values = pl.DataFrame(schema=_VALUES)

    def add(self, requests: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
        """Return the changes of the counts of shown items and positive labels.

        Of a request that brought its candidates, the `top` best-scored rows among those with an outcome count as shown.
        A slate counts as one shown item: its items and places were chosen by the ordering, not by the model alone. Of
        several outcomes of a row the last one counts.

        Args:
            requests: New requests with their scores, all finite; columns of `REQUESTS`.
            outcomes: New outcomes; columns of `OUTCOMES`.

        Returns:
            One row per changed request: user, step, canary, the changes of shown, positive, slates, hits and clicks
            (they may be negative), and with_outcomes (1 when the request had no outcome before).
        """
        new_requests = requests.unique("request", keep="first", maintain_order=True)
        self._requests = pl.concat([self._requests, new_requests.join(self._requests, on="request", how="anti")])
        self._outcomes = pl.concat([self._outcomes, outcomes])
        changed_requests = pl.concat([requests.select("request"), outcomes.select("request")]).unique()
        values = self._value_requests(changed_requests)
        changes = values.join(self._values, on="request", how="left", suffix="_before").select(
            "user",
            "step",
            "canary",
            *(pl.col(name) - pl.col(f"{name}_before").fill_null(0) for name in _COUNTS),
            with_outcomes=pl.col("shown_before").is_null().cast(pl.Int64),
        )
        unchanged_values = self._values.join(values, on="request", how="anti")
        self._values = pl.concat([unchanged_values, values.select(_VALUES.names())])
        self._forget()
        return changes

    def _value_requests(self, changed_requests: pl.DataFrame) -> pl.DataFrame:
        labels_by_request = (
            self._outcomes.join(changed_requests, on="request", how="semi")
            .unique(["request", "row"], keep="last", maintain_order=True)
            .group_by("request")
            .agg("row", "label")
        )
        is_slate = pl.col("slate").fill_null(value=False)
        values = (
            self._requests.join(labels_by_request, on="request", how="inner")
            .with_columns(score=pl.col("scores").list.gather(pl.col("row"), null_on_oob=True))
            .drop("scores")
            .explode("row", "label", "score")
            .filter(pl.col("score").is_not_null())  # an outcome of a row that the request does not have
            .sort("score", "row", descending=[True, False])
            .group_by("request", "user", "step", "canary", "slate", maintain_order=True)
            .agg(pl.col("label"))
            .with_columns(label=pl.when(is_slate).then("label").otherwise(pl.col("label").list.head(self._top)))
            .with_columns(shown=pl.col("label").list.len().cast(pl.Int64), positive=_positives())
            .drop("label")
        )
        values = values.with_columns(
            slates=is_slate.cast(pl.Int64),
            clicks=pl.when(is_slate).then("positive").otherwise(0),
            hits=(is_slate & (pl.col("positive") > 0)).cast(pl.Int64),
        ).drop("slate")
        return values.with_columns(
            shown=pl.when(pl.col("slates") > 0).then("slates").otherwise("shown"),
            positive=pl.when(pl.col("slates") > 0).then(self._slate).otherwise("positive"),
        )

    def _forget(self) -> None:
        most_scores, most_outcomes = self._limits
        self._outcomes = self._outcomes.tail(most_outcomes)
        sizes = self._requests["scores"].list.len()
        if sizes.sum() > most_scores:
            # Half at once, so that it happens seldom.
            is_recent = sizes.reverse().cum_sum().reverse() <= most_scores // 2
            self._requests = self._requests.filter(is_recent).rechunk()
            self._values = self._values.join(self._requests, on="request", how="semi")


def _positives() -> pl.Expr:
    return pl.col("label").list.eval(pl.element() > 0).list.sum().cast(pl.Int64)
