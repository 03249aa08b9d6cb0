from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from monitoring.drift.drift import find_drift
from monitoring.reference.distributions import Bins
from monitoring.reference.reference import ColumnReference, Reference
from monitoring.windows.records import Finding
from shortlist.features.counts.vocabulary import ValueIds
from shortlist.features.declared.plan import plan
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.monitoring import DriftLimits

LIMITS = DriftLimits()
SURFACES = Bins(kind="categorical", values=("home", "search"))


def column(bins: Bins, *days: tuple[int, ...], nulls: float = 0.0) -> ColumnReference:
    return ColumnReference(bins=bins, counts=days, nulls=nulls, rows=sum(map(sum, days)))


def reference(unknown_shares: dict[str, float] | None = None, **columns: ColumnReference) -> Reference:
    days = len(next(iter(columns.values())).counts) if columns else 0
    dates = tuple(date(2026, 1, 5 + day) for day in range(days))
    return Reference(
        "demo", dates, columns, unknown_shares or {}, {}, pl.DataFrame({"user": []}, schema={"user": pl.String})
    )


def surfaces(home: int, search: int, other_rows: int = 0) -> pl.DataFrame:
    values = ["home"] * home + ["search"] * search + ["tv"] * other_rows
    return pl.DataFrame({"user": [f"u{row}" for row in range(len(values))], "surface": values})


def single_finding(rows: pl.DataFrame, reference_profile: Reference, limits: DriftLimits = LIMITS) -> Finding:
    (finding,) = find_drift(rows, reference_profile, None, None, limits)
    return finding


@pytest.fixture
def preprocessing(tmp_path: Path) -> Preprocessing:
    """Items 1 to 100 and tags 'a' and 'b' have an id."""
    pl.DataFrame({"value": range(1, 101)}).write_parquet(tmp_path / "item_id.parquet")
    pl.DataFrame({"value": ["a", "b"]}).write_parquet(tmp_path / "tags.parquet")
    columns = [{"name": name, "type": "integer"} for name in ("user_id", "item_id", "is_click")]
    data = Data.model_validate(
        {
            "source": {"kind": "generated"},
            "columns": [*columns, {"name": "tags", "type": "tags"}],
            "label": "is_click",
            "clock": {"kind": "row_order"},
            "user": "user_id",
            "item": "item_id",
        }
    )
    features = Features.model_validate({"columns": [{"kind": "vocabulary", "each": ["item_id", "tags"]}]})
    ids = {name: ValueIds(tmp_path / f"{name}.parquet") for name in ("item_id", "tags")}
    return Preprocessing(plan(data, features), moments={}, widths={}, vocabularies=ids)


def test_the_reason_of_drift_has_the_numbers_and_the_largest_change() -> None:
    finding = single_finding(
        surfaces(1_200, 8_800), reference(surface=column(SURFACES, (5_500, 4_500, 0), (5_500, 4_500, 0)))
    )
    assert finding.drifted
    assert finding.reason == "surface: population stability index 0.92 > 0.20; 'home' 55 % -> 12 %"
    assert (finding.column, finding.kind, finding.critical) == ("surface", "categorical", 0.2)
    assert finding.p_value < 1e-100


def test_an_unchanged_column_has_not_drifted() -> None:
    finding = single_finding(surfaces(560, 440), reference(surface=column(SURFACES, (5_500, 4_500, 0))))
    assert not finding.drifted
    assert finding.reason == "surface: population stability index 0.00 <= 0.20; 'search' 45 % -> 44 %"


def test_a_new_value_is_named_other_values() -> None:
    finding = single_finding(surfaces(500, 350, 150), reference(surface=column(SURFACES, (5_500, 4_500, 0))))
    assert finding.drifted
    assert finding.reason.endswith("; other values 0 % -> 15 %")


def test_a_significant_but_small_shift_is_no_drift() -> None:
    finding = single_finding(surfaces(60_000, 40_000), reference(surface=column(SURFACES, (5_500, 4_500, 0))))
    assert finding.p_value < 1e-15
    assert not finding.drifted


