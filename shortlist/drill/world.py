"""The world of a drill: its days and the drifts that it plants."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from shortlist.contracts import ShortlistError
from shortlist.data.world.answering_world import SENT_COLUMNS
from shortlist.spec.data import Drift, GeneratedSource
from shortlist.spec.spec import Spec


class DrillWorld:
    """The days of a spec's generated world, counted from 0.

    Raises:
        ShortlistError: The spec reads files, plants no drift, breaks a column that requests do not send, or declares
            no retrieval.
    """

    def __init__(self, spec: Spec) -> None:
        source = spec.data.source
        if not isinstance(source, GeneratedSource) or not source.drifts:
            raise ShortlistError(
                f"spec '{spec.name}': wanted data.source of kind generated with drifts, which a drill injects"
            )
        self.source = source
        self.drifts: tuple[Drift, ...] = tuple(sorted(source.drifts, key=lambda drift: drift.from_day))
        """The drifts in the order in which they begin."""
        for drift in self.drifts:
            if drift.kind == "broken_column" and drift.column not in SENT_COLUMNS:
                raise ShortlistError(
                    f"spec '{spec.name}': data.source.drifts: a drill breaks columns that its users send; got"
                    f" '{drift.column}', wanted {' or '.join(SENT_COLUMNS)}"
                )

        if spec.retrieval is None:
            raise ShortlistError(
                f"spec '{spec.name}': declares no retrieval; the users of a drill see what a release recommends"
            )

    def date_of(self, number: int) -> date:
        """Return the date of a day."""
        return self.source.start + timedelta(days=number)

    def start_of(self, number: int) -> datetime:
        """Return the moment at which a day begins."""
        return datetime.combine(self.date_of(number), datetime.min.time(), UTC)

    def drift_on(self, number: int) -> Drift | None:
        """Return the drift that is active on a day, the newest of several."""
        return next((drift for drift in reversed(self.drifts) if drift.holds_on(number)), None)
