from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from monitoring.drift.domain_classifier import domain_finding
from monitoring.reference.distributions import Bins, make_bins
from monitoring.windows.records import Finding
from shortlist.spec.monitoring import DriftLimits

KINDS = {"slot": "categorical", "device": "categorical", "price": "numeric", "tags": "tags"}


def traffic(rows: int, seed: int, swapped: bool = False, price: float = 0.0, users: int | None = None) -> pl.DataFrame:
    """Return rows of users; the devices of the slots may be swapped."""
    random = np.random.default_rng(seed)
    slot = random.integers(0, 2, rows)
    odd = (random.random(rows) < 0.1) ^ swapped
    return pl.DataFrame(
        {
            "user": [f"u{seed}-{user}" for user in random.integers(0, users or rows, rows)],
            "slot": slot.astype(str),
            "device": (slot ^ odd).astype(str),
            "price": random.normal(price, 1, rows),
            "tags": [[1] * count for count in random.integers(0, 3, rows)],
        },
        schema_overrides={"tags": pl.List(pl.Int64)},
    )


def find_domain_drift(
    live: pl.DataFrame, sample: pl.DataFrame, names: tuple[str, ...] = tuple(KINDS), seed: int = 0
) -> Finding:
    columns: dict[str, Bins] = {name: make_bins(sample[name], KINDS[name], DriftLimits()) for name in names}
    finding = domain_finding(live, sample, columns, 0.75, seed)
    assert finding is not None
    return finding


def test_rows_of_the_same_distribution_are_not_separated() -> None:
    finding = find_domain_drift(traffic(2_000, 1), traffic(2_000, 2))
    assert finding.effect == pytest.approx(0.5, abs=0.04)
    assert finding.p_value > 0.001
    assert finding.reason == f"all columns: a classifier tells live rows with AUC {finding.effect:.2f} <= 0.75"


def test_a_changed_dependence_of_columns_is_detected() -> None:
    finding = find_domain_drift(traffic(2_000, 1, swapped=True), traffic(2_000, 2))
    assert finding.effect == pytest.approx(0.9, abs=0.03)
    assert finding.p_value < 1e-20
    assert finding.reason.endswith(("> 0.75; most by 'slot'", "> 0.75; most by 'device'"))


def test_the_most_important_column_is_named() -> None:
    finding = find_domain_drift(traffic(2_000, 1, price=2.0), traffic(2_000, 2))
    assert finding.reason.endswith("> 0.75; most by 'price'")
    assert (finding.kind, finding.column, finding.critical) == ("domain", "all columns", 0.75)


def test_users_are_not_memorised() -> None:
    def personal(seed: int) -> pl.DataFrame:  # a user's price and tags hardly ever change, so they give a user away
        rows = traffic(2_000, seed, users=40).sort("user")
        same = pl.col("price", "tags").first().over("user")
        return rows.with_columns(same)

    finding = find_domain_drift(personal(1), personal(2), names=("price", "tags"))
    assert finding.effect < 0.7
    assert finding.p_value > 0.01
    by_row = find_domain_drift(*(personal(seed).drop("user") for seed in (1, 2)), names=("price", "tags"))
    assert by_row.effect > 0.85  # what it would be if rows of one user were on both sides of a fold


def test_the_classifier_uses_nulls_and_values_without_a_code() -> None:
    sample, live = traffic(1_000, 1), traffic(1_000, 2)
    broken = live.with_columns(price=pl.when(pl.int_range(pl.len()) % 10 > 0).then(None).otherwise(pl.col("price")))
    assert find_domain_drift(broken, sample).effect > 0.9
    renamed = live.with_columns(slot=pl.lit("new"))
    assert find_domain_drift(renamed, sample, names=("slot",)).effect > 0.9


def test_more_values_than_the_classifier_supports_are_merged() -> None:
    frame = pl.DataFrame({"user": np.arange(3_000).astype(str), "item": np.arange(3_000) % 600})
    bins = {"item": make_bins(frame["item"], "categorical", DriftLimits(top_values=600))}
    finding = domain_finding(frame, frame, bins, 0.75, 0)
    assert finding is not None
    assert finding.effect == pytest.approx(0.5, abs=0.05)


def test_large_sides_are_sampled_and_the_seed_decides() -> None:
    live, sample = traffic(30_000, 1), traffic(12_000, 2)
    assert find_domain_drift(live, sample, seed=3) == find_domain_drift(live, sample, seed=3)
    assert find_domain_drift(live, sample, seed=3) != find_domain_drift(live, sample, seed=4)


@pytest.mark.parametrize(("live_users", "sample_users"), [(19, 500), (500, 19)])
def test_too_few_users_give_no_finding(live_users: int, sample_users: int) -> None:
    live, sample = traffic(1_000, 1, users=live_users), traffic(1_000, 2, users=sample_users)
    assert (
        domain_finding(live, sample, {"price": make_bins(sample["price"], "numeric", DriftLimits())}, 0.75, 0) is None
    )


def test_there_is_no_finding_without_rows_or_columns() -> None:
    rows = traffic(500, 1)
    columns = {"price": make_bins(rows["price"], "numeric", DriftLimits())}
    assert domain_finding(rows.clear(), rows, columns, 0.75, 0) is None
    assert domain_finding(rows, rows.clear(), columns, 0.75, 0) is None
    assert domain_finding(rows, rows, {}, 0.75, 0) is None
    assert domain_finding(rows, rows.drop("price"), columns, 0.75, 0) is None
