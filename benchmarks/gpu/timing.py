"""Seconds of work on a device, by its own clock; at toy size everything is done once."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import torch

from benchmarks.gpu.setting import Setting

WARM_UPS: Final = 3
ROUNDS: Final = 5


def seconds(work: Callable[[], object], setting: Setting, repeats: int = 10) -> float:
    """Return the seconds of one call among many in a row, so that launches overlap: the median of some rounds.

    The first calls are not counted: memory is asked for, kernels are chosen and compiled in them.
    """
    repeats = setting.pick(repeats, 1)
    _warm_up(work, setting)
    return median(_round(work, setting, repeats) / repeats for _ in range(setting.pick(ROUNDS, 1)))


def latency_p50(work: Callable[[], object], setting: Setting, calls: int) -> float:
    """Return the median seconds from a call to its result, each waited for before the next."""
    _warm_up(work, setting)
    return median(wall_s(work, setting) for _ in range(setting.pick(calls, 2)))


def wall_s(work: Callable[[], object], setting: Setting) -> float:
    """Return the seconds of one call by the clock on the wall, the device's work included."""
    finish(setting)
    started = time.perf_counter()
    work()
    finish(setting)
    return time.perf_counter() - started


def finish(setting: Setting) -> None:
    """Wait until the device has done all it was given."""
    if setting.on_gpu:
        torch.cuda.synchronize()


def _warm_up(work: Callable[[], object], setting: Setting) -> None:
    for _ in range(setting.pick(WARM_UPS, 1)):
        work()


def _round(work: Callable[[], object], setting: Setting, repeats: int) -> float:
    if not setting.on_gpu:
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        return time.perf_counter() - started
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1_000
