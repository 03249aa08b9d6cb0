"""Memory that a Triton on the same machine shares: it reads the tensors of a request where the server wrote them."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps such memory
_SMALLEST: Final = 1024 * 1024


class SharedMemoryRegion:
    """A piece of shared memory, named so that nobody else's is meant."""

    def __init__(self, size: int) -> None:
        """Make it; its file is there until `unlink`.

        Args:
            size: Bytes that must fit.

        Raises:
            OSError: There is no such memory here, or not enough of it.
        """
        self.size = max(_SMALLEST, 1 << (size - 1).bit_length())
        self.name = f"shortlist-tensors-{os.getpid()}-{secrets.token_hex(8)}"
        self._path = _FOLDER / self.name
        with self._path.open("x+b") as file:
            try:
                self._path.chmod(0o600)
                os.posix_fallocate(file.fileno(), 0, self.size)  # or a write beyond what there is kills the process
                self._memory = mmap.mmap(file.fileno(), self.size)
            except BaseException:
                self.unlink()
                raise

    def unlink(self) -> None:
        """Remove the file: the memory stays with who has it open, and is nobody's when they have ended."""
        self._path.unlink(missing_ok=True)

    def write(self, tensors: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
        """Write tensors one after another and return, by name, the parameters that tell Triton where each is."""
        told, place = {}, 0
        for name, values in tensors.items():
            np.frombuffer(self._memory, values.dtype, values.size, place).reshape(values.shape)[...] = values
            told[name] = {
                "shared_memory_region": self.name,
                "shared_memory_offset": place,
                "shared_memory_byte_size": values.nbytes,
            }
            place += values.nbytes
        return told
