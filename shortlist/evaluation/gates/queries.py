"""The gate of declared queries: one number of the scored test rows each, and its limits."""

from __future__ import annotations

import polars as pl

from shortlist.contracts import Columns
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.metrics.measure import ScoredModel
from shortlist.evaluation.metrics.scores import ScoredRows
from shortlist.evaluation.metrics.slices import rename_columns
from shortlist.spec.gates import SCORE_COLUMNS, TEST_ROWS, Gates
from shortlist.system.table_queries import QueryError, query_number


def queries_gate(
    candidate: ScoredModel, baseline: ScoredModel, champion: ScoredModel | None, limits: Gates
) -> GateResult:
    """Hold when the number of a query is beyond its limits, or when it gives no number.

    The number is compared as it is: nothing is allowed for chance.

    Args:
        candidate: Its scored test rows.
        baseline: Those of the baseline to beat.
        champion: Those of the champion; None when there is none.
        limits: The declared queries.
    """
    if candidate.read_rows is None:
        return GateResult.from_failures("queries", [candidate.measures.problem or "no scores"], "")
    compared_rows = (model.read_rows() if model and model.read_rows else None for model in (baseline, champion))
    rows = _join_scores(candidate.read_rows(), *compared_rows)
    failures, passes, values = [], [], dict[str, float]()
    for name, query in limits.queries.items():
        try:
            value = values[name] = query_number(query.sql, TEST_ROWS, rows)
        except QueryError as error:
            failures.append(f"{name}: unknown, {error}")
            continue
        if query.min is not None and value < query.min:
            failures.append(f"{name}: {value:.6g} < {query.min:g} (min)")
        elif query.max is not None and value > query.max:
            failures.append(f"{name}: {value:.6g} > {query.max:g} (max)")
        else:
            bounds = (f">= {query.min:g}" if query.min is not None else "",
                      f"<= {query.max:g}" if query.max is not None else "")  # fmt: skip
            passes.append(f"{name}: {value:.6g} {' and '.join(filter(None, bounds))}")
    return GateResult.from_failures("queries", failures, "; ".join(passes), **values)


def _join_scores(candidate: ScoredRows, baseline: ScoredRows | None, champion: ScoredRows | None) -> pl.DataFrame:
    """Return the candidate's test rows with the scores of all three models, null where a row was not scored."""
    score, *other_scores = SCORE_COLUMNS
    rows = rename_columns(candidate.frame).with_columns(pl.Series(score, candidate.scores))
    for name, scored in zip(other_scores, (baseline, champion), strict=True):
        if scored is None:
            rows = rows.with_columns(pl.lit(None, pl.Float64).alias(name))
            continue
        impressions = scored.frame[Columns.IMPRESSION].cast(rows.schema[Columns.IMPRESSION])
        scores = pl.DataFrame({Columns.IMPRESSION: impressions, name: scored.scores})
        rows = rows.join(scores, on=Columns.IMPRESSION, how="left", maintain_order="left")
    return rows
