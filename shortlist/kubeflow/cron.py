"""Says a spec's cron expression as Kubeflow reads it."""

from __future__ import annotations

from croniter import croniter

from shortlist.contracts import ShortlistError


def six_fields(expression: str) -> str:
    """Return five fields of cron (minute hour day month weekday) as Kubeflow's six, which begin with the second.

    Values are written out, because the two dialects disagree about names, steps and Sunday (7 is none of Kubeflow's).
    Times are UTC here and, unless its controller is told otherwise, there.

    Raises:
        ShortlistError: Kubeflow's dialect has no word for it (last day of a month, nth weekday).

    >>> six_fields("30 2 * * 1-5")
    '0 30 2 * * 1,2,3,4,5'
    >>> six_fields("*/15 * * * 7")
    '0 0,15,30,45 * * * 0'
    """
    fields, nth = croniter.expand(expression)[:2]
    if nth or any(not isinstance(value, int) and value != "*" for field in fields for value in field):
        raise ShortlistError(
            f"schedule: '{expression}' names a last day or an nth weekday, which Kubeflow's cron cannot say; name days"
        )
    weekdays = sorted({value % 7 if isinstance(value, int) else value for value in fields[4]}, key=str)
    written = [*fields[:4], weekdays]
    return " ".join(["0", *(",".join(map(str, field)) for field in written)])
