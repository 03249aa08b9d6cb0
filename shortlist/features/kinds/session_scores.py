"""Models that say how well an item follows a session, one per period of days: their files, values and nodes.

Shapes: R rows, U sessions, L events of the longest one, V items that a model knows and one that stands for all others,
D width.
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

from shortlist.features.graph import ML, Graph
from shortlist.features.hashing import NO_CODE
from shortlist.features.kinds.vocabulary import vocabulary_codes
from shortlist.features.lists import map_values
from shortlist.features.tiles import microseconds, moment_of, start_of
from shortlist.features.vocabulary import ValueIds
from shortlist.storage.artefacts import IntegrityError, read_json, write_json
from shortlist.system.execution import on_cpu

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

ENCODER: Final = "encoder.onnx"
"""Vectors of events, newest first, U x L x D, and their lengths, U, to the states of sessions, U x D.

In FP64, as all that follows: sums of a network are rounded in the order in which they are added, which depends on who
adds them and for how many rows. A number of FP32 made of them is the same in the table and in the graph, so that no
tree decides otherwise there."""
ITEMS: Final = "items.parquet"
"""The items that are known, in the order of their vectors; column `value`."""
VECTORS: Final = "vectors.npy"
FACTS: Final = "facts.json"
INDEX: Final = "models.json"
_AT_ONCE: Final = 256
"""Sessions that are encoded together."""
_ROWS_AT_ONCE: Final = 65_536
_LEAST_SPREAD: Final = 1e-3
"""Below, all items are alike, and a difference is rounding."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]


class Facts(NamedTuple):
    """What is known of how a model was trained."""

    start: int
    """From when on its rows are, in microseconds since 1970-01-01 UTC, as all times here."""
    learnt_until: int
    """Latest moment at which something that it learnt became known."""
    days: dict[str, str]
    """Digests of the days that it learnt."""
    settings: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write the facts into a model's folder."""
        write_json(folder / FACTS, self._asdict())


