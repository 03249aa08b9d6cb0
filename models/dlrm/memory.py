"""How much memory a training may take here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from models.dlrm.placement import Memory

_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")


def free_memory() -> Memory:
    """Return the memory of the current CUDA device, and the host's."""
    free, total = torch.cuda.mem_get_info()
    return Memory(total, free, host_free())


def host_free(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the bytes of host memory that are available, to the machine and to this container.

    Args:
        meminfo: The kernel's account of the machine.
        cgroup: The container's limits (version 2); a machine without any has none of its files.
    """
    free = 1024 * _number_behind("MemAvailable:", meminfo)
    limit = cgroup / "memory.max"
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        # As the kubelet counts: file pages that nobody used lately can be had any time.
        used = int((cgroup / "memory.current").read_text()) - _number_behind("inactive_file", cgroup / "memory.stat")
        free = min(free, int(most) - used)
    return free


def _number_behind(name: str, file: Path) -> int:
    lines = (line.split() for line in file.read_text().splitlines())
    return int(next(words[1] for words in lines if words[0] == name))
