"""Kubernetes quantities, written as the API server writes them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
PATTERN: Final = r"^\d{1,18}(\.\d{1,9})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"


def quantity_value(text: str) -> Fraction:
    """Return the numeric value of a quantity.

    Raises:
        ValueError: It is not a Kubernetes quantity.

    >>> quantity_value("500m"), quantity_value("1.5Gi") == quantity_value("1536Mi")
    (Fraction(1, 2), True)
    """
    match = re.fullmatch(PATTERN, text)
    if match is None:
        raise ValueError(f"got '{text}', wanted a Kubernetes quantity such as 500m, 2 or 16Gi")
    suffix = match[2] or ""
    number = Fraction(text.removesuffix(suffix))
    return number * (1024 ** _BINARY[suffix] if suffix in _BINARY else Fraction(10) ** _DECIMAL[suffix])


def canonical_quantity(text: str) -> str:
    """Return a quantity in the API server's notation, so that declared and live objects compare equal.

    Raises:
        ValueError: It is not a Kubernetes quantity.

    >>> [canonical_quantity(text) for text in ("0.5", "1000m", "1024Mi", "1.5Gi", "2500m", "0.1Gi", "0")]
    ['500m', '1', '1Gi', '1536Mi', '2500m', '107374182400m', '0']
    """
    value = quantity_value(text)
    binary = text.endswith("i") and value >= 1024 and value.denominator == 1
    if binary:
        return next(
            f"{value / 1024**power}{name}" for name, power in _largest_first(_BINARY) if _fits(value, 1024, power)
        )
    # The API server keeps nothing finer than 10^-9, and rounds up.
    value = Fraction(-(-value * 10**9 // 1), 10**9)
    return next(
        f"{value / Fraction(10) ** power}{name}" for name, power in _largest_first(_DECIMAL) if _fits(value, 10, power)
    )


def same_quantity(first: object, second: object) -> bool:
    """Whether two texts or numbers are the same quantity.

    >>> same_quantity("1024Mi", "1Gi"), same_quantity(1, "1000m"), same_quantity("1Gi", "1G")
    (True, True, False)
    """
    try:
        return quantity_value(str(first)) == quantity_value(str(second))
    except ValueError:
        return False


def _largest_first(suffixes: dict[str, int]) -> list[tuple[str, int]]:
    return sorted([*suffixes.items(), *([] if "" in suffixes else [("", 0)])], key=lambda pair: -pair[1])


def _fits(value: Fraction, base: int, power: int) -> bool:
    if value == 0:
        return power == 0
    return (value / Fraction(base) ** power).denominator == 1
