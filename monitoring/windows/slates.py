"""Statistics of a window's slates: sources of candidates, removals by filters, and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Final

import numpy as np
import polars as pl

from monitoring.windows.records import LiveExplorationCost, SlateTraffic

SLATE_COLUMNS: Final = (
    "request_id", "version", "items", "scores", "slate:asked", "slate:retrieved", "slate:source_names",
    "slate:source_counts", "slate:filter_names", "slate:filter_counts", "slate:fallback", "slate:explored",
    "slate:given_up",
)  # fmt: skip
"""Columns of the prediction log that are needed in addition to `ANSWER_COLUMNS`."""


def measure_slate_traffic(
    requests: pl.DataFrame, rows: pl.DataFrame, champion: int | None, max_cost: float | None, confidence: float
) -> tuple[SlateTraffic, ...]:
    """Return the slate statistics of each version, by version; empty where clients send their candidates.

    Args:
        requests: Answered requests, each once, with the columns that this module reads.
        rows: Shown rows whose outcome is known: request_id, label; see `LiveWindow.rows`.
        champion: The version that the shown items of others are compared with; None: no comparison.
        max_cost: Declared limit of the cost of exploration; None: none.
        confidence: Confidence level of the interval whose lower bound is compared with the limit.
    """
    slates = requests.filter(pl.col("slate:asked").is_not_null())
    outcomes = rows.group_by("request_id").agg(clicks=(pl.col("label") > 0).sum())
    slates_by_version = {
        version: version_slates for (version,), version_slates in slates.partition_by("version", as_dict=True).items()
    }
    reference_shares = _item_shares(slates_by_version[champion]) if champion in slates_by_version else None
    return tuple(
        _version_traffic(
            int(version), version_slates, outcomes, reference_shares if version != champion else None
        ).model_copy(update={"exploration": measure_exploration_cost(version_slates, max_cost, confidence)})
        for version, version_slates in sorted(slates_by_version.items())
    )


def measure_exploration_cost(
    slates: pl.DataFrame, max_cost: float | None, confidence: float
) -> LiveExplorationCost | None:
    """Return what drawn places cost: of each drawn slate the server logs what it gave up against the best order.

    The bound is that of a ratio of means over slates (Cochran, 1977), whose draws are independent.

    Args:
        slates: Slates of one version: scores, slate:given_up.
        max_cost: The declared limit; None: none.
        confidence: Confidence level of the interval.

    Returns:
        The cost; None where no slate was drawn, or none has an expected label.
    """
    logged = slates.filter(pl.col("slate:given_up").is_not_null())
    given_up = logged["slate:given_up"].to_numpy()
    best = given_up + logged["scores"].list.sum().cast(pl.Float64).fill_null(0.0).to_numpy()
    if not given_up.any() or best.sum() <= 0:
        return None
    share = float(given_up.sum() / best.sum())
    error = float(np.sqrt(((given_up - share * best) ** 2).sum()) / best.sum())
    low = share - NormalDist().inv_cdf((1 + confidence) / 2) * error
    return LiveExplorationCost(per_slate=float(given_up.mean()), share=share, low=low, limit=max_cost)


def versions_of_slates(requests: pl.DataFrame) -> frozenset[int]:
    """Return the versions that made slates for most of their requests; others rank the candidates of clients.

    Args:
        requests: As for `measure_slate_traffic`.
    """
    shares = requests.group_by("version").agg(pl.col("slate:asked").is_not_null().mean())
    return frozenset(shares.filter(pl.col("slate:asked") > 0.5)["version"].drop_nulls())


def _version_traffic(
    version: int, slates: pl.DataFrame, outcomes: pl.DataFrame, reference_shares: pl.DataFrame | None
) -> SlateTraffic:
    clicks = slates.join(outcomes, on="request_id", how="inner")["clicks"]
    retrieved = int(slates["slate:retrieved"].sum())
    sources = _count_by_name(slates, "source")
    removed = _count_by_name(slates, "filter")
    item_counts = slates["items"].list.len().fill_null(0)
    return SlateTraffic(
        version=version,
        slates=slates.height,
        sources=_shares(sources, sum(sources.values())),
        removed=_shares(removed, retrieved),
        short=_mean(item_counts < slates["slate:asked"]),
        fallback=_mean(slates["slate:fallback"].list.len().fill_null(0) > 0),
        explored=_mean(slates["slate:explored"].fill_null(value=False)),
        items=slates["items"].explode(empty_as_null=False, keep_nulls=False).n_unique(),
        judged=len(clicks),
        hit_rate=_mean(clicks > 0) if len(clicks) else None,
        clicks=_mean(clicks) if len(clicks) else None,
        overlap=_overlap(_item_shares(slates), reference_shares) if reference_shares is not None else None,
    )


def _count_by_name(slates: pl.DataFrame, stage: str) -> dict[str, int]:
    names, counts = f"slate:{stage}_names", f"slate:{stage}_counts"
    name_counts = slates.select(names, counts).explode(names, counts).drop_nulls()
    return dict(name_counts.group_by(names).agg(pl.col(counts).sum()).sort(names).iter_rows())


def _shares(counts: Mapping[str, int], total: int) -> dict[str, float]:
    return {name: count / total if total else 0.0 for name, count in counts.items()}


def _item_shares(slates: pl.DataFrame) -> pl.DataFrame:
    items = slates.select(item=pl.col("items")).explode("item").drop_nulls()
    return items.group_by("item").agg(share=pl.len() / max(items.height, 1))


def _overlap(shares: pl.DataFrame, reference_shares: pl.DataFrame) -> float:
    common = shares.join(reference_shares, on="item", how="inner", suffix="_other")
    return float(common.select(pl.min_horizontal("share", "share_other").sum()).item())


def _mean(values: pl.Series) -> float:
    mean = values.cast(pl.Float64).mean()
    return float(mean) if isinstance(mean, float) else 0.0
