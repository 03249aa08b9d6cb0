"""Independent random streams of a generated world, one per kind of draw."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


def random_stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """Return a generator per name and numbers, so that additional draws of one do not change the others."""
    return np.random.default_rng([seed, crc32(name.encode()), *numbers])
