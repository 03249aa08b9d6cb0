"""What an exported model reads: a few tensors, each column of which has a name."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from shortlist.contracts import score_column
from shortlist.features import columns, hashing
from shortlist.serving.export.calibration import Calibration
from shortlist.storage.artefacts import IntegrityError, read_json, write_json

FOLDER: Final = "serving"
"""Folder inside a model folder that holds the exported graph and its signature."""
MODEL_FILE: Final = "model.onnx"
TREES_FILE: Final = "model.ubj"
"""In the folder of a model of boosted trees: the trees, in XGBoost's own UBJSON."""
RunsAs = Literal["graph", "trees", "network"]
"""What scores behind the features: ONNX Runtime the whole `graph`; our compiled loops the `trees`; or the engine of
`serving.scoring` the `network`, whose products may be of bf16."""
SIGNATURE_FILE: Final = "signature.json"

NO_CODE: Final = hashing.NO_CODE
"""In a tensor of codes: null; in a list: padding, no value at all."""
NULL_IN_LIST: Final = hashing.NULL_IN_LIST
"""In a list: a value that is null."""

SECOND_OF_DAY: Final = columns.SECOND_OF_DAY
WEEKDAY: Final = columns.WEEKDAY

NUMBERS: Final = "numbers"
CODES: Final = "codes"
SCORE: Final = "score"
LOG_ODDS: Final = "log_odds"
"""Inside a graph: what the score is the sigmoid of, FP32, shape (rows, 1)."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ListInput(_Part):
    """A multi-valued column: an INT64 tensor of shape (rows, longest), padded with NO_CODE."""

    tensor: str
    """Name of the tensor: `list_0`, `list_1`, ..."""
    place: str
    """Column of looked-up rows, see `Declared.place`."""
    longest: int | None
    """Values beyond are never read; None reads all."""


class VectorInput(_Part):
    """A vector column: an FP32 tensor of shape (rows, width); zeros for null."""

    tensor: str
    """Name of the tensor: `vector_0`, `vector_1`, ..."""
    place: str
    width: int


class Signature(_Part):
    """The tensors of an exported model, in the order of its inputs; a tensor without columns is left out.

    A column is named by its place in looked-up rows: a declared column, `<side table>:<column>`, `<view>:<feature>`,
    or one of the clock's. Texts travel as their 62-bit fingerprints (`shortlist.features.hashing.codes_of`).

    numbers: FP64, shape (rows, columns); NaN is null. Dates are days, times microseconds since 1970-01-01 UTC.
    codes: INT64, shape (rows, columns); integers as they are, texts as fingerprints, NO_CODE is null.
    score: the output, FP32, shape (rows, 1 + further labels): the probability of the label, then of each further one.
    """

    model: str
    """Name of the model in Triton: the spec's name."""
    kind: str
    """Kind of model."""
    runs_as: RunsAs = "graph"
    """What computes the score."""
    numbers: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    lists: tuple[ListInput, ...] = ()
    vectors: tuple[VectorInput, ...] = ()
    labels: tuple[str, ...] = ()
    """Further labels that have a column of the output each, behind the label's."""
    calibration: Calibration | None = None
    """What is done to the log-odds before the score is their sigmoid; None: nothing."""
    border: tuple[str, ...] = ()
    """Tensors inside the graph at which the features end and the trained model begins; none: it cannot be cut."""

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
        """Write the signature into a folder."""
        write_json(folder / SIGNATURE_FILE, self.model_dump(mode="json"))
