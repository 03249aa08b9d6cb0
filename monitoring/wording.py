"""Numbers as the sentences of findings say them."""

from __future__ import annotations


def percent(share: float) -> str:
    """Return a share as a reader wants it: whole percents, and two digits of what is rare.

    >>> [percent(share) for share in (1.0, 0.5512, 0.0312, 0.00042, 0.0)]
    ['100 %', '55 %', '3.1 %', '0.042 %', '0 %']
    """
    points = 100 * share
    return f"{points:.0f} %" if points >= 10 else f"{points:.2g} %"
