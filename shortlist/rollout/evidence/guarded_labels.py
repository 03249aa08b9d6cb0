"""Rates of a guarded label on both tracks."""

from __future__ import annotations

import polars as pl

from shortlist.rollout.evidence.outcomes import OUTCOMES, OutcomeJoin
from shortlist.rollout.evidence.sequential_difference import NO_DIFFERENCE, TrackDifference, difference
from shortlist.rollout.evidence.users import UserTable
from shortlist.spec.serving import KPI


class GuardedLabel:
    """One guarded label: its outcomes, joined with the shown items like those of the KPI, and counted by user.

    Args:
        column: Boolean column of the outcomes; null where the outcome has no value of the label.
        kpi: Declares which items count as shown.
    """

    def __init__(self, column: str, kpi: KPI) -> None:
        self._column = column
        self._join, self._users = OutcomeJoin(kpi.top, kpi.slate), UserTable()
        self._has_values = False

    def add(self, requests: pl.DataFrame, outcomes: pl.DataFrame) -> None:
        """Count new requests and outcomes.

        Args:
            requests: New requests, as for `OutcomeJoin.add`.
            outcomes: New outcomes; columns request, row and the label's, which may be missing without rows.
        """
        if self._column not in outcomes.columns:
            label_outcomes = pl.DataFrame(schema=OUTCOMES)
        else:
            self._has_values = self._has_values or outcomes[self._column].null_count() < outcomes.height
            # An outcome without a value counts as 0, as in training.
            label = pl.col(self._column).fill_null(value=False)
            label_outcomes = outcomes.select("request", "row", label.alias("label")).cast(OUTCOMES)
        self._users.add_outcomes(self._join.add(requests, label_outcomes))

    def difference(self, steps: int) -> TrackDifference:
        """Return the canary's rate minus the stable track's; `NO_DIFFERENCE` while no outcome had a value.

        Args:
            steps: Number of steps of the rollout.
        """
        return difference(self._users.values(steps)) if self._has_values else NO_DIFFERENCE
