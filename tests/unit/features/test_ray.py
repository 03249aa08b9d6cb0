"""The engine `ray`, on a cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pytest

pytest.importorskip("ray", reason="requirements/cluster.txt is not installed")

from shortlist.features.engines.ray.cluster import RaySettings, connect_cluster
from shortlist.system.partitions import PartitionEngine, transpose

pytestmark = pytest.mark.xdist_group("ray")

SETTINGS = RaySettings("", workers=2, partitions=3, memory_bytes=10**9, object_store_bytes=200_000_000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[PartitionEngine]:
    with connect_cluster(SETTINGS) as engine:
        yield engine


def scatter(number: int, partitions: int) -> list[pl.DataFrame]:
    rows = pl.DataFrame({"key": range(number, number + 6), "rows": [1] * 6})
    return [rows.filter(pl.col("key") % partitions == part) for part in range(partitions)]


def gather(blocks: Iterator[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(blocks).group_by("key").agg(pl.col("rows").sum()).sort("key")


def test_a_shuffle(cluster: PartitionEngine) -> None:
    scattered = cluster.run(scatter, [(0, 3), (3, 3)], outputs=3)
    gathered = cluster.run(gather, [()] * 3, transpose(scattered))
    assert [frame.rows() for frame in cluster.fetch([block for (block,) in gathered])] == [
        [(0, 1), (3, 2), (6, 1)], [(1, 1), (4, 2), (7, 1)], [(2, 1), (5, 2), (8, 1)]
    ]  # fmt: skip
