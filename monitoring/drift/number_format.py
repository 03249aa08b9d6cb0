"""Numbers as the sentences of findings say them."""

from __future__ import annotations


def percent(share: float) -> str:
    """Return a share as a reader wants it: whole percents, and two digits of what is rare.

    >>> [percent(share) for share in (1.0, 0.5512, 0.0312, 0.00042, 0.0)]
    ['100 %', '55 %', '3.1 %', '0.042 %', '0 %']
    """
    points = 100 * share
    return f"{points:.0f} %" if points >= 10 else f"{points:.2g} %"


def with_limit(value: float, limit: float) -> str:
    """Return a value beside its limit, with as many digits as tell them apart.

    >>> with_limit(0.614, 0.2), with_limit(0.2, 0.2), with_limit(0.7513, 0.75)
    ('0.61 > 0.20', '0.20 <= 0.20', '0.751 > 0.750')
    """
    digits = next((many for many in (2, 3, 4) if f"{value:.{many}f}" != f"{limit:.{many}f}"), 2)
    return f"{value:.{digits}f} {'>' if value > limit else '<='} {limit:.{digits}f}"
