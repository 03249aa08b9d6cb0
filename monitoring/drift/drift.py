"""Drift of a window against the reference: every comparison, and which of them found one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import polars as pl
from scipy.special import stdtr
from scipy.stats import false_discovery_control

from monitoring.drift.domain_classifier import domain_finding
from monitoring.drift.drift_statistics import Distance, distance
from monitoring.drift.number_format import percent, with_limit
from monitoring.reference.distributions import Bins, known_values
from monitoring.reference.reference import ColumnReference, Reference
from monitoring.windows.records import Finding
from monitoring.windows.sampling import ClusteredCounts, Ints, clusters_of
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.vocabulary import ValueIds
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
        rows: Shown rows of the window, at least the columns of the reference; rows of one user may be alike.
        reference: The distributions of the training data.
        scores: The distribution of the model's scores on its test days; None when they are not to be compared.
        preprocessing: Its vocabularies tell which values are unknown; None compares no unknown values.
        limits: From where on it counts.
        seed: Of the domain classifier.

    Returns:
        One finding or two per column. What has no values on one of the sides is not compared and not there: whether
        nulls are as they should be is a check of its own.
    """
    clusters = clusters_of(rows)
    columns = {name: column for name, column in reference.columns.items() if name not in limits.ignore}
    distances = dict(_distances(rows, columns, clusters, limits))
    found = [_finding(name, columns[name].bins, one, limits) for name, one in distances.items()]
    found += _unknown(rows, reference, preprocessing, clusters, limits)
    found += _score(rows, scores, clusters, limits)
    steady = _steady(reference, distances, preprocessing, limits)
    domain = domain_finding(rows, reference.sample, steady, limits.max_domain_auc, seed)
    return _judged([*found, *([domain] if domain is not None else [])], limits.alpha)


def _distances(
    rows: pl.DataFrame, columns: Mapping[str, ColumnReference], clusters: Ints, limits: DriftLimits
) -> Iterator[tuple[str, Distance]]:
    present = {name: column for name, column in columns.items() if name in rows.columns}
    for name, column in present.items():
        places, bins = column.bins.codes(rows[name])
        counts = ClusteredCounts.of(clusters[places], bins, column.bins.size)
        named = column.bins.size - (column.bins.kind != "numeric")
        found = distance(counts, column.counts, named, limits.alpha)
        if found is not None:
            yield name, found


def _finding(name: str, bins: Bins, found: Distance, limits: DriftLimits) -> Finding:
    critical = max(limits.max_index, limits.natural * found.natural, found.chance)
    why = ""
    if critical == found.chance:
        why = f" (chance, with {found.independent:.0f} independent rows)"
    elif critical > limits.max_index:
        why = " (so much do its own days differ)"
    return Finding(
        column=name,
        kind=bins.kind,
        effect=found.index,
        critical=critical,
        p_value=found.p_value,
        drifted=False,
        reason=f"{name}: index {with_limit(found.index, critical)}{why};"
        f" {bins.labels[found.changed]} {percent(found.reference)} -> {percent(found.live)}",
    )


def _unknown(
    rows: pl.DataFrame,
    reference: Reference,
    preprocessing: Preprocessing | None,
    clusters: Ints,
    limits: DriftLimits,
) -> Iterator[Finding]:
    vocabularies = preprocessing.vocabularies if preprocessing is not None else {}
    for name, vocabulary in vocabularies.items():
        if name in reference.unknown and name in rows.columns and name not in limits.ignore:
            share, increase = reference.unknown[name], limits.max_unknown_increase
            finding = unknown_finding(rows[name], clusters, vocabulary, share, increase)
            if finding is not None:
                yield finding


def _score(
    rows: pl.DataFrame, scores: ColumnReference | None, clusters: Ints, limits: DriftLimits
) -> Iterator[Finding]:
    if scores is not None:
        for _, one in _distances(rows, {SCORE: scores}, clusters, limits):
            yield _finding(SCORE, scores.bins, one, limits).model_copy(update={"kind": "score"})


def _steady(
    reference: Reference,
    distances: Mapping[str, Distance],
    preprocessing: Preprocessing | None,
    limits: DriftLimits,
) -> dict[str, Bins]:
    """Return the columns that a classifier may tell by.

    Users and items are others every day, and so is whatever differs between the reference's own days; such columns
    would tell any day from any other.
    """
    data = preprocessing.plan.declared.data if preprocessing is not None else None
    keys = {data.user, data.item} if data is not None else set()
    return {
        name: reference.columns[name].bins
        for name, found in distances.items()
        if name not in keys and limits.natural * found.natural <= limits.max_index
    }


def _judged(findings: list[Finding], alpha: float) -> tuple[Finding, ...]:
    """Return the findings with their verdicts: Benjamini and Hochberg (1995) over all of them, and the effects."""
    if not findings:
        return ()
    adjusted = false_discovery_control([finding.p_value for finding in findings])
    judged = []
    for finding, p_value in zip(findings, adjusted, strict=True):
        large = finding.effect > finding.critical
        update: dict[str, object] = {"drifted": bool(large and p_value <= alpha)}
        if large and p_value > alpha:
            update["reason"] = f"{finding.reason}; but it may be chance (p {finding.p_value:.2g})"
        judged.append(finding.model_copy(update=update))
    return tuple(judged)


def unknown_finding(
    values: pl.Series, clusters: Ints, vocabulary: ValueIds, reference: float, max_increase: float
) -> Finding | None:
    """Return how much the share of values with id 0 grew; None when the window has no values.

    Args:
        values: The column; of tags, every value counts.
        clusters: Cluster of every row.
        vocabulary: The ids.
        reference: Share of values with id 0 in the reference.
        max_increase: The effect from which on it counts.
    """
    rows, known = known_values(values, "tags")
    if known.is_empty():
        return None
    unknown = vocabulary.ids(known).to_numpy() == 0
    share = float(unknown.mean())
    increase = share - reference
    return Finding(
        column=values.name,
        kind="unknown",
        effect=increase,
        critical=max_increase,
        p_value=_chance(unknown, clusters[rows], reference),
        drifted=False,
        reason=f"{values.name}: {percent(share)} of the values have no id of their own, {percent(reference)} in the"
        f" reference; an increase of {with_limit(100 * increase, 100 * max_increase)} points",
    )


def _chance(unknown: np.ndarray, clusters: Ints, reference: float) -> float:
    """Return the chance of as large a share in users drawn anew, by their own spread (one-sided t test)."""
    place = np.unique(clusters, return_inverse=True)[1]
    rows, share = unknown.size, float(unknown.mean())
    residuals = np.bincount(place, unknown - share)
    users = residuals.size
    if users < 2:
        return 1.0
    between = users / (users - 1) * float(residuals @ residuals) / rows**2
    # Not less than independent rows of either share would have: all known, or all unknown, is no certainty.
    apart = max(share * (1 - share), reference * (1 - reference), 1 / rows) / rows
    return float(stdtr(users - 1, (reference - share) / max(between, apart) ** 0.5))
