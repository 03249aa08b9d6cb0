"""The engines that run pure functions over the partitions of a log: what each of them provides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NewType, Protocol

Block = NewType("Block", object)
"""What a task returned, wherever the engine keeps it: Arrow tables, or small Python values."""

Blocks = Iterator[Any]
"""The contents of blocks, one after the other; a task need not hold all of them at once."""

Work = Callable[..., Any]
"""A function of a module, which workers can import. It depends on its arguments alone, so that it can run again."""


class PartitionEngine(Protocol):
    """Runs functions over partitions. The result never depends on which worker runs which partition, nor on failures.

    A shuffle is two calls of `run`: in the first, each task returns a block per partition; the second gets, per
    partition, the blocks of all tasks in the order of the tasks (`transpose`).
    """

    @property
    def partitions(self) -> int:
        """Number of partitions of a shuffle; 1: the whole work is done in this process, as a stream."""

    @property
    def workers(self) -> int:
        """Number of tasks that run at the same time."""

    def run(
        self, work: Work, tasks: Sequence[tuple[Any, ...]], inputs: Sequence[Sequence[Block]] = (),
        outputs: int | None = None,
    ) -> list[list[Block]]:  # fmt: skip
        """Run a function once per task, and return the blocks of every task.

        Args:
            work: Called as `work(*task)`, or `work(*task, blocks)` where there are inputs. It returns a sequence of
                `outputs` values; where `outputs` is None, what it returns is one block.
            tasks: Arguments of every task; they are copied to the workers.
            inputs: Per task the blocks that it reads, as an iterator over their contents; empty: none.
            outputs: Number of blocks that a task returns; None: one.

        Raises:
            Exception: The first error of a task, as if it had been raised here.
        """

    def fetch(self, blocks: Sequence[Block]) -> Iterator[Any]:
        """Yield the contents of blocks, in order."""


def transpose(blocks: Sequence[Sequence[Block]]) -> list[list[Block]]:
    """Return per partition the blocks of all tasks, given per task the blocks of all partitions.

    >>> transpose([["a0", "a1"], ["b0", "b1"]])
    [['a0', 'b0'], ['a1', 'b1']]
    """
    return [list(column) for column in zip(*blocks, strict=True)]


def map_partitions(engine: PartitionEngine, work: Work, tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield what a function returns for every task, in order."""
    return engine.fetch([block for (block,) in engine.run(work, tasks)])


class InProcess:
    """Runs everything in this process, one task after the other."""

    def __init__(self, partitions: int = 1) -> None:
        """Set up the engine.

        Args:
            partitions: Number of partitions of a shuffle; with more than 1 the functions of large logs are used, which
                tells whether they agree with the others.
        """
        self.partitions = partitions
        self.workers = 1

    def run(
        self, work: Work, tasks: Sequence[tuple[Any, ...]], inputs: Sequence[Sequence[Block]] = (),
        outputs: int | None = None,
    ) -> list[list[Block]]:  # fmt: skip
        """See `PartitionEngine.run`."""
        blocks = []
        for number, task in enumerate(tasks):
            returned = work(*task, iter(inputs[number])) if inputs else work(*task)
            blocks.append([returned] if outputs is None else list(returned))
            assert len(blocks[-1]) == (outputs or 1)
        return blocks

    def fetch(self, blocks: Sequence[Block]) -> Iterator[Any]:
        """See `PartitionEngine.fetch`."""
        return iter(blocks)
