"""Source `sequence`: next items by a transformer over a user's recent items."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from shortlist.contracts import DataError
from shortlist.slates.retrieval.catalogue import open_mapped_array, realign_rows
from shortlist.slates.retrieval.index import VECTORS, build_index
from shortlist.slates.retrieval.item_content import ItemContent
from shortlist.slates.retrieval.source import FitInputs, Queries, SourceKind
from shortlist.slates.retrieval.vector_source import Matrix, VectorSource
from shortlist.spec.base import Names
from shortlist.spec.data import Data, RowClock
from shortlist.spec.retrieval import check_columns, columns_of, item_tables
from shortlist.spec.vector_inputs import VectorInputs
from shortlist.system.registry import resolve_address

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

ENCODER: Final = "encoder.onnx"
"""File of the encoder: from vectors of events and lengths to vectors of sessions."""
EVENTS: Final = "events"
LENGTHS: Final = "lengths"
STATE: Final = "state"
_BATCH_SESSIONS: Final = 256
"""Sessions that are encoded together."""
_TUNING_QUERIES: Final = 500
_CATEGORIES: Final = ("integer", "string", "hex", "tags")


class LearntSequences(NamedTuple):
    """Result of the training of sequences."""

    encoder: Any
    """A `models.sequence.network.Encoder`."""
    item_vectors: Matrix
    """Vectors of the items by row number of the catalogue, shape (items, D)."""
    content: ItemContent
    """Learnt vectors of items' columns."""
    history: list[dict[str, Any]]
    """Loss and events per second of every epoch."""


class SequenceSource(SourceKind):
    """Next items of a session, by a causal transformer that is trained on positive rows in order of time.

    The session is a user's recent items (at most `retrieval.recent_items`): those in the request, or those of the fit.
    """

    kind: Literal["sequence"]
    """A transformer over recent items."""
    last: int = Field(default=50, ge=2, le=1_000)
    """Number of newest events that are encoded."""
    embedding_dim: int = Field(default=64, ge=2, le=1_024)
    """Width of an item's vector."""
    blocks: int = Field(default=1, ge=1, le=12)
    """Transformer blocks."""
    heads: int = Field(default=2, ge=1, le=64)
    """Attention heads; they divide the vector among them."""
    item_columns: Names = ()
    """Columns of an item's side table whose values get embeddings beside the item's id."""
    item_numbers: Names = ()
    """Numeric columns of an item's side table, which a linear layer adds to the item's vector."""
    item_vectors: VectorInputs | None = None
    """Vector columns of an item's side table, one per modality: their projections are added to the item's vector. Items
    without positives are then placed by columns and vectors alone, and are no negatives."""
    epochs: int = Field(default=20, ge=1, le=1_000)
    """Number of passes over the sessions."""
    batch_events: int = Field(default=512, ge=8, le=1_000_000)
    """Approximate number of events per step; the next item of each event is a negative for the others."""
    sampled_negatives: int = Field(default=1_024, ge=1, le=1_000_000)
    """Number of further items per step, drawn uniformly from the whole catalogue: negatives for all its events."""
    learning_rate: float = Field(default=0.002, gt=0.0, le=1.0)
    """Learning rate of Adam."""
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0)
    """Share of activations that are set to 0 in a step."""
    reversed: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of sessions that are read from their end to their beginning."""
    crops: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of sessions of which a random part is read."""
    masked: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of events whose item is hidden."""
    joined: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of sessions that are prefixed with another user's events before the item with which the session begins.
    Short sessions, of new users, get a past from similar ones; an epoch takes longer."""
    window_days: int | None = Field(default=None, ge=1, le=3_650)
    """Number of newest days whose positive rows are learnt; null: all."""

    @model_validator(mode="after")
    def _check_heads_divide_width(self) -> Self:
        if self.embedding_dim % self.heads:
            raise ValueError(f"embedding_dim {self.embedding_dim} is no multiple of heads {self.heads}")
        return self

    def check(self, data: Data) -> None:
        """Check the columns and the clock; see `SourceSection.check`."""
        if isinstance(data.clock, RowClock):
            raise ValueError(
                "rows of this log have no times of their own, so the order of events is unknown; declare data.clock:"
                " {kind: column}"
            )
        items = columns_of(item_tables(data))
        check_columns(self.item_columns, items, _CATEGORIES, "a side table of the items")
        check_columns(self.item_numbers, items, ("integer", "number"), "a side table of the items")
        if self.item_vectors is not None:
            check_columns(self.item_vectors.of, items, ("vector",), "a side table of the items")

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Train, and write the encoder, the items' vectors and their index."""
        networks = resolve_address("networks")
        train: Callable[[SequenceSource, FitInputs], LearntSequences] = networks.load("train_sequence_source")
        learnt = train(self, inputs)
        if not np.isfinite(learnt.item_vectors).all():
            raise DataError("training diverged: items' vectors are not finite; declare a smaller learning_rate")
        networks.load("export_sequence_source")(learnt.encoder, folder / ENCODER)
        self._write(learnt.item_vectors, learnt.content, inputs, folder)

    def refresh(self, inputs: FitInputs, fitted_folder: Path, fitted_ids: pl.Series, folder: Path) -> None:
        """Keep the learnt encoder and vectors; new items are placed by their columns."""
        content = ItemContent.read(fitted_folder)
        vectors, is_new = realign_rows(open_mapped_array(fitted_folder / VECTORS), fitted_ids, inputs.catalogue)
        vectors[is_new.to_numpy()] = content.vectors(inputs.catalogue.items.filter(is_new))
        shutil.copyfile(fitted_folder / ENCODER, folder / ENCODER)
        self._write(vectors, content, inputs, folder)

    def _write(self, item_vectors: Matrix, content: ItemContent, inputs: FitInputs, folder: Path) -> None:
        content.write(folder)
        random = np.random.default_rng(inputs.seed)
        queries = item_vectors[random.choice(inputs.catalogue.size, min(_TUNING_QUERIES, inputs.catalogue.size))]
        encoded = encode_sessions(_open_encoder(folder / ENCODER), queries[:, None], np.ones(len(queries), np.int64))
        build_index(item_vectors, encoded, inputs.index, inputs.max_items, folder, inputs.seed)

    def load(self, folder: Path) -> NextItems:
        """Return the encoder and the index in a folder."""
        return NextItems(folder, self.last)


