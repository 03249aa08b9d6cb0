"""The server under test, its model a stand-in: `python -m tests.fuzz.server SETTINGS.json`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import uvloop

from shortlist.serving.export.signature import FOLDER, NUMBERS, Signature
from shortlist.serving.server.features.tensor_assembler import Tensors
from shortlist.serving.server.requests.admission import AdmissionSlot
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.scoring.predictor import Predictor, Scores
from shortlist.serving.server.server import read_settings, serve


class ItemWeights(Predictor):
    """Scores a row with its item's weight, 0 where that is unknown."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings, {})
        self._place = Signature.read(settings.model_folder / FOLDER).numbers.index("items:weight")

    async def scores(self, tensors: Tensors, rows: int, place: AdmissionSlot | None = None) -> Scores:
        """Return a score per row."""
        assert all(len(column) == rows for column in tensors.values())
        return np.nan_to_num(tensors[NUMBERS][:, self._place]).astype(np.float32)

    async def is_ready(self) -> bool:
        """Whether there is a model: always."""
        return True


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    read = read_settings(Path(sys.argv[1]))
    uvloop.run(serve(read, ItemWeights(read)))
