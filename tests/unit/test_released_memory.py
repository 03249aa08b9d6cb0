"""Memory that Polars has freed goes back to the machine, in every process of the product."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import time
import shortlist
import polars as pl

def resident_mib():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * 4096 / 2**20

before = resident_mib()
rows = pl.select(number=pl.int_range(20_000_000)).sort("number", descending=True)
held = resident_mib() - before
del rows
deadline = time.monotonic() + 60
while (kept := resident_mib() - before) > held / 4 and time.monotonic() < deadline:
    time.sleep(0.2)
print(held > 100, kept <= held / 4)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_of_a_freed_table_is_returned() -> None:
    environment = {**os.environ, "_RJEM_MALLOC_CONF": "dirty_decay_ms:500,muzzy_decay_ms:-1"}  # as Polars leaves it
    command = [sys.executable, "-c", PROGRAM]
    program = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert program.stdout.split() == ["True", "True"]
