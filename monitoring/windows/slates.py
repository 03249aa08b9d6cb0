"""What the slates of a window say of the stages: where candidates come from, what filters remove, what users did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from monitoring.windows.records import SlateTraffic

READ: Final = (
    "request_id", "version", "items", "slate:asked", "slate:retrieved", "slate:source_names", "slate:source_counts",
    "slate:filter_names", "slate:filter_counts", "slate:fallback", "slate:explored",
)  # fmt: skip
"""Columns of the prediction log that are read, beside those of `monitoring.windows.answered`."""


def slate_traffic(requests: pl.DataFrame, rows: pl.DataFrame, champion: int | None) -> tuple[SlateTraffic, ...]:
    """Return what the slates of each version were, by version; empty where clients bring their candidates.

    Args:
        requests: Answered requests, each once, with the columns `READ`.
        rows: Shown rows whose outcome is known: request_id, label; see `LiveWindow.rows`.
        champion: The version with which the shown items of others are compared; None: with none.
    """
    slates = requests.filter(pl.col("slate:asked").is_not_null())
    outcomes = rows.group_by("request_id").agg(clicks=(pl.col("label") > 0).sum())
    of_version = {version: own for (version,), own in slates.partition_by("version", as_dict=True).items()}
    reference = _shares_shown(of_version[champion]) if champion in of_version else None
    return tuple(
        _of_version(int(version), own, outcomes, reference if version != champion else None)
        for version, own in sorted(of_version.items())
    )


def _of_version(
    version: int, slates: pl.DataFrame, outcomes: pl.DataFrame, reference: pl.DataFrame | None
) -> SlateTraffic:
    known = slates.join(outcomes, on="request_id", how="inner")["clicks"]
    retrieved = int(slates["slate:retrieved"].sum())
    sources = _counts(slates, "source")
    removed = _counts(slates, "filter")
    shown = slates["items"].list.len().fill_null(0)
    return SlateTraffic(
        version=version,
        slates=slates.height,
        sources=_shares(sources, sum(sources.values())),
        removed=_shares(removed, retrieved),
        short=_mean(shown < slates["slate:asked"]),
        fallback=_mean(slates["slate:fallback"].list.len().fill_null(0) > 0),
        explored=_mean(slates["slate:explored"].fill_null(value=False)),
        items=slates["items"].explode(empty_as_null=False, keep_nulls=False).n_unique(),
        judged=len(known),
        hit_rate=_mean(known > 0) if len(known) else None,
        clicks=_mean(known) if len(known) else None,
        overlap=_overlap(_shares_shown(slates), reference) if reference is not None else None,
    )


def _counts(slates: pl.DataFrame, what: str) -> dict[str, int]:
    names, counts = f"slate:{what}_names", f"slate:{what}_counts"
    each = slates.select(names, counts).explode(names, counts).drop_nulls()
    return dict(each.group_by(names).agg(pl.col(counts).sum()).sort(names).iter_rows())


def _shares(counts: Mapping[str, int], total: int) -> dict[str, float]:
    return {name: count / total if total else 0.0 for name, count in counts.items()}


def _shares_shown(slates: pl.DataFrame) -> pl.DataFrame:
    shown = slates.select(item=pl.col("items")).explode("item").drop_nulls()
    return shown.group_by("item").agg(share=pl.len() / max(shown.height, 1))


def _overlap(ours: pl.DataFrame, theirs: pl.DataFrame) -> float:
    both = ours.join(theirs, on="item", how="inner", suffix="_other")
    return float(both.select(pl.min_horizontal("share", "share_other").sum()).item())


def _mean(values: pl.Series) -> float:
    found = values.cast(pl.Float64).mean()
    return float(found) if isinstance(found, float) else 0.0
