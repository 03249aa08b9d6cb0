"""Scoring many rows in batches leaves no holes in a process' memory."""

from __future__ import annotations

import subprocess
import sys
from itertools import repeat

import numpy as np
import pytest

from models.embedding.training.train import join_arrays

# As of Criteo: 26 features of ids, 13 of floats, batches of 8 192 rows; 30 batches have a quarter of a million rows.
PROGRAM = """
import numpy as np, torch
from pathlib import Path
from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from models.embedding.training.train import Training
from shortlist.ranking.inputs import TableFeature

ROWS, IDS = 8_192, 26
ids = [TableFeature(name=f"C{n}", kind="id", size=50) for n in range(IDS)]
layout = Layout.from_features((*[TableFeature(name=f"I{n}", kind="dense") for n in range(13)], *ids))
section = DLRMModel(features=("*",), embedding_dim=16, bottom_mlp=(64,), top_mlp=(64,))
model = DLRM(layout, section)
rows = torch.randint(0, 50, (ROWS * IDS,), dtype=torch.int32)
lookups = Lookups(rows, torch.arange(ROWS * IDS + 1, dtype=torch.int32), None)
batch = Batch(torch.randint(0, 2, (ROWS,)).float(), torch.randn(ROWS, 13), lookups)


class Loader:
    def __init__(self, batches):
        self.batches, self.rows = batches, batches * ROWS
    def in_order(self):
        for _ in range(self.batches):
            yield batch
    def lists_in_order(self):
        return None


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


training = Training(model, section, "cpu")
training._score_validation(Loader(3))
before = resident_mib()
rows = training._score_validation(Loader(30))
assert rows.scores.size == 30 * ROWS
print(resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read in /proc")
def test_scoring_more_batches_takes_no_more_memory_than_their_scores() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert float(ended.stdout) < 40  # labels and scores are 2 MiB


def test_arrays_are_joined_in_their_order() -> None:
    parts = [np.arange(first, first + 3, dtype=np.float32).reshape(3, 1) for first in (0, 3, 6)]
    assert join_arrays(parts, 9)[:, 0].tolist() == list(range(9))
    with pytest.raises(AssertionError, match="6 of 9 rows"):
        join_arrays(repeat(parts[0], 2), 9)
