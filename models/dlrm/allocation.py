"""How the C library hands memory back: not between two steps of a training that needs it again at once."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 2**26
"""Freed blocks up to this size stay with the process; larger ones, such as a loader's pools, go back."""


def keep_freed_memory() -> bool:
    """Let glibc keep what a step frees for the next one; return whether there is a glibc to tell.

    By default it gives blocks over 32 MiB back to the system, which clears every page again: at an embedding width of
    128 and 2 048 rows that was a fifth of a step's processor time (28 500 page faults a step, then none).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and all(
        mallopt(what, bytes_) == 1 for what, bytes_ in ((_M_MMAP_THRESHOLD, _KEPT_BYTES), (_M_TRIM_THRESHOLD, 2**29))
    )
