"""What users did by a further label, on both tracks."""

from __future__ import annotations

import polars as pl

from shortlist.rollout.evidence_outcomes import OUTCOMES, OutcomeJoin
from shortlist.rollout.evidence_users import Users
from shortlist.rollout.sequential_difference import NO_DIFFERENCE, Difference, difference
from shortlist.spec.serving import KPI


class GuardedLabel:
    """One further label: outcomes joined with what was shown, as the KPI's are, and counted by user.

    Args:
        column: Of outcomes; Boolean, null where the outcome has no value of the label's column.
        kpi: What is counted.
    """

    def __init__(self, column: str, kpi: KPI) -> None:
        self._column = column
        self._join, self._users = OutcomeJoin(kpi.top, kpi.slate), Users()
        self._was_sent = False

    def add(self, requests: pl.DataFrame, outcomes: pl.DataFrame) -> None:
        """Count what became known of requests.

        Args:
            requests: As of `OutcomeJoin.add`.
            outcomes: New ones; columns request, row, and the label's. Without rows it may lack the last.
        """
        if self._column not in outcomes.columns:
            known = pl.DataFrame(schema=OUTCOMES)
        else:
            self._was_sent = self._was_sent or outcomes[self._column].null_count() < outcomes.height
            # An outcome without a value is a 0, as in training.
            label = pl.col(self._column).fill_null(value=False)
            known = outcomes.select("request", "row", label.alias("label")).cast(OUTCOMES)
        self._users.show(self._join.add(requests, known))

    def difference(self, steps: int) -> Difference:
        """Return the canary's rate minus the stable track's; nothing while no outcome had a value of the column.

        Args:
            steps: Of the rollout.
        """
        return difference(self._users.values(steps)) if self._was_sent else NO_DIFFERENCE
