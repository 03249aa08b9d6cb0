"""Loops over numbers compiled to machine code.

The first process that calls a function compiles it, within seconds; those after it load what the first one kept: beside
the source or, where that cannot be written, in the user's cache. Importing the compiler takes a quarter of a second, so
only modules named `*_kernels` import this one, and they are imported where they are needed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

_KEPT: Final = "NUMBA_CACHE_DIR"


def _keep_somewhere() -> None:
    """Name a folder of this process where neither the sources' nor the home folder can be written, as in a pod.

    It is its own: what is loaded from such a folder runs, so nobody else may have put it there.
    """
    here, home = Path(__file__).parent, Path.home()
    if _KEPT not in os.environ and not any(os.access(folder, os.W_OK) for folder in (here, home)):
        os.environ[_KEPT] = tempfile.mkdtemp(prefix="shortlist-compiled-")
        atexit.register(shutil.rmtree, os.environ[_KEPT], ignore_errors=True)


_keep_somewhere()

import numba  # noqa: E402  (reads the variable when it is imported)

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """Compile a function over numbers and numpy arrays; other threads run meanwhile, and indices are not checked."""
    return cast(Loop, numba.njit(cache=True, nogil=True, error_model="numpy")(loop))
