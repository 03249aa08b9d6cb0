"""Models that score how well an item follows a session, one per period of days: their files, scores and nodes.

Shapes: R rows, U sessions, L events of the longest session, V known items and one for all unknown items, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.features.counts.tiles import microseconds, moment_of, start_of
from shortlist.features.counts.vocabulary import ValueIds
from shortlist.features.declared.graph import ML, Graph
from shortlist.features.kinds.vocabulary import vocabulary_codes
from shortlist.features.values.hashing import NO_CODE
from shortlist.features.values.lists import map_values
from shortlist.storage.artefacts import IntegrityError, read_json, write_json
from shortlist.system.execution import count_cpu_operation

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

ENCODER_FILE: Final = "encoder.onnx"
"""Encoder of vectors of events, newest first, U x L x D, and their lengths, U, into states of sessions, U x D.

It and all later steps compute in FP64: sums are rounded in the order in which they are added, which depends on the
library and the number of rows. Rounded to FP32, the scores are the same in the table and in the graph, so that no tree
branches differently there."""
ITEMS_FILE: Final = "items.parquet"
"""The known items, in the order of their vectors; column `value`."""
VECTORS_FILE: Final = "vectors.npy"
FACTS_FILE: Final = "facts.json"
INDEX_FILE: Final = "models.json"
_SESSIONS_PER_BATCH: Final = 256
"""Sessions that are encoded at once."""
_ROWS_PER_BATCH: Final = 65_536
_MIN_SPREAD: Final = 1e-3
"""Smallest deviation of the scores; below it all items are alike, and a difference is rounding."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]


class SessionModelFacts(NamedTuple):
    """How a model was trained: its period, days and settings."""

    start: int
    """First moment whose rows it scores, in microseconds since 1970-01-01 UTC, as all times here."""
    learnt_until: int
    """Latest moment at which one of its training events became known."""
    days: dict[str, str]
    """Digests of the days that it was trained on."""
    settings: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write the facts into a model's folder."""
        write_json(folder / FACTS_FILE, self._asdict())