def test_a_large_shift_of_few_users_is_no_drift() -> None:
    reference_profile = reference(surface=column(SURFACES, (5_000, 5_000, 0)))
    every_row_a_user = surfaces(750, 250)
    four_users = every_row_a_user.with_columns(user=(pl.int_range(pl.len()) // 250).cast(pl.String))
    assert single_finding(every_row_a_user, reference_profile).drifted
    finding = single_finding(four_users, reference_profile)
    assert not finding.drifted
    assert finding.p_value > 0.05


def test_a_large_effect_that_is_not_significant_is_no_drift() -> None:
    limits = DriftLimits(max_index=0.01)
    finding = single_finding(surfaces(57, 43), reference(surface=column(SURFACES, (5_000, 5_000, 0))), limits)
    assert not finding.drifted
    assert "(chance, with 100 independent rows)" in finding.reason
    wide = DriftLimits(max_index=0.01, alpha=0.4)
    assert not single_finding(surfaces(53, 47), reference(surface=column(SURFACES, (5_000, 5_000, 0))), wide).drifted


def test_a_shift_as_large_as_between_the_references_days_is_no_drift() -> None:
    changing = reference(surface=column(SURFACES, (8_000, 2_000, 0), (3_000, 7_000, 0), (5_500, 4_500, 0)))
    finding = single_finding(surfaces(2_500, 7_500), changing)
    assert finding.effect > LIMITS.max_index
    assert not finding.drifted
    assert "(the reference's own days differ by so much)" in finding.reason
    assert single_finding(surfaces(2_500, 7_500), changing, DriftLimits(natural=0)).drifted


def test_significance_is_adjusted_for_all_columns() -> None:
    limits = DriftLimits(max_index=0.001, natural=0, alpha=0.05)
    shifted, same = column(SURFACES, (5_000, 5_000, 0)), column(SURFACES, (5_450, 4_550, 0))
    rows = surfaces(545, 455)
    assert single_finding(rows, reference(surface=shifted), limits).drifted  # p about 0.008
    further_columns = {f"other{number}": same for number in range(60)}
    renamed = rows.with_columns(pl.col("surface").alias(name) for name in further_columns)
    findings = find_drift(renamed, reference(surface=shifted, **further_columns), None, None, limits)
    assert [finding.column for finding in findings if finding.drifted] == []  # one of 61 such is to be expected
    assert findings[0].reason.endswith(f"; but it may be chance (p {findings[0].p_value:.2g})")


def test_nulls_are_not_compared() -> None:
    reference_profile = reference(
        surface=column(SURFACES, (5_500, 4_500, 0)), price=column(Bins(kind="numeric"), (0,), nulls=1.0)
    )
    rows = surfaces(550, 450).with_columns(price=pl.lit(3.0))
    half = rows.with_columns(surface=pl.when(pl.int_range(pl.len()) % 2 == 0).then("surface"))
    assert not single_finding(half, reference_profile).drifted
    for without_values in (rows.with_columns(surface=pl.lit(None)), rows.drop("surface"), rows.clear()):
        assert find_drift(without_values, reference_profile, None, None, LIMITS) == ()


def test_an_ignored_column_of_the_reference_is_not_compared() -> None:
    reference_profile = reference(surface=column(SURFACES, (5_500, 4_500, 0)))
    assert single_finding(surfaces(100, 900), reference_profile).drifted
    assert find_drift(surfaces(100, 900), reference_profile, None, None, DriftLimits(ignore=("surface",))) == ()


def test_numbers_and_lists_are_compared_by_their_bins() -> None:
    prices = Bins(kind="numeric", edges=(10.0, 20.0))
    tags = Bins(kind="tags", values=("music", "news"))
    reference_profile = reference(price=column(prices, (4_000, 3_000, 3_000)), tags=column(tags, (5_000, 5_000, 2_000)))
    rows = pl.DataFrame(
        {
            "user": [f"u{row}" for row in range(1_000)],
            "price": [25.0] * 700 + [15.0] * 200 + [5.0] * 100,
            "tags": [["music", "new"]] * 500 + [["news"]] * 100 + [[]] * 400,
        }
    )
    price, topics = find_drift(rows, reference_profile, None, None, LIMITS)
    assert price.drifted
    assert price.reason.endswith("; below 10 40 % -> 10 %")
    assert (price.kind, topics.kind) == ("numeric", "tags")
    assert topics.drifted
    assert topics.reason.endswith(("; 'news' 42 % -> 9.1 %", "; other values 17 % -> 45 %"))


def test_scores_are_compared_with_those_of_the_test_days() -> None:
    bins = Bins(kind="numeric", edges=(0.25, 0.5, 0.75))
    test_days = column(bins, (0, 0, 0, 0), (1_000, 1_000, 1_000, 1_000))
    rows = pl.DataFrame({"user": [f"u{row}" for row in range(2_000)], "score": np.linspace(0.5, 1, 2_000)})
    (finding,) = find_drift(rows, reference(), test_days, None, LIMITS)
    assert finding.drifted
    assert (finding.kind, finding.column) == ("score", "score")
    (same,) = find_drift(rows.with_columns(score=2 * pl.col("score") - 1), reference(), test_days, None, LIMITS)
    assert not same.drifted


def items(known_rows: int, unknown_rows: int) -> pl.DataFrame:
    rows = known_rows + unknown_rows
    values = np.where(np.arange(rows) < known_rows, np.arange(rows) % 100 + 1, 1_000)
    return pl.DataFrame({"user": np.arange(rows).astype(str), "item_id": values})


def unknown_of(
    rows: pl.DataFrame, reference_profile: Reference, preprocessing: Preprocessing, limits: DriftLimits
) -> Finding:
    (finding,) = (
        finding
        for finding in find_drift(rows, reference_profile, None, preprocessing, limits)
        if finding.kind == "unknown"
    )
    return finding


def test_an_increase_of_unknown_values_is_drift(preprocessing: Preprocessing) -> None:
    reference_profile = reference(unknown_shares={"item_id": 0.04})
    finding = unknown_of(items(860, 140), reference_profile, preprocessing, LIMITS)
    assert finding.drifted
    assert finding.effect == pytest.approx(0.1)
    assert finding.reason == (
        "item_id: 14 % of the values have no id of their own, 4 % in the reference; an increase of 10.00 > 5.00 points"
    )
    assert not unknown_of(items(920, 80), reference_profile, preprocessing, LIMITS).drifted  # 4 points more
    assert not unknown_of(items(1_000, 0), reference_profile, preprocessing, LIMITS).drifted
    assert find_drift(items(860, 140), reference_profile, None, preprocessing, DriftLimits(ignore=("item_id",))) == ()
    assert find_drift(items(860, 140), reference_profile, None, None, LIMITS) == ()


def test_unknown_values_of_a_few_users_may_be_chance(preprocessing: Preprocessing) -> None:
    rows = items(1_000, 250).with_columns(user=(pl.int_range(pl.len()) // 125).cast(pl.String))
    finding = unknown_of(rows, reference(unknown_shares={"item_id": 0.1}), preprocessing, LIMITS)
    assert not finding.drifted  # 2 of 10 users
    assert finding.reason.endswith(f"10.00 > 5.00 points; but it may be chance (p {finding.p_value:.2g})")
    one_user = rows.with_columns(user=pl.lit("u"))
    assert unknown_of(one_user, reference(unknown_shares={"item_id": 0.1}), preprocessing, LIMITS).p_value == 1


def test_unknown_tags_are_counted_by_value_without_nulls(preprocessing: Preprocessing) -> None:
    lists = [["a", "b", "new"], [], None, ["a"]] * 500
    rows = pl.DataFrame({"user": np.arange(2_000).astype(str), "tags": lists})
    finding = unknown_of(rows, reference(unknown_shares={"tags": 0.0}), preprocessing, LIMITS)
    assert finding.effect == pytest.approx(1 / 4)
    empty = rows.with_columns(tags=pl.lit(None, dtype=pl.List(pl.String)))
    assert find_drift(empty, reference(unknown_shares={"tags": 0.0}), None, preprocessing, LIMITS) == ()


def with_sample(reference_profile: Reference, sample: pl.DataFrame) -> Reference:
    return Reference(
        reference_profile.spec,
        reference_profile.days,
        reference_profile.columns,
        reference_profile.unknown_shares,
        reference_profile.models,
        sample,
    )


def test_the_classifier_uses_no_keys_and_no_columns_that_vary_by_day(preprocessing: Preprocessing) -> None:
    halves = Bins(kind="categorical", values=(1, 2))
    steady, dated = column(halves, (500, 500, 0), (500, 500, 0)), column(halves, (900, 100, 0), (100, 900, 0))
    reference_profile = reference(item_id=steady, day_number=dated, slot=steady)
    sample = pl.DataFrame({"user": np.arange(1_000).astype(str)})
    sample = sample.with_columns(pl.lit(1).alias(name) for name in reference_profile.columns)
    live = sample.with_columns(item_id=pl.lit(2), day_number=pl.lit(2), user="live" + pl.col("user"))
    domain = find_drift(live, with_sample(reference_profile, sample), None, preprocessing, LIMITS)[-1]
    assert (domain.kind, domain.effect) == ("domain", 0.5)
    domain = find_drift(
        live.with_columns(slot=pl.lit(2)), with_sample(reference_profile, sample), None, preprocessing, LIMITS
    )[-1]
    assert domain.drifted
    assert domain.reason == "all columns: a classifier tells live rows with AUC 1.00 > 0.75; most by 'slot'"


def test_findings_round_trip_through_json() -> None:
    constant = column(Bins(kind="numeric"), (1_000,))
    one_user = surfaces(600, 400).with_columns(user=pl.lit("u"), price=pl.lit(1.0))
    findings = find_drift(
        one_user, reference(surface=column(SURFACES, (900, 100, 0)), price=constant), None, None, LIMITS
    )
    assert [finding.drifted for finding in findings] == [False, False]
    for finding in findings:
        assert Finding.model_validate_json(finding.model_dump_json()) == finding