class NextItems(VectorSource):
    """Items by the inner product of their vectors with the state of a session."""

    def __init__(self, folder: Path, last: int) -> None:
        super().__init__(folder)
        self._encoder = _open_encoder(folder / ENCODER)
        self._last = last

    def query_vectors(self, queries: Queries) -> Matrix:
        """Return the state of every session, shape (B, D); zeros where there is no event."""
        recent = queries.recent[:, : self._last]
        lengths = (recent >= 0).sum(axis=1).astype(np.int64)
        states = np.zeros((queries.size, self.vectors.shape[1]), np.float32)
        query_numbers = np.flatnonzero(lengths)
        for first in range(0, len(query_numbers), _BATCH_SESSIONS):
            batch_numbers = query_numbers[first : first + _BATCH_SESSIONS]
            events = recent[batch_numbers, : int(lengths[batch_numbers].max())]
            vectors = np.where((events >= 0)[:, :, None], self.vectors[np.maximum(events, 0)], np.float32(0))
            states[batch_numbers] = encode_sessions(self._encoder, vectors, lengths[batch_numbers])
        return states


def encode_sessions(encoder: InferenceSession, events: Matrix, lengths: np.ndarray) -> Matrix:
    """Return the state of sessions after their newest event, shape (B, D).

    Args:
        encoder: Session of the file `ENCODER`.
        events: Vectors of the events, newest first, shape (B, L, D).
        lengths: Number of events of each session, int64, at least 1.
    """
    state: Matrix = encoder.run([STATE], {EVENTS: np.ascontiguousarray(events, np.float32), LENGTHS: lengths})[0]
    return state


def _open_encoder(path: Path) -> InferenceSession:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return InferenceSession(path, options, providers=["CPUExecutionProvider"])
