from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from models.embedding.training.train import keep_freed_memory

# 48 MiB is over the 32 MiB up to which glibc learns to keep blocks by itself.
PROGRAM = """
import ctypes, resource
from models.embedding.training.train import keep_freed_memory
if {keep}: keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
before = 0
for turn in range(6):
    if turn == 2: before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(48 << 20)
    ctypes.memset(block, 1, 48 << 20)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_what_is_freed_is_not_fetched_again_page_by_page() -> None:
    faults = {}
    for keep in (True, False):
        ended = subprocess.run([sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, check=True)
        faults[keep] = int(ended.stdout)
    assert faults[True] < faults[False] / 2


def test_a_c_library_without_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
