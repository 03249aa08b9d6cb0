"""What a program is run with, and what it gives back."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, Literal, NamedTuple, TypeVar

import torch

from benchmarks.bench import Line

BUDGET_S: Final = 110
"""A program starts nothing new after so many seconds: every one is done within two minutes."""
T = TypeVar("T")


class Setting(NamedTuple):
    """Where a program runs, and at which size."""

    device: Literal["cuda", "cpu"]
    small: bool
    """Toy sizes: every line of the program runs, its figures mean nothing."""

    def pick(self, full: T, small: T) -> T:
        """Return what belongs to the size."""
        return small if self.small else full

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU to ask."""
        return self.device == "cuda"


class Findings:
    """What a program measured, what it could not, and what went wrong: one variant's failure stops no other."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.lines: list[Line] = []
        self.notes: list[str] = []
        self.failed: list[str] = []
        self._until = monotonic() + BUDGET_S

    def needs_cuda(self, name: str) -> bool:
        """Return whether a variant must be left out because there is no GPU, and note it."""
        if not self.setting.on_gpu:
            self.notes.append(f"{name}: needs CUDA")
        return not self.setting.on_gpu

    def out_of_time(self, name: str) -> bool:
        """Return whether a variant must be left out because the program has run long enough, and note it."""
        late = monotonic() > self._until
        if late:
            self.notes.append(f"{name}: not run, {BUDGET_S} s are over")
        return late

    def expect(self, name: str, holds: bool, measured: str) -> None:
        """Note the outcome of a check; the program fails when it does not hold."""
        (self.notes if holds else self.failed).append(f"{name}: {measured}")

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Keep what goes wrong inside to one variant, and give the device its memory back afterwards."""
        try:
            yield
        except Exception as error:  # whatever it is: the other variants are still to be measured
            traceback.print_exc(file=sys.stderr)
            self.failed.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        finally:
            release()


def release() -> None:
    """Give the device back the memory of what is no longer used, and forget what was compiled.

    One function compiled for more settings than `torch._dynamo.config.recompile_limit` would be run eagerly, unsaid.
    """
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