class SessionModel:
    """The model of one period."""

    def __init__(self, folder: Path) -> None:
        """Read a model.

        Raises:
            IntegrityError: It was trained on events that its first rows could not know.
        """
        facts = SessionModelFacts(**read_json(folder / FACTS_FILE))
        if facts.learnt_until > facts.start:
            raise IntegrityError(
                f"{folder}: learnt what was known at {moment_of(facts.learnt_until):%Y-%m-%d %H:%M:%S} UTC, and would"
                f" score rows from {moment_of(facts.start):%Y-%m-%d %H:%M:%S} UTC on, whose outcomes it may hold; fit"
                " the features again"
            )
        self.start = facts.start
        self._folder = folder

    @cached_property
    def item_ids(self) -> ValueIds:
        """Numbers of the items, which are rows of `vectors`."""
        return ValueIds(self._folder / ITEMS_FILE)

    @cached_property
    def vectors(self) -> Floats:
        """Vectors of the items, V x D; the vector of number 0, which stands for unknown items, is zero."""
        item_vectors = np.load(self._folder / VECTORS_FILE)
        return np.concatenate([np.zeros((1, item_vectors.shape[1]), np.float32), item_vectors])

    @cached_property
    def moments(self) -> tuple[Doubles, Doubles]:
        """Mean of the known items' vectors, D, and a root of their covariance, D x D.

        For a state s, the inner products with all items have the mean s m and the deviation |s root|.
        """
        item_vectors = self.vectors[1:].astype(np.float64)
        mean = item_vectors.mean(axis=0)
        variances, axes = np.linalg.eigh((item_vectors - mean).T @ (item_vectors - mean) / len(item_vectors))
        root = axes * np.sqrt(np.maximum(variances, 0.0))
        return mean, root

    @cached_property
    def _encoder(self) -> InferenceSession:
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return InferenceSession(self._folder / ENCODER_FILE, options, providers=["CPUExecutionProvider"])

    def scores(self, sessions: pl.Series, items: pl.Series) -> Floats:
        """Return how many deviations an item's inner product with its session's state is above the mean of all items.

        Args:
            sessions: Lists of items, newest first.
            items: One item for each session.

        Returns:
            Shape (R,); 0 where the item, or every item of the session, is not known.
        """
        scores = np.zeros(len(items), np.float32)
        for first in range(0, len(items), _ROWS_PER_BATCH):
            batch = slice(first, first + _ROWS_PER_BATCH)
            scores[batch] = self._scores(_pad(map_values(sessions[batch], self.item_ids.ids)), items[batch])
        return scores

    def _scores(self, sessions_RL: Ints, items: pl.Series) -> Floats:  # noqa: N803 - see the module
        items_R = self.item_ids.ids(items).to_numpy()  # noqa: N806
        scored_rows = np.flatnonzero((items_R > 0) & (sessions_RL > 0).any(axis=1))
        scores = np.zeros(len(items_R), np.float32)
        if not len(scored_rows):
            return scores
        sessions_UL, runs = np.unique(sessions_RL[scored_rows], axis=0, return_inverse=True)  # noqa: N806
        states_UD, (mean_D, root_DD) = self._states(sessions_UL), self.moments  # noqa: N806
        means_U = states_UD @ mean_D  # noqa: N806
        spreads_U = np.maximum(np.sqrt(np.square(states_UD @ root_DD).sum(axis=1)), _MIN_SPREAD)  # noqa: N806
        runs = runs.ravel()
        products = (states_UD[runs] * self.vectors[items_R[scored_rows]]).sum(axis=1)
        scores[scored_rows] = (products - means_U[runs]) / spreads_U[runs]
        return scores

    def _states(self, sessions_UL: Ints) -> Doubles:  # noqa: N803
        lengths = (sessions_UL >= 0).sum(axis=1).astype(np.int64)
        states = np.empty((len(lengths), self.vectors.shape[1]))
        order = np.argsort(lengths, kind="stable")
        events, counts = (model_input.name for model_input in self._encoder.get_inputs())
        for first in range(0, len(order), _SESSIONS_PER_BATCH):
            batch = order[first : first + _SESSIONS_PER_BATCH]
            item_numbers = np.maximum(sessions_UL[batch, : int(lengths[batch].max())], 0)
            inputs = {events: self.vectors[item_numbers].astype(np.float64), counts: lengths[batch]}
            (states[batch],) = self._encoder.run(None, inputs)
        return states

    def nodes(self, graph: Graph, sessions: str, runs: str, items: str) -> str:
        """Compile the scores; return them as FP64, shape (R,).

        Args:
            graph: Takes the nodes.
            sessions: Codes of the sessions' items, U x L, padded with NO_CODE.
            runs: Number of each row's session, R.
            items: Codes of the rows' items, R.
        """
        add = graph.add
        codes = vocabulary_codes("items of sessions", self.item_ids.values)
        sessions_UL, items_R = (  # noqa: N806
            add("LabelEncoder", tensor, domain=ML, keys_int64s=codes, default_int64=0,
                values_int64s=np.arange(1, len(codes) + 1))
            for tensor in (sessions, items)
        )  # fmt: skip
        is_present = add("Cast", add("Not", add("Equal", sessions, np.array([NO_CODE]))), to=_INT64)
        lengths_U = add("ReduceSum", is_present, np.array([1]), keepdims=0)  # noqa: N806
        vectors_VD = add("Identity", self.vectors)  # noqa: N806
        events_ULD = add("Cast", add("Gather", vectors_VD, sessions_UL, axis=0), to=_DOUBLE)  # noqa: N806
        states_UD = inline_graph(graph, self._folder / ENCODER_FILE, [events_ULD, lengths_U])  # noqa: N806
        mean_D, root_DD = self.moments  # noqa: N806
        means_U = add("MatMul", states_UD, mean_D)  # noqa: N806
        along_UD = add("MatMul", states_UD, root_DD)  # noqa: N806
        squares_U = add("ReduceSum", add("Mul", along_UD, along_UD), np.array([1]), keepdims=0)  # noqa: N806
        spreads_U = add("Max", add("Sqrt", squares_U), np.array(_MIN_SPREAD))  # noqa: N806
        items_RD = add("Cast", add("Gather", vectors_VD, items_R, axis=0), to=_DOUBLE)  # noqa: N806
        pairs_RD = add("Mul", add("Gather", states_UD, runs, axis=0), items_RD)  # noqa: N806
        products_R = add("ReduceSum", pairs_RD, np.array([1]), keepdims=0)  # noqa: N806
        above_R = add("Sub", products_R, add("Gather", means_U, runs, axis=0))  # noqa: N806
        scores_R = add("Div", above_R, add("Gather", spreads_U, runs, axis=0))  # noqa: N806
        is_known_U = add(  # noqa: N806
            "Greater", add("ReduceMax", sessions_UL, axes=[1], keepdims=0), np.array(0)
        )
        is_known_R = add("And", add("Gather", is_known_U, runs, axis=0), add("Greater", items_R, np.array(0)))  # noqa: N806
        return add("Where", is_known_R, scores_R, np.zeros(1))


