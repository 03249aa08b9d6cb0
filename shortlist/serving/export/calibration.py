"""What turns a model's log-odds into calibrated ones: a part of the release, exported as nodes of its graph."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shortlist.serving.export.calibrated import CALIBRATION, calibrated
from shortlist.serving.export.graph_builder import GraphBuilder
from shortlist.storage.artefacts import IntegrityError, read_json, write_json

CALIBRATION_FILE: Final = "calibration.json"
"""In a model folder, where the model is calibrated."""
_FAR: Final = 1e30
"""A distance that no log-odds reach."""


class Calibration(BaseModel):
    """A rising function of the log-odds, made of straight lines.

    Beyond the first and the last of several points it goes on with slope 1, so that it rises everywhere: no two rows
    change places and none become equal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: tuple[float, ...] = Field(min_length=1)
    """Log-odds of the model, rising."""
    values: tuple[float, ...] = Field(min_length=1)
    """Calibrated log-odds at the points, rising."""
    slope: float = Field(default=1.0, gt=0)
    """Before the first point and behind the last."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if len(self.points) != len(self.values):
            raise ValueError(f"{len(self.points)} points and {len(self.values)} values; wanted as many")
        if not all((np.diff(side) > 0).all() for side in (self.points, self.values)):
            raise ValueError("points and values must rise")
        return self

    @classmethod
    def read(cls, folder: Path) -> Calibration | None:
        """Return the calibration in a model folder; None when the model has none.

        Raises:
            IntegrityError: The file is broken.
        """
        path = folder / CALIBRATION_FILE
        if not path.exists():
            return None
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            raise IntegrityError(f"{path}: {error.errors()[0]['msg']}; train the model again") from None

    def write(self, folder: Path) -> None:
        """Write it into a model folder."""
        write_json(folder / CALIBRATION_FILE, self.model_dump(mode="json"))

    def write_arrays(self, folder: Path) -> None:
        """Write it into the folder of a version whose scores a program of ours computes."""
        offsets, lows, highs, slopes, base = self.arrays()
        np.savez(folder / CALIBRATION, offsets=offsets, lows=lows, highs=highs, slopes=slopes, base=base)

    def applied(self, log_odds: np.ndarray) -> np.ndarray:
        """Return the calibrated log-odds, float32."""
        return calibrated(log_odds.astype(np.float32, copy=False), *self.arrays())

    def add_nodes(self, nodes: GraphBuilder, log_odds: str) -> str:
        """Add it to a graph.

        Args:
            nodes: Of the graph.
            log_odds: Tensor of the model's log-odds, shape (rows, 1).

        Returns:
            The tensor of the calibrated ones, of the same shape.
        """
        offsets, lows, highs, slopes, base = self.arrays()
        distances = nodes.add("Sub", log_odds, offsets[None])
        pieces = nodes.add("Min", nodes.add("Max", distances, lows[None]), highs[None])
        lines = nodes.add("Add", nodes.add("MatMul", pieces, slopes[:, None]), base[None])
        # NaN must stay NaN, so that whoever serves the model can tell; Min and Max may take the other number.
        return nodes.add("Where", nodes.add("IsNaN", log_odds), log_odds, lines)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the parameters of `calibrated`: a piece before the first point, one between two, one behind."""
        points, widths = np.array(self.points), np.diff(self.points)
        slopes = np.diff(self.values) / widths
        between = len(widths)
        return tuple(
            np.array(values, np.float32)
            for values in (
                [points[0], *points[:-1], points[-1]],
                [-_FAR, *np.zeros(between), 0.0],
                [0.0, *widths, _FAR],
                [self.slope, *slopes, self.slope],
                [self.values[0]],
            )
        )
