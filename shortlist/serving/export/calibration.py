"""Calibration of a model's log-odds, exported as nodes of its graph."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shortlist.serving.export.graph_builder import GraphBuilder
from shortlist.serving.export.program.calibrated import CALIBRATION, calibrate
from shortlist.storage.artefacts import IntegrityError, read_json, write_json

CALIBRATION_FILE: Final = "calibration.json"
"""File in the folder of a calibrated model."""
_FAR: Final = 1e30
"""A bound that no log-odds reach."""


class Calibration(BaseModel):
    """An increasing piecewise linear function of the log-odds.

    Beyond the first and the last point it continues with `slope`, so that it increases everywhere: the order of rows
    is kept, without new ties.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: tuple[float, ...] = Field(min_length=1)
    """Log-odds of the model, increasing."""
    values: tuple[float, ...] = Field(min_length=1)
    """Calibrated log-odds at the points, increasing."""
    slope: float = Field(default=1.0, gt=0)
    """Slope before the first and after the last point."""

    @model_validator(mode="after")
    def _check_rising(self) -> Self:
        if len(self.points) != len(self.values):
            raise ValueError(f"{len(self.points)} points and {len(self.values)} values; wanted as many")
        if not all((np.diff(side) > 0).all() for side in (self.points, self.values)):
            raise ValueError("points and values must rise")
        return self

    @classmethod
    def read(cls, folder: Path) -> Calibration | None:
        """Return the calibration in a model folder; None for an uncalibrated model.

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
        """Write the calibration to a model folder."""
        write_json(folder / CALIBRATION_FILE, self.model_dump(mode="json"))

    def write_arrays(self, folder: Path) -> None:
        """Write the calibration as arrays to a version's folder, for the scorers of the Python backend."""
        offsets, lows, highs, slopes, base = self.arrays()
        np.savez(folder / CALIBRATION, offsets=offsets, lows=lows, highs=highs, slopes=slopes, base=base)

    def apply(self, log_odds: np.ndarray) -> np.ndarray:
        """Return the calibrated log-odds, float32."""
        return calibrate(log_odds.astype(np.float32, copy=False), *self.arrays())

    def add_nodes(self, nodes: GraphBuilder, log_odds: str) -> str:
        """Add the calibration to a graph.

        Args:
            nodes: Nodes of the graph.
            log_odds: Tensor of the model's log-odds, shape (rows, 1).

        Returns:
            The tensor of the calibrated log-odds, of the same shape.
        """
        offsets, lows, highs, slopes, base = self.arrays()
        distances = nodes.add("Sub", log_odds, offsets[None])
        pieces = nodes.add("Min", nodes.add("Max", distances, lows[None]), highs[None])
        lines = nodes.add("Add", nodes.add("MatMul", pieces, slopes[:, None]), base[None])
        # NaN must stay NaN, so that the server detects it; Min and Max may return the other operand.
        return nodes.add("Where", nodes.add("IsNaN", log_odds), log_odds, lines)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the parameters of `calibrate`: pieces before, between and after the points."""
        points, widths = np.array(self.points), np.diff(self.points)
        slopes = np.diff(self.values) / widths
        segments = len(widths)
        return tuple(
            np.array(values, np.float32)
            for values in (
                [points[0], *points[:-1], points[-1]],
                [-_FAR, *np.zeros(segments), 0.0],
                [0.0, *widths, _FAR],
                [self.slope, *slopes, self.slope],
                [self.values[0]],
            )
        )
