"""The `format` of times and dates in texts."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator

_DIRECTIVE: Final = re.compile(r"%(\.f|[-_0]?[A-Za-z%+]|$|.)")
_KNOWN_DIRECTIVES: Final = (*"YymbBdejHIpMSzaATDFR%", ".f")
_WHOLE_DATES: Final = {"D": "%m/%d/%y", "F": "%Y-%m-%d"}


def _parse_time_format(pattern: str) -> str:
    """Return a pattern in Polars' directives; refuse one that does not give a date.

    >>> _parse_time_format("%d/%m/%Y %H:%M:%S.%f")
    '%d/%m/%Y %H:%M:%S%.f'
    """
    pattern = pattern.replace(".%f", "%.f")  # as Python writes the fraction of a second
    directives = [directive.lstrip("-_0") for directive in _DIRECTIVE.findall(pattern)]
    for name in directives:
        if name not in _KNOWN_DIRECTIVES:
            wanted_directives = ", ".join(f"%{directive}" for directive in _KNOWN_DIRECTIVES)
            raise ValueError(f"'{pattern}': '%{name}' is not a known directive; wanted {wanted_directives}")
    dated = set("".join(_WHOLE_DATES.get(name, name) for name in directives))
    lacking = [
        date_part
        for date_part, names in {"a year (%Y)": "Yy", "a month (%m)": "mbBj", "a day (%d)": "dej"}.items()
        if not dated & set(names)
    ]
    if lacking:
        raise ValueError(f"'{pattern}' lacks {' and '.join(lacking)}; wanted e.g. %d/%m/%Y %H:%M:%S")
    hours, minutes = bool({*directives} & set("HITR")), bool({*directives} & set("MTR"))
    if hours != minutes or ("I" in directives) != ("p" in directives):
        raise ValueError(f"'{pattern}': hours and minutes come together (%H:%M), and so do %I and %p")
    return pattern


TimeFormat = Annotated[str, AfterValidator(_parse_time_format)]
"""A pattern of `strptime` directives with year, month and day."""
