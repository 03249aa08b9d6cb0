"""What the wall clock of the log's timezone says at a moment."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from shortlist.contracts import Columns
from shortlist.serving.export.signature import SECOND_OF_DAY, WEEKDAY
from shortlist.serving.server.columns import Codes, Numbers

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = date(1970, 1, 1).toordinal()


def clock_columns(moments: Codes, zone: ZoneInfo) -> dict[str, Numbers]:
    """Return the clock's places: time (microseconds), day (days since 1970), second of the day, weekday.

    Args:
        moments: Microseconds since 1970-01-01 UTC.
        zone: The log's timezone.
    """
    if len(moments) == 1:
        read = np.array([_read(int(moments[0]), zone)])
    else:
        different, places = np.unique(moments, return_inverse=True)
        read = np.array([_read(moment, zone) for moment in different.tolist()]).reshape(-1, 3)[places]
    return {
        Columns.TIME: moments.astype(np.float64),
        Columns.DAY: read[:, 0],
        SECOND_OF_DAY: read[:, 1],
        WEEKDAY: read[:, 2],
    }


def _read(moment: int, zone: ZoneInfo) -> tuple[float, float, float]:
    local = (_EPOCH + timedelta(microseconds=moment)).astimezone(zone)
    # As the training table has it: hours, minutes and seconds first, the fraction last.
    second = local.hour * 3600.0 + local.minute * 60.0 + local.second + local.microsecond / 1e6
    return float(local.toordinal() - _FIRST), second, float(local.weekday())
