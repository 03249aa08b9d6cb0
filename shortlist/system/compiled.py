"""Loops over numbers, compiled to machine code by Numba.

The first process that calls a function compiles it, within seconds; later ones load it from the cache: beside the
source or, where that cannot be written, in the user's cache folder. Importing the compiler takes a quarter of a second,
so only modules named `*_kernels` import this one, and they are imported inside functions.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

_CACHE_VARIABLE: Final = "NUMBA_CACHE_DIR"


def _ensure_cache_folder() -> None:
    """Set a temporary cache folder where neither the source folder nor the home folder is writable, as in a pod.

    The folder is private to the process, because code loaded from the cache is executed.
    """
    source_folder, home_folder = Path(__file__).parent, Path.home()
    if _CACHE_VARIABLE not in os.environ and not any(
        os.access(folder, os.W_OK) for folder in (source_folder, home_folder)
    ):
        os.environ[_CACHE_VARIABLE] = tempfile.mkdtemp(prefix="shortlist-compiled-")
        atexit.register(shutil.rmtree, os.environ[_CACHE_VARIABLE], ignore_errors=True)


_ensure_cache_folder()

import numba  # noqa: E402  (reads the variable when it is imported)

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """Compile a function over numbers and numpy arrays; it releases the global lock and does not check indices."""
    return cast(Loop, numba.njit(cache=True, nogil=True, error_model="numpy")(loop))