class SessionModel:
    """One model."""

    def __init__(self, folder: Path) -> None:
        """Read a model.

        Raises:
            IntegrityError: It learnt what its first rows could not know.
        """
        facts = Facts(**read_json(folder / FACTS))
        if facts.learnt_until > facts.start:
            raise IntegrityError(
                f"{folder}: learnt what was known at {moment_of(facts.learnt_until):%Y-%m-%d %H:%M:%S} UTC, and would"
                f" score rows from {moment_of(facts.start):%Y-%m-%d %H:%M:%S} UTC on, whose outcomes it may hold; fit"
                " the features again"
            )
        self.start = facts.start
        self._folder = folder

    @cached_property
    def known(self) -> ValueIds:
        """Numbers of items: rows of the vectors."""
        return ValueIds(self._folder / ITEMS)

    @cached_property
    def vectors(self) -> Floats:
        """Of the items, V x D; those of number 0, which stands for unknown ones, are zeros."""
        own = np.load(self._folder / VECTORS)
        return np.concatenate([np.zeros((1, own.shape[1]), np.float32), own])

    @cached_property
    def moments(self) -> tuple[Doubles, Doubles]:
        """Mean of the known items' vectors, D, and a root of their covariance, D x D.

        Of a state s, the inner products with all items have the mean s m and the deviation |s root|.
        """
        own = self.vectors[1:].astype(np.float64)
        mean = own.mean(axis=0)
        variances, axes = np.linalg.eigh((own - mean).T @ (own - mean) / len(own))
        root = axes * np.sqrt(np.maximum(variances, 0.0))
        return mean, root

    @cached_property
    def _encoder(self) -> InferenceSession:
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return InferenceSession(self._folder / ENCODER, options, providers=["CPUExecutionProvider"])

    def scores(self, sessions: pl.Series, items: pl.Series) -> Floats:
        """Return how many deviations an item's inner product with its session's state is above the mean of all items.

        Args:
            sessions: Lists of items, newest first.
            items: One for each.

        Returns:
            Shape (R,); 0 where the item, or every item of the session, is not known.
        """
        found = np.zeros(len(items), np.float32)
        for first in range(0, len(items), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            found[some] = self._scores(_padded(map_values(sessions[some], self.known.ids)), items[some])
        return found

    def _scores(self, sessions_RL: Ints, items: pl.Series) -> Floats:  # noqa: N803 - see the module
        items_R = self.known.ids(items).to_numpy()  # noqa: N806
        wanted = np.flatnonzero((items_R > 0) & (sessions_RL > 0).any(axis=1))
        found = np.zeros(len(items_R), np.float32)
        if not len(wanted):
            return found
        sessions_UL, runs = np.unique(sessions_RL[wanted], axis=0, return_inverse=True)  # noqa: N806
        states_UD, (mean_D, root_DD) = self._states(sessions_UL), self.moments  # noqa: N806
        means_U = states_UD @ mean_D  # noqa: N806
        spreads_U = np.maximum(np.sqrt(np.square(states_UD @ root_DD).sum(axis=1)), _LEAST_SPREAD)  # noqa: N806
        runs = runs.ravel()
        products = (states_UD[runs] * self.vectors[items_R[wanted]]).sum(axis=1)
        found[wanted] = (products - means_U[runs]) / spreads_U[runs]
        return found

    def _states(self, sessions_UL: Ints) -> Doubles:  # noqa: N803
        lengths = (sessions_UL >= 0).sum(axis=1).astype(np.int64)
        found = np.empty((len(lengths), self.vectors.shape[1]))
        order = np.argsort(lengths, kind="stable")
        events, counts = (one.name for one in self._encoder.get_inputs())
        for first in range(0, len(order), _AT_ONCE):
            some = order[first : first + _AT_ONCE]
            numbers = np.maximum(sessions_UL[some, : int(lengths[some].max())], 0)
            given = {events: self.vectors[numbers].astype(np.float64), counts: lengths[some]}
            (found[some],) = self._encoder.run(None, given)
        return found

    def nodes(self, graph: Graph, sessions: str, runs: str, items: str) -> str:
        """Compile the scores; return them as FP64, shape (R,).

        Args:
            graph: Takes the nodes.
            sessions: Codes of the sessions' items, U x L, padded with NO_CODE.
            runs: Number of each row's session, R.
            items: Codes of the rows' items, R.
        """
        add = graph.add
        codes = vocabulary_codes("items of sessions", self.known.values)
        sessions_UL, items_R = (  # noqa: N806
            add("LabelEncoder", tensor, domain=ML, keys_int64s=codes, default_int64=0,
                values_int64s=np.arange(1, len(codes) + 1))
            for tensor in (sessions, items)
        )  # fmt: skip
        there = add("Cast", add("Not", add("Equal", sessions, np.array([NO_CODE]))), to=_INT64)
        lengths_U = add("ReduceSum", there, np.array([1]), keepdims=0)  # noqa: N806
        vectors_VD = add("Identity", self.vectors)  # noqa: N806
        events_ULD = add("Cast", add("Gather", vectors_VD, sessions_UL, axis=0), to=_DOUBLE)  # noqa: N806
        states_UD = inlined(graph, self._folder / ENCODER, [events_ULD, lengths_U])  # noqa: N806
        mean_D, root_DD = self.moments  # noqa: N806
        means_U = add("MatMul", states_UD, mean_D)  # noqa: N806
        along_UD = add("MatMul", states_UD, root_DD)  # noqa: N806
        squares_U = add("ReduceSum", add("Mul", along_UD, along_UD), np.array([1]), keepdims=0)  # noqa: N806
        spreads_U = add("Max", add("Sqrt", squares_U), np.array(_LEAST_SPREAD))  # noqa: N806
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
    """The models of an operation, each for the rows from its start to the start of the next one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def all(self) -> tuple[SessionModel, ...]:
        """The models, in time order.

        Raises:
            IntegrityError: One learnt what its first rows could not know, or files are missing.
        """
        return tuple(SessionModel(self._folder / name) for name in self._index["models"])

    @property
    def _index(self) -> Mapping[str, Any]:
        return read_json(self._folder / INDEX)

    def write_index(self, models: list[str], served_from: date, timezone: str) -> None:
        """Write which models there are.

        Args:
            models: Names of folders, in time order.
            served_from: First day whose rows an exported graph meets: the first one of validation.
            timezone: In which it begins.
        """
        served = microseconds(start_of(served_from, timezone))
        write_json(self._folder / INDEX, {"models": models, "served_from": served})

    def scores(self, times: pl.Series, sessions: pl.Series, items: pl.Series) -> Floats:
        """Return each row's score by the model of its time; 0 before the first one. See `SessionModel.scores`."""
        on_cpu("scores of sessions (ONNX Runtime)")
        starts = np.array([model.start for model in self.all], np.int64)
        places = np.searchsorted(starts, times.dt.epoch("us").to_numpy(), side="right") - 1
        found = np.zeros(len(items), np.float32)
        for number, model in enumerate(self.all):
            rows = np.flatnonzero(places == number)
            if len(rows):
                found[rows] = model.scores(sessions.gather(rows), items.gather(rows))
        return found

    def nodes(self, graph: Graph, times: str, sessions: str, runs: str, items: str) -> str:
        """Compile the scores of all rows that an exported graph meets; return them as FP64, shape (R,).

        Args:
            graph: Takes the nodes.
            times: Of the rows, FP64, in microseconds, R.
            sessions: See `SessionModel.nodes`, likewise the others.
            runs: Number of each row's session.
            items: Codes of the rows' items.
        """
        served_from = self._index["served_from"]
        last_before = max((number for number, model in enumerate(self.all) if model.start <= served_from), default=0)
        found = ""
        for model in self.all[last_before:]:
            own = model.nodes(graph, sessions, runs, items)
            is_later = graph.add("Not", graph.add("Less", times, np.array(float(model.start))))
            found = graph.add("Where", is_later, own, found or np.zeros(1))
        return found


def inlined(graph: Graph, path: Path, inputs: list[str]) -> str:
    """Add the nodes of a file, whose nodes have one output each, to a graph; return the tensor of its output.

    Args:
        graph: Takes the nodes.
        path: An ONNX file with one output.
        inputs: Tensors that take the place of its inputs, in order.
    """
    import onnx
    from onnx import helper, numpy_helper

    read = onnx.load(path).graph
    tensors: dict[str, str | np.ndarray] = {
        **{one.name: numpy_helper.to_array(one) for one in read.initializer},
        **dict(zip((one.name for one in read.input), inputs, strict=True)),
    }
    for node in read.node:
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        (output,) = node.output
        tensors[output] = graph.add(
            node.op_type, *(tensors[name] for name in node.input), domain=node.domain, **attributes
        )
    found = tensors[read.output[0].name]
    assert isinstance(found, str)
    return found


def _padded(lists: pl.Series) -> Ints:
    """Return lists of ids as a matrix, at least one column wide, padded with -1."""
    lengths = lists.list.len().to_numpy()
    places = np.arange(max(1, int(lengths.max(initial=0))))
    found = np.full((len(lists), len(places)), -1, np.int32)
    found[places < lengths[:, None]] = lists.explode(empty_as_null=False, keep_nulls=False).to_numpy()
    return found


_INT64: Final = 7
"""As ONNX numbers it; likewise FP64."""
_DOUBLE: Final = 11
