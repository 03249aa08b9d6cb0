"""What the summary says of networks' embedding tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from shortlist.evaluation.records import Record


class BucketNumbers(Record):
    """One hashed feature on the training days; the bucket of null is not counted."""

    buckets: int = Field(ge=1)
    occupied: int = Field(ge=0)
    admitted: int = Field(ge=0)
    """Buckets whose embedding learnt."""
    values: float | None = Field(ge=0)
    """Estimated distinct values; null when all buckets are occupied."""
    collision_rate: float | None = Field(ge=0, le=1)
    """Estimated share of the values without a bucket of their own; likewise."""


class EmbeddingNumbers(Record):
    """The embedding table of a network."""

    hashed: dict[str, BucketNumbers]
    """By feature."""
    cached_rows: int | None
    """Rows that the device held while training; null: all."""
    cache_hit_rate: float | None = Field(ge=0, le=1)
    """Share of the last epoch's look-ups whose row was there already; null without a cache."""


def embeddings_of(records: Mapping[str, Mapping[str, Any]]) -> dict[str, EmbeddingNumbers]:
    """Return what the trainings' `model.json` say of embeddings, by model; those that say nothing are left out.

    Args:
        records: By model.
    """
    found = {}
    for model, record in records.items():
        hashed, cached_rows = record.get("hashed"), record.get("cached_rows")
        if hashed or cached_rows is not None:
            rates = [line.get("cache_hit_rate") for line in record.get("history") or []]
            found[model] = EmbeddingNumbers(
                hashed={name: BucketNumbers.model_validate(one) for name, one in (hashed or {}).items()},
                cached_rows=cached_rows,
                cache_hit_rate=rates[-1] if rates else None,
            )
    return found
