"""The features of a model computed inside an ONNX graph, exactly as `Transformer.compute` computes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from shortlist.config.features import Feature, Hash, Similarity, Vector, Vocabulary
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.standing import MeanView
from shortlist.serving.export.ids import Ids, crosses_of
from shortlist.serving.export.inputs import Inputs, tensors_of
from shortlist.serving.export.nodes import ExportError, Nodes, tensor_info
from shortlist.serving.export.numbers import Numbers, kind_of
from shortlist.serving.export.signature import Signature


class FeatureGraph:
    """Grows the nodes that compute the features a model asks for, and nothing else.

    Attributes:
        nodes: The graph; a model adds its own nodes.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.nodes = Nodes()
        plan = preprocessing.plan
        self._widths = preprocessing.widths
        self._inputs = Inputs(self.nodes, plan.declared)
        self._numbers = Numbers(self.nodes, self._inputs, preprocessing.moments)
        self._ids = Ids(self.nodes, self._inputs, preprocessing.vocabularies)
        self._by_name: dict[str, tuple[Feature, int]] = {
            name: (feature, number) for feature in plan.features for number, name in enumerate(feature.outputs)
        }
        self._kinds = {output.name: output.kind for output in plan.outputs}
        self._border: list[str] = []

    def floats(self, names: Sequence[str]) -> str:
        """Return features as one FP32 matrix, shape (rows, floats); null is NaN, ids are numbers.

        Args:
            names: Features of kind dense, id or vector; a vector takes as many columns as it is wide.

        Raises:
            ExportError: A feature cannot be computed inside a graph.
        """
        lists = [name for name in names if self._kind(name) == "ids"]
        if lists:
            raise ExportError(
                f"features: {', '.join(lists)}: no matrix of floats can hold lists of ids; leave them out"
            )
        narrow = [name for name in names if self._kind(name) != "vector"]
        turned = self._narrow(narrow) if narrow else ""
        pieces: list[str] = []
        for is_vector, run in groupby(names, lambda name: self._kind(name) == "vector"):
            members = list(run)
            if is_vector:
                pieces += [self._vector(name) for name in members]
            else:
                numbers = [narrow.index(name) for name in members]
                pieces.append(self.nodes.turned(self.nodes.picked(turned, numbers, len(narrow))))
        return self.nodes.joined(pieces, axis=1)

    def ids(self, names: Sequence[str]) -> str:
        """Return features of kind id as one INT64 matrix, shape (rows, names).

        Raises:
            ExportError: A feature cannot be computed inside a graph.
        """
        return self.nodes.turned(self._turned_ids(names))

    def lists(self, name: str) -> tuple[str, str]:
        """Return the ids of a feature of kind ids, INT64, shape (rows, longest), and where there is one, BOOL.

        Raises:
            ExportError: The feature cannot be computed inside a graph.
        """
        feature, number = self._by_name[name]
        assert isinstance(feature, Vocabulary | Hash)
        return self._ids.tags(feature, feature.each[number])

    def border(self, tensor: str, name: str, dtype: type[np.generic], width: int | str) -> str:
        """Name a tensor at which the features end: `shortlist.serving.export.cut` cuts there.

        Args:
            tensor: Shape (rows, width).
            name: Of this model's tensors at the border.
            dtype: Its type.
            width: Its columns; a text where they vary.
        """
        self._border.append(f"border_{name}")
        return self.nodes.described(tensor, self._border[-1], dtype, width)

    def finished(self, output: str, name: str, width: int, model: str, kind: str) -> tuple[Any, Signature]:
        """Return the whole graph (an ONNX `ModelProto`) and what it reads.

        Args:
            output: The tensor to answer, FP32, shape (rows, width).
            name: Under which it is answered.
            width: Its columns.
            model: The spec's name.
            kind: Of the model.
        """
        signature = self._inputs.signature(model, kind).model_copy(update={"border": tuple(self._border)})
        renamed = self.nodes.add_named("Identity", output, name)
        return self.nodes.model(tensors_of(signature), [tensor_info(renamed, np.float32, width)]), signature

    def _narrow(self, names: Sequence[str]) -> str:
        """Return numbers and ids as FP32, shape (names, rows)."""
        groups: dict[tuple[type, bool], list[str]] = {}
        for name in names:
            if self._kind(name) == "dense":
                groups.setdefault(kind_of(self._by_name[name][0]), []).append(name)
        closeness = groups.pop((Similarity, False), [])
        found = [name for members in groups.values() for name in members]
        blocks = []
        if found:
            tensors = [self._numbers.block([self._by_name[name] for name in members]) for members in groups.values()]
            blocks.append(self.nodes.cast(self.nodes.joined(tensors), np.float32))
        blocks += [self.nodes.turned(self._similarity(name)) for name in closeness]
        ids = [name for name in names if self._kind(name) == "id"]
        if ids:
            blocks.append(self.nodes.cast(self._turned_ids(ids), np.float32))
        return self._in_order(blocks, [*found, *closeness, *ids], names)

    def _turned_ids(self, names: Sequence[str]) -> str:
        """Return ids, shape (names, rows)."""
        groups: dict[int, list[str]] = {}
        for name in names:
            feature, number = self._by_name[name]
            columns = 0 if isinstance(feature, Vocabulary) else len(crosses_of(feature, number)[0])
            groups.setdefault(columns, []).append(name)
        blocks = []
        for columns, members in groups.items():
            wanted = [self._by_name[name] for name in members]
            if columns:
                blocks.append(self._ids.hashed([crosses_of(feature, number) for feature, number in wanted]))
            else:
                blocks.append(self._ids.vocabulary([feature.inputs[number] for feature, number in wanted]))
        return self._in_order(blocks, [name for members in groups.values() for name in members], names)

    def _vector(self, name: str) -> str:
        feature, number = self._by_name[name]
        assert isinstance(feature, Vector)
        column = feature.each[number]
        vectors = self._inputs.vector(self._inputs.declared.place(column), self._widths[column])
        return self._normalised(vectors) if feature.normalise else vectors

    def _similarity(self, name: str) -> str:
        feature, _ = self._by_name[name]
        assert isinstance(feature, Similarity)
        width, view = self._widths[feature.vector], MeanView((), feature.list, feature.vector)
        places = (self._inputs.declared.place(feature.vector), f"{view.name}:{view.features[0]}")
        item, history = (self._normalised(self._inputs.vector(place, width)) for place in places)
        products = self.nodes.add("Mul", item, history)
        return self.nodes.add("ReduceSum", products, np.array([1]), keepdims=1)

    def _normalised(self, vectors: str) -> str:
        add = self.nodes.add
        length = add("Sqrt", add("ReduceSum", add("Mul", vectors, vectors), np.array([1]), keepdims=1))
        positive = add("Greater", length, np.zeros(1, np.float32))
        return add("Div", vectors, add("Where", positive, length, np.ones(1, np.float32)))

    def _in_order(self, blocks: Sequence[str], found: Sequence[str], names: Sequence[str]) -> str:
        return self.nodes.picked(self.nodes.joined(blocks), [found.index(name) for name in names], len(found))

    def _kind(self, name: str) -> str:
        if name not in self._kinds:
            raise ExportError(f"features: the model reads '{name}', which its preprocessing does not make; train again")
        return self._kinds[name]
