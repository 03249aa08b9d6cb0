"""Signature of an exported model: its input tensors, and the name of each column."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from shortlist.contracts import score_column
from shortlist.features.values import columns, hashing
from shortlist.serving.export.calibration import Calibration
from shortlist.storage.artefacts import IntegrityError, read_json, write_json

FOLDER: Final = "serving"
"""Folder inside a model folder that holds the exported graph and its signature."""
MODEL_FILE: Final = "model.onnx"
TREES_FILE: Final = "model.ubj"
"""File with the trees of a boosted model, in XGBoost's UBJSON, in the model folder."""
RunsAs = Literal["graph", "trees", "network"]
"""How scores are computed after the features: `graph` by ONNX Runtime, `trees` by our compiled loops, or `network` by
the engine of `serving.scoring`, possibly in bf16."""
SIGNATURE_FILE: Final = "signature.json"

NO_CODE: Final = hashing.NO_CODE
"""Null in a tensor of codes; padding in a list."""
NULL_IN_LIST: Final = hashing.NULL_IN_LIST
"""A null value in a list."""

SECOND_OF_DAY: Final = columns.SECOND_OF_DAY
WEEKDAY: Final = columns.WEEKDAY

NUMBERS: Final = "numbers"
CODES: Final = "codes"
SCORE: Final = "score"
LOG_ODDS: Final = "log_odds"
"""Name of the log-odds inside a graph, FP32, shape (rows, 1); their sigmoid is the score."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ListInput(_Part):
    """A multi-valued column: an INT64 tensor of shape (rows, longest), padded with NO_CODE."""

    tensor: str
    """Name of the tensor: `list_0`, `list_1`, ..."""
    place: str
    """Column of looked-up rows, see `DeclaredColumns.row_column`."""
    longest: int | None
    """Most values that are read; None for all."""


class VectorInput(_Part):
    """A vector column: an FP32 tensor of shape (rows, width); zeros for null."""

    tensor: str
    """Name of the tensor: `vector_0`, `vector_1`, ..."""
    place: str
    width: int


class Signature(_Part):
    """The tensors of an exported model, in the order of its inputs; a tensor without columns is left out.

    Columns have the names of looked-up rows: a declared column, `<side table>:<column>`, `<view>:<feature>`, or a
    column of the clock. Texts are sent as 62-bit fingerprints (`shortlist.features.values.hashing.codes_of`).

    numbers: FP64, shape (rows, columns); NaN is null. Dates are days, times microseconds since 1970-01-01 UTC.
    codes: INT64, shape (rows, columns); integers as they are, texts as fingerprints, NO_CODE is null.
    score: the output, FP32, shape (rows, 1 + further labels): the probability of the label, then of each further one.
    """

    model: str
    """Name of the model in Triton: the spec's name."""
    kind: str
    """Kind of model."""
    runs_as: RunsAs = "graph"
    """How the score is computed."""
    numbers: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    lists: tuple[ListInput, ...] = ()
    vectors: tuple[VectorInput, ...] = ()
    labels: tuple[str, ...] = ()
    """Further labels, each with a column of the output after the label's."""
    calibration: Calibration | None = None
    """Calibration of the log-odds; None for an uncalibrated model."""
    border: tuple[str, ...] = ()
    """Tensors at which the features end and the trained model begins; empty when the graph cannot be cut."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores, in the order of the output's columns."""
        return SCORE, *map(score_column, self.labels)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the signature in the `serving` folder of a model.

        Raises:
            IntegrityError: It is missing or broken.
        """
        path = folder / SIGNATURE_FILE
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            raise IntegrityError(f"{path}: {error.errors()[0]['msg']}; export the model again") from None

    def write(self, folder: Path) -> None:
        """Write the signature to a folder."""
        write_json(folder / SIGNATURE_FILE, self.model_dump(mode="json"))
