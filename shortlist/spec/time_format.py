"""The `format` of times and dates that are written as text."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator

_DIRECTIVE: Final = re.compile(r"%(\.f|[-_0]?[A-Za-z%+]|$|.)")
_KNOWN: Final = (*"YymbBdejHIpMSzaATDFR%", ".f")
_WHOLE_DATES: Final = {"D": "%m/%d/%y", "F": "%Y-%m-%d"}


def _checked(pattern: str) -> str:
    """Refuse a pattern that does not give a date.

    >>> _checked("%d/%m/%Y %H:%M:%S.%f")
    '%d/%m/%Y %H:%M:%S%.f'
    """
    pattern = pattern.replace(".%f", "%.f")  # as Python writes the fraction of a second
    used = [found.lstrip("-_0") for found in _DIRECTIVE.findall(pattern)]
    for name in used:
        if name not in _KNOWN:
            known = ", ".join(f"%{known}" for known in _KNOWN)
            raise ValueError(f"'{pattern}': '%{name}' is not a known directive; wanted {known}")
    dated = set("".join(_WHOLE_DATES.get(name, name) for name in used))
    lacking = [
        what
        for what, names in {"a year (%Y)": "Yy", "a month (%m)": "mbBj", "a day (%d)": "dej"}.items()
        if not dated & set(names)
    ]
    if lacking:
        raise ValueError(f"'{pattern}' lacks {' and '.join(lacking)}; wanted e.g. %d/%m/%Y %H:%M:%S")
    hours, minutes = bool({*used} & set("HITR")), bool({*used} & set("MTR"))
    if hours != minutes or ("I" in used) != ("p" in used):
        raise ValueError(f"'{pattern}': hours and minutes come together (%H:%M), and so do %I and %p")
    return pattern


TimeFormat = Annotated[str, AfterValidator(_checked)]
"""A pattern of `strptime` directives with year, month and day."""
