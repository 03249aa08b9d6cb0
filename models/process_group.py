"""The processes that train one model together: who they are, and what they tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

_PATIENCE = timedelta(minutes=30)  # decoding a share of a large table before the first step may take a while


class ProcessGroup(NamedTuple):
    """One process among those that train a model.

    Attributes:
        rank: Its number, from 0; only 0 writes anything.
        world: How many there are.
        files: The files of the feature table that it reads; every file is one process's.
    """

    rank: int
    world: int
    files: frozenset[Path]

    def gathered(self, own: np.ndarray) -> list[np.ndarray]:
        """Return every process's array, by rank; lengths may differ. All must call it."""
        import torch.distributed as dist

        every: list[np.ndarray | None] = [None] * self.world
        dist.all_gather_object(every, own)
        return [array for array in every if array is not None]

    def broadcast_from_first(self, text: str) -> str:
        """Return the text of rank 0. All must call it."""
        import torch.distributed as dist

        told = [text]
        dist.broadcast_object_list(told, src=0)
        return told[0]


_current: list[ProcessGroup] = []


def current() -> ProcessGroup | None:
    """Return the group that this process trains in; None when it trains alone."""
    return _current[-1] if _current else None


@contextmanager
def joined(files: frozenset[Path], cuda: bool) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started beside this one (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Args:
        files: What this process reads.
        cuda: Whether tensors on GPUs are exchanged too (NCCL); those in host memory always are (Gloo).
    """
    import torch
    import torch.distributed as dist

    if cuda:
        torch.cuda.set_device(dist.get_node_local_rank(fallback_rank=0))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
    try:
        _current.append(ProcessGroup(dist.get_rank(), dist.get_world_size(), files))
        yield _current[-1]
    finally:
        _current.clear()
        dist.destroy_process_group()
