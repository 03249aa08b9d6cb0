"""Numbers of networks' embedding tables, for the summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from shortlist.evaluation.metrics.records import Record


class BucketNumbers(Record):
    """Hash buckets of one feature on the training days; the bucket of null is not counted."""

    buckets: int = Field(ge=1)
    occupied: int = Field(ge=0)
    admitted: int = Field(ge=0)
    """Buckets whose embedding was trained."""
    values: float | None = Field(ge=0)
    """Estimated distinct values; null when all buckets are occupied."""
    collision_rate: float | None = Field(ge=0, le=1)
    """Estimated share of the values that share a bucket; null when all buckets are occupied."""


class EmbeddingNumbers(Record):
    """The embedding table of a network."""

    hashed: dict[str, BucketNumbers]
    """Numbers of the hashed features, by feature."""
    cached_rows: int | None
    """Rows that the device held while training; null: all."""
    cache_hit_rate: float | None = Field(ge=0, le=1)
    """Share of the last epoch's look-ups whose row was on the device; null without a cache."""


def read_embedding_numbers(records: Mapping[str, Mapping[str, Any]]) -> dict[str, EmbeddingNumbers]:
    """Return the embedding numbers of models, by model; models without any are left out.

    Args:
        records: Content of `model.json` by model.
    """
    numbers_by_model = {}
    for model, record in records.items():
        hashed, cached_rows = record.get("hashed"), record.get("cached_rows")
        if hashed or cached_rows is not None:
            rates = [epoch.get("cache_hit_rate") for epoch in record.get("history") or []]
            numbers_by_model[model] = EmbeddingNumbers(
                hashed={
                    name: BucketNumbers.model_validate(bucket_record) for name, bucket_record in (hashed or {}).items()
                },
                cached_rows=cached_rows,
                cache_hit_rate=rates[-1] if rates else None,
            )
    return numbers_by_model
