"""Random numbers of a generated world: a stream of its own for everything that is drawn."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


def random_stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """Return a generator of its own for each name and numbers, so that one draw more here moves nothing there."""
    return np.random.default_rng([seed, crc32(name.encode()), *numbers])
