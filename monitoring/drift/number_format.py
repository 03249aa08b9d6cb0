"""Formats of numbers in the reasons of findings."""

from __future__ import annotations


def format_percent(share: float) -> str:
    """Return a share in percent: whole percents from 10 % on, two significant digits below.

    >>> [format_percent(share) for share in (1.0, 0.5512, 0.0312, 0.00042, 0.0)]
    ['100 %', '55 %', '3.1 %', '0.042 %', '0 %']
    """
    points = 100 * share
    return f"{points:.0f} %" if points >= 10 else f"{points:.2g} %"


def format_with_limit(value: float, limit: float) -> str:
    """Return a value beside its limit, with enough digits to show which is larger.

    >>> format_with_limit(0.614, 0.2), format_with_limit(0.2, 0.2), format_with_limit(0.7513, 0.75)
    ('0.61 > 0.20', '0.20 <= 0.20', '0.751 > 0.750')
    """
    digits = next(
        (digit_count for digit_count in (2, 3, 4) if f"{value:.{digit_count}f}" != f"{limit:.{digit_count}f}"), 2
    )
    return f"{value:.{digits}f} {'>' if value > limit else '<='} {limit:.{digits}f}"