class SessionModels:
    """The models of a feature, each for the rows from its start to the start of the next one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def models(self) -> tuple[SessionModel, ...]:
        """The models, in time order.

        Raises:
            IntegrityError: One was trained on events that its first rows could not know, or files are missing.
        """
        return tuple(SessionModel(self._folder / name) for name in self._index["models"])

    @property
    def _index(self) -> Mapping[str, Any]:
        return read_json(self._folder / INDEX_FILE)

    def write_index(self, models: list[str], served_from: date, timezone: str) -> None:
        """Write the index of the models.

        Args:
            models: Names of folders, in time order.
            served_from: First day whose rows an exported graph scores: the first one of validation.
            timezone: Timezone in which the day begins.
        """
        served = microseconds(start_of(served_from, timezone))
        write_json(self._folder / INDEX_FILE, {"models": models, "served_from": served})

    def scores(self, times: pl.Series, sessions: pl.Series, items: pl.Series) -> Floats:
        """Return each row's score by the model of its time; 0 before the first one. See `SessionModel.scores`."""
        count_cpu_operation("scores of sessions (ONNX Runtime)")
        starts = np.array([model.start for model in self.models], np.int64)
        model_numbers = np.searchsorted(starts, times.dt.epoch("us").to_numpy(), side="right") - 1
        scores = np.zeros(len(items), np.float32)
        for number, model in enumerate(self.models):
            rows = np.flatnonzero(model_numbers == number)
            if len(rows):
                scores[rows] = model.scores(sessions.gather(rows), items.gather(rows))
        return scores

    def nodes(self, graph: Graph, times: str, sessions: str, runs: str, items: str) -> str:
        """Compile the scores of all rows that an exported graph scores; return them as FP64, shape (R,).

        Args:
            graph: Takes the nodes.
            times: Times of the rows, FP64, in microseconds, R.
            sessions: See `SessionModel.nodes`, likewise the others.
            runs: Number of each row's session.
            items: Codes of the rows' items.
        """
        served_from = self._index["served_from"]
        first_served = max(
            (number for number, model in enumerate(self.models) if model.start <= served_from), default=0
        )
        scores = ""
        for model in self.models[first_served:]:
            model_scores = model.nodes(graph, sessions, runs, items)
            is_from_start = graph.add("Not", graph.add("Less", times, np.array(float(model.start))))
            scores = graph.add("Where", is_from_start, model_scores, scores or np.zeros(1))
        return scores


def inline_graph(graph: Graph, path: Path, inputs: list[str]) -> str:
    """Add the nodes of a file, whose nodes have one output each, to a graph; return the tensor of its output.

    Args:
        graph: Takes the nodes.
        path: An ONNX file with one output.
        inputs: Tensors that take the place of its inputs, in order.
    """
    import onnx
    from onnx import helper, numpy_helper

    source_graph = onnx.load(path).graph
    tensors: dict[str, str | np.ndarray] = {
        **{initializer.name: numpy_helper.to_array(initializer) for initializer in source_graph.initializer},
        **dict(zip((graph_input.name for graph_input in source_graph.input), inputs, strict=True)),
    }
    for node in source_graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        (output,) = node.output
        tensors[output] = graph.add(
            node.op_type, *(tensors[name] for name in node.input), domain=node.domain, **attributes
        )
    output_tensor = tensors[source_graph.output[0].name]
    assert isinstance(output_tensor, str)
    return output_tensor


def _pad(lists: pl.Series) -> Ints:
    """Return lists of ids as a matrix, at least one column wide, padded with -1."""
    lengths = lists.list.len().to_numpy()
    positions = np.arange(max(1, int(lengths.max(initial=0))))
    padded = np.full((len(lists), len(positions)), -1, np.int32)
    padded[positions < lengths[:, None]] = lists.explode(empty_as_null=False, keep_nulls=False).to_numpy()
    return padded


_INT64: Final = 7
"""ONNX data types of INT64 and FP64."""
_DOUBLE: Final = 11
