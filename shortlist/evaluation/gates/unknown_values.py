"""The gate on values that training did not see: holds a candidate whose scores they move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pydantic import Field

from shortlist.evaluation.gates.export_gates import find_unusable_reason
from shortlist.evaluation.gates.export_validation import ExportValidation, UnknownValueEffect
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.spec.base import Section

_KNOWN_SHARE: Final = 0.01
"""Share of rows with a value from which on its effect is learnt from them."""


_SHARE_OF_SPREAD: Final = 0.5
"""Share of the spread that a shift may have: without a column that says much, no mean score is exact."""


class UnknownValueLimits(Section):
    """Limits for values that training did not see; `gates.custom.unknown_values`."""

    max_shift: float = Field(default=0.15, gt=0, le=10)
    """Largest shift, in log-odds, of the mean score of the test rows when one column is missing in all of them, or
    holds an unseen value; where the column moves single rows by much, half of the standard deviation of these moves.
    Users and items are not judged, nor values that at least 1 % of the rows have."""

    def limit(self, effect: UnknownValueEffect) -> float:
        """Return the largest shift of a column's value."""
        return max(self.max_shift, _SHARE_OF_SPREAD * effect.spread)


def unknown_values_gate(validation: ExportValidation | None, candidate: str, limits: UnknownValueLimits) -> GateResult:
    """Hold when a missing or unseen value of one column moves the scores although nothing was known of it.

    Args:
        validation: Record of the export validation; None when there is no readable one.
        candidate: Digest of the model folder that is judged.
        limits: Largest shift.
    """
    unusable_reason = find_unusable_reason(validation, candidate)
    if unusable_reason or validation is None or validation.unknown_values is None:
        reason = unusable_reason or "no effects of unknown values were measured"
        return GateResult.from_failures("unknown_values", [reason], "")
    effects = validation.unknown_values
    judged = [effect for effect in effects if not effect.is_key and effect.share < _KNOWN_SHARE]
    too_large = [effect for effect in judged if abs(effect.shift) > limits.limit(effect)]
    failures = [
        f"{effect.value} '{effect.column}' moves the mean score by {effect.shift:+.2f} log-odds, more than"
        f" {limits.max_shift:g} (max_shift) and than half of the {effect.spread:.2f} by which it moves single rows,"
        f" though {'none' if not effect.share else f'{effect.share:.2%}'} of the test rows have it"
        for effect in too_large
    ]
    if too_large:
        failures[-1] += _remedy(too_large)
    largest = max(judged, key=lambda effect: abs(effect.shift), default=None)
    most = (
        "no column of a request"
        if largest is None
        else (f"{largest.value} '{largest.column}' moves the mean score most, by {largest.shift:+.2f} log-odds")
    )
    numbers = {f"{effect.column} {effect.value}": effect.shift for effect in effects}
    return GateResult.from_failures("unknown_values", failures, most, **numbers, max_shift=limits.max_shift)


def _remedy(effects: Sequence[UnknownValueEffect]) -> str:
    """Return the next step, as the end of a message."""
    columns = " and ".join(dict.fromkeys(f"'{effect.column}'" for effect in effects))
    least_limit = math.ceil(100 * max(abs(effect.shift) for effect in effects)) / 100
    return (
        f". Next: where a request cannot know {columns} yet, declare known: after; else leave features of {columns} out"
        " of models.<name>.features, or, where these are rates of several keys, declare their prior_key; if every"
        " request will hold a value that training knows, declare"
        f" gates.custom.unknown_values.max_shift: {least_limit:g}"
    )
