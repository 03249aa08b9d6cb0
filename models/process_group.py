"""The processes that train one model together: who they are, and how they exchange values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from shortlist.contracts import ShortlistError

_TIMED_OUT: Final = re.compile(r"time(d )?out", re.IGNORECASE)
"""How Gloo, NCCL, torch's store and XGBoost say that another process did not answer in time."""


class ProcessGroup(NamedTuple):
    """One process among those that train a model.

    Attributes:
        rank: Its number, from 0; only 0 writes anything.
        world: How many there are.
        files: The files of the feature table that it reads; every file is one process's.
        wait_seconds: How long it waits for the others in one exchange.
    """

    rank: int
    world: int
    files: frozenset[Path]
    wait_seconds: int

    def gathered(self, own: np.ndarray) -> list[np.ndarray]:
        """Return every process's array, by rank; lengths may differ. All must call it."""
        import torch.distributed as dist

        every: list[np.ndarray | None] = [None] * self.world
        dist.all_gather_object(every, own)
        return [array for array in every if array is not None]

    def broadcast_from_first(self, text: str) -> str:
        """Return the text of rank 0. All must call it."""
        import torch.distributed as dist

        values = [text]
        dist.broadcast_object_list(values, src=0)
        return values[0]


_current: list[ProcessGroup] = []


def current() -> ProcessGroup | None:
    """Return the group that this process trains in; None when it trains alone."""
    return _current[-1] if _current else None


@contextmanager
def joined(files: frozenset[Path], cuda: bool, wait_seconds: int) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started beside this one (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Args:
        files: What this process reads.
        cuda: Whether tensors on GPUs are exchanged too (NCCL); those in host memory always are (Gloo).
        wait_seconds: How long one exchange may take, the start included.

    Raises:
        ShortlistError: Another process did not answer in this time.
    """
    import torch
    import torch.distributed as dist

    if cuda:
        torch.cuda.set_device(dist.get_node_local_rank(fallback_rank=0))
    backend, timeout = "cpu:gloo,cuda:nccl" if cuda else "gloo", timedelta(seconds=wait_seconds)
    try:
        dist.init_process_group(backend, timeout=timeout)
        _current.append(ProcessGroup(dist.get_rank(), dist.get_world_size(), files, wait_seconds))
        yield _current[-1]
    except (RuntimeError, ValueError) as error:  # torch's are of the first kind, XGBoost's of the second
        if isinstance(error, ShortlistError) or not _TIMED_OUT.search(str(error)):
            raise
        raise ShortlistError(
            f"a worker waited {wait_seconds} s for the others and at least one did not answer. It hangs, its machine is"
            " gone, or it needs longer, e.g. to decode its files; then raise"
            " runtime.cluster.workers.<model>.wait_seconds."
        ) from error
    finally:
        _current.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
