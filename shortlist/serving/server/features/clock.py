"""Day, time of day and weekday of timestamps, in the log's timezone."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from shortlist.contracts import Columns
from shortlist.serving.export.signature import SECOND_OF_DAY, WEEKDAY
from shortlist.serving.server.features.columns import Codes, Numbers

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


def clock_columns(moments: Codes, zone: ZoneInfo) -> dict[str, Numbers]:
    """Return the clock columns: time (microseconds), day (days since 1970), second of the day, weekday.

    Args:
        moments: Microseconds since 1970-01-01 UTC.
        zone: The log's timezone.
    """
    if len(moments) == 1:
        clock_fields = np.array([_clock_fields(int(moments[0]), zone)])
    else:
        distinct_moments, moment_numbers = np.unique(moments, return_inverse=True)
        clock_fields = np.array([_clock_fields(moment, zone) for moment in distinct_moments.tolist()]).reshape(-1, 3)[
            moment_numbers
        ]
    return {
        Columns.TIME: moments.astype(np.float64),
        Columns.DAY: clock_fields[:, 0],
        SECOND_OF_DAY: clock_fields[:, 1],
        WEEKDAY: clock_fields[:, 2],
    }


def _clock_fields(moment: int, zone: ZoneInfo) -> tuple[float, float, float]:
    local = (_EPOCH + timedelta(microseconds=moment)).astimezone(zone)
    # Same order of additions as in the training table: hours, minutes and seconds first, the fraction last.
    second = local.hour * 3600.0 + local.minute * 60.0 + local.second + local.microsecond / 1e6
    return float(local.toordinal() - _EPOCH_DAY), second, float(local.weekday())
