"""The processes that train one model together, and how they exchange values."""

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
"""Matches the timeout messages of Gloo, NCCL, torch's store and XGBoost."""


class ProcessGroup(NamedTuple):
    """This process as a member of the group that trains a model.

    Attributes:
        rank: Number of this process, from 0; only rank 0 writes files.
        world: Number of processes.
        files: Files of the feature table that this process reads; every file belongs to one process.
        wait_seconds: Timeout of one exchange.
    """

    rank: int
    world: int
    files: frozenset[Path]
    wait_seconds: int

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return every process's array, by rank; lengths may differ. All processes must call it."""
        import torch.distributed as dist

        arrays: list[np.ndarray | None] = [None] * self.world
        dist.all_gather_object(arrays, array)
        return [array for array in arrays if array is not None]

    def broadcast_from_first(self, text: str) -> str:
        """Return the text of rank 0. All processes must call it."""
        import torch.distributed as dist

        values = [text]
        dist.broadcast_object_list(values, src=0)
        return values[0]


_joined_groups: list[ProcessGroup] = []


def current_group() -> ProcessGroup | None:
    """Return the group of this process; None when it trains alone."""
    return _joined_groups[-1] if _joined_groups else None


@contextmanager
def join_group(files: frozenset[Path], cuda: bool, wait_seconds: int) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started beside this one (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Args:
        files: Files that this process reads.
        cuda: Whether tensors on GPUs are exchanged too (NCCL); tensors in host memory always are (Gloo).
        wait_seconds: Timeout of one exchange, the start included.

    Raises:
        ShortlistError: Another process did not answer within the timeout.
    """
    import torch
    import torch.distributed as dist

    if cuda:
        torch.cuda.set_device(dist.get_node_local_rank(fallback_rank=0))
    backend, timeout = "cpu:gloo,cuda:nccl" if cuda else "gloo", timedelta(seconds=wait_seconds)
    try:
        dist.init_process_group(backend, timeout=timeout)
        _joined_groups.append(ProcessGroup(dist.get_rank(), dist.get_world_size(), files, wait_seconds))
        yield _joined_groups[-1]
    except (RuntimeError, ValueError) as error:  # torch raises RuntimeError, XGBoost ValueError
        if isinstance(error, ShortlistError) or not _TIMED_OUT.search(str(error)):
            raise
        raise ShortlistError(
            f"a worker waited {wait_seconds} s for the others and at least one did not answer. It hangs, its machine is"
            " gone, or it needs longer, e.g. to decode its files; then raise"
            " runtime.cluster.workers.<model>.wait_seconds."
        ) from error
    finally:
        _joined_groups.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
