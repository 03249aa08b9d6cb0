"""Drift of a window against the reference: every comparison, and whether it is significant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import polars as pl
from scipy.special import stdtr
from scipy.stats import false_discovery_control

from monitoring.drift.domain_classifier import domain_finding
from monitoring.drift.drift_statistics import Distance, measure_distance
from monitoring.drift.number_format import format_percent, format_with_limit
from monitoring.reference.distributions import Bins, present_values
from monitoring.reference.reference import ColumnReference, Reference
from monitoring.windows.records import Finding
from monitoring.windows.sampling import ClusteredCounts, Ints, assign_clusters
from shortlist.features.counts.vocabulary import ValueIds
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.spec.monitoring import DriftLimits

SCORE: Final = "score"


def find_drift(
    rows: pl.DataFrame,
    reference: Reference,
    scores: ColumnReference | None,
    preprocessing: Preprocessing | None,
    limits: DriftLimits,
    seed: int = 0,
) -> tuple[Finding, ...]:
    """Return every comparison of a window's rows with the reference, by column, then score and all columns together.

    Args:
        rows: Shown rows of the window, at least the columns of the reference; rows of one user may be dependent.
        reference: The distributions of the training data.
        scores: The distribution of the model's scores on its test days; None when they are not to be compared.
        preprocessing: Its vocabularies define which values are unknown; None compares no unknown values.
        limits: The limits of each comparison.
        seed: Seed of the domain classifier.

    Returns:
        One or two findings per column. A column without values on one of the sides is not compared: the share of nulls
        has a check of its own.
    """
    clusters = assign_clusters(rows)
    columns = {name: column for name, column in reference.columns.items() if name not in limits.ignore}
    distances = dict(_distances(rows, columns, clusters, limits))
    findings = [_finding(name, columns[name].bins, distance, limits) for name, distance in distances.items()]
    findings += _unknown_findings(rows, reference, preprocessing, clusters, limits)
    findings += _score_findings(rows, scores, clusters, limits)
    steady_columns = _steady_columns(reference, distances, preprocessing, limits)
    domain_finding_or_none = domain_finding(rows, reference.sample, steady_columns, limits.max_domain_auc, seed)
    return _mark_drifted(
        [*findings, *([domain_finding_or_none] if domain_finding_or_none is not None else [])], limits.alpha
    )


def _distances(
    rows: pl.DataFrame, columns: Mapping[str, ColumnReference], clusters: Ints, limits: DriftLimits
) -> Iterator[tuple[str, Distance]]:
    present = {name: column for name, column in columns.items() if name in rows.columns}
    for name, column in present.items():
        value_rows, bin_numbers = column.bins.codes(rows[name])
        counts = ClusteredCounts.of(clusters[value_rows], bin_numbers, column.bins.size)
        named_bins = column.bins.size - (column.bins.kind != "numeric")
        distance = measure_distance(counts, column.counts, named_bins, limits.alpha)
        if distance is not None:
            yield name, distance


def _finding(name: str, bins: Bins, distance: Distance, limits: DriftLimits) -> Finding:
    critical = max(limits.max_index, limits.natural * distance.natural_index, distance.chance_index)
    critical_source = ""
    if critical == distance.chance_index:
        critical_source = f" (chance, with {distance.independent_rows:.0f} independent rows)"
    elif critical > limits.max_index:
        critical_source = " (the reference's own days differ by so much)"
    return Finding(
        column=name,
        kind=bins.kind,
        effect=distance.index,
        critical=critical,
        p_value=distance.p_value,
        drifted=False,
        reason=f"{name}: population stability index {format_with_limit(distance.index, critical)}{critical_source};"
        f" {bins.labels[distance.changed_bin]} {format_percent(distance.reference_share)} ->"
        f" {format_percent(distance.live_share)}",
    )


def _unknown_findings(
    rows: pl.DataFrame,
    reference: Reference,
    preprocessing: Preprocessing | None,
    clusters: Ints,
    limits: DriftLimits,
) -> Iterator[Finding]:
    vocabularies = preprocessing.vocabularies if preprocessing is not None else {}
    for name, vocabulary in vocabularies.items():
        if name in reference.unknown_shares and name in rows.columns and name not in limits.ignore:
            share, increase = reference.unknown_shares[name], limits.max_unknown_increase
            finding = unknown_finding(rows[name], clusters, vocabulary, share, increase)
            if finding is not None:
                yield finding


def _score_findings(
    rows: pl.DataFrame, scores: ColumnReference | None, clusters: Ints, limits: DriftLimits
) -> Iterator[Finding]:
    if scores is not None:
        for _, distance in _distances(rows, {SCORE: scores}, clusters, limits):
            yield _finding(SCORE, scores.bins, distance, limits).model_copy(update={"kind": "score"})


def _steady_columns(
    reference: Reference,
    distances: Mapping[str, Distance],
    preprocessing: Preprocessing | None,
    limits: DriftLimits,
) -> dict[str, Bins]:
    """Return the columns that the domain classifier may use.

    Left out are keys of users and items, and columns that differ between the reference's own days: they would separate
    any two days.
    """
    data = preprocessing.plan.declared.data if preprocessing is not None else None
    keys = {data.user, data.item} if data is not None else set()
    return {
        name: reference.columns[name].bins
        for name, distance in distances.items()
        if name not in keys and limits.natural * distance.natural_index <= limits.max_index
    }


def _mark_drifted(findings: list[Finding], alpha: float) -> tuple[Finding, ...]:
    """Return the findings with `drifted` set: a large effect, significant by Benjamini and Hochberg (1995)."""
    if not findings:
        return ()
    adjusted_p_values = false_discovery_control([finding.p_value for finding in findings])
    marked_findings = []
    for finding, p_value in zip(findings, adjusted_p_values, strict=True):
        is_large = finding.effect > finding.critical
        update: dict[str, object] = {"drifted": bool(is_large and p_value <= alpha)}
        if is_large and p_value > alpha:
            update["reason"] = f"{finding.reason}; but it may be chance (p {finding.p_value:.2g})"
        marked_findings.append(finding.model_copy(update=update))
    return tuple(marked_findings)


def unknown_finding(
    values: pl.Series, clusters: Ints, vocabulary: ValueIds, reference: float, max_increase: float
) -> Finding | None:
    """Return the increase of the share of values with id 0; None when the window has no values.

    Args:
        values: The column; of tags, every value counts.
        clusters: Cluster of every row.
        vocabulary: The vocabulary that gives the ids.
        reference: Share of values with id 0 in the reference.
        max_increase: Largest increase that is no drift.
    """
    rows, present = present_values(values, "tags")
    if present.is_empty():
        return None
    is_unknown = vocabulary.ids(present).to_numpy() == 0
    share = float(is_unknown.mean())
    increase = share - reference
    return Finding(
        column=values.name,
        kind="unknown",
        effect=increase,
        critical=max_increase,
        p_value=_share_p_value(is_unknown, clusters[rows], reference),
        drifted=False,
        reason=f"{values.name}: {format_percent(share)} of the values have no id of their own,"
        f" {format_percent(reference)} in the reference; an increase of"
        f" {format_with_limit(100 * increase, 100 * max_increase)} points",
    )


def _share_p_value(is_unknown: np.ndarray, clusters: Ints, reference: float) -> float:
    """Return the p-value of a share as large, with users as the independent units (one-sided t test)."""
    cluster_index = np.unique(clusters, return_inverse=True)[1]
    rows, share = is_unknown.size, float(is_unknown.mean())
    residuals = np.bincount(cluster_index, is_unknown - share)
    users = residuals.size
    if users < 2:
        return 1.0
    variance = users / (users - 1) * float(residuals @ residuals) / rows**2
    # At least the variance of independent rows at either share: a share of 0 or 1 has no variance of its own.
    min_variance = max(share * (1 - share), reference * (1 - reference), 1 / rows) / rows
    return float(stdtr(users - 1, (reference - share) / max(variance, min_variance) ** 0.5))
