"""ONNX graph of a model's features, with the same results as `Transformer.compute`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from shortlist.features.declared.feature_interfaces import IdOutputs, SinglePrecisionNodes, VectorOutputs
from shortlist.features.declared.feature_kind import FeatureKind
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.serving.export.graph_builder import ROWS, ExportError, GraphBuilder, tensor_info
from shortlist.serving.export.graph_inputs import GraphInputs, describe_tensors
from shortlist.serving.export.signature import Signature


class FeatureGraph:
    """Adds the nodes that compute the features a model reads.

    Attributes:
        nodes: Builder of the graph, to which a model adds its own nodes.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.nodes = GraphBuilder()
        plan = preprocessing.plan
        self._fitted = preprocessing.fitted
        self._inputs = GraphInputs(self.nodes, plan.declared)
        self._by_name: dict[str, tuple[FeatureKind, int]] = {
            name: (feature, number) for feature in plan.features for number, name in enumerate(feature.outputs)
        }
        self._kinds = {output.name: output.kind for output in plan.outputs}
        self._border: list[str] = []
        self._is_cut = True

    def floats(self, names: Sequence[str]) -> str:
        """Return features as one FP32 matrix, shape (rows, floats); null and the unknown id, 0, are NaN.

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
        transposed = self._narrow(narrow) if narrow else ""
        blocks: list[str] = []
        for is_vector, run in groupby(names, lambda name: self._kind(name) == "vector"):
            members = list(run)
            if is_vector:
                blocks += [self._vector(name) for name in members]
            else:
                numbers = [narrow.index(name) for name in members]
                blocks.append(self.nodes.transposed(self.nodes.gathered(transposed, numbers, len(narrow))))
        return self.nodes.joined(blocks, axis=1)

    def ids(self, names: Sequence[str]) -> str:
        """Return features of kind id as one INT64 matrix, shape (rows, names).

        Raises:
            ExportError: A feature cannot be computed inside a graph.
        """
        return self.nodes.transposed(self._transposed_ids(names))

    def lists(self, name: str) -> tuple[str, str]:
        """Return the ids of a feature of kind ids, INT64, shape (rows, longest), and the mask of filled positions.

        Raises:
            ExportError: The feature cannot be computed inside a graph.
        """
        feature, number = self._by_name[name]
        assert isinstance(feature, IdOutputs), f"{feature.title} has no ids"
        return feature.list_nodes(self._inputs, self._fitted, number)

    def lists_by_run(self, name: str) -> tuple[str, str, str]:
        """Return what `lists` returns, once per run of rows with the same list, and the run number of each row.

        All rows of a request have the same user, whose lists are then encoded once.

        Returns:
            Ids, INT64, shape (runs, longest); the mask of the filled positions; run numbers, INT64, shape (rows,).

        Raises:
            ExportError: The feature cannot be computed inside a graph, or depends on several lists.
        """
        with self._inputs.by_run() as runs:
            ids, is_filled = self.lists(name)
        if len(runs) != 1:
            raise ExportError(f"features: '{name}' follows from {len(runs)} lists; wanted one")
        return ids, is_filled, runs[0]

    def border(self, tensor: str, name: str, dtype: type[np.generic], width: int | str, rows: str = ROWS) -> str:
        """Name a tensor at which the features end; `shortlist.serving.export.graph_split` cuts there.

        Args:
            tensor: Tensor of shape (rows, width).
            name: Name of the tensor at the border.
            dtype: Its type.
            width: Number of its columns; a dimension name if it varies.
            rows: Name of its first dimension, if its rows are not those of the request.
        """
        if not self._is_cut:
            return tensor
        self._border.append(f"border_{name}")
        return self.nodes.add_described(tensor, self._border[-1], dtype, width, rows)

    def run_whole(self) -> None:
        """Add no further borders: a graph of several models is not cut."""
        self._is_cut = False

    def finished(self, output: str, name: str, width: int, model: str, kind: str) -> tuple[Any, Signature]:
        """Return the complete graph (an ONNX `ModelProto`) and its signature.

        Args:
            output: Output tensor, FP32, shape (rows, width).
            name: Name of the output.
            width: Number of its columns.
            model: Name of the spec.
            kind: Kind of the model.
        """
        signature = self._inputs.signature(model, kind).model_copy(update={"border": tuple(self._border)})
        output_tensor = self.nodes.add_named("Identity", output, name)
        return self.nodes.model(describe_tensors(signature), [tensor_info(output_tensor, np.float32, width)]), signature

    def _narrow(self, names: Sequence[str]) -> str:
        """Return numbers and ids as FP32, shape (names, rows); the unknown id, 0, is NaN."""
        dense = [name for name in names if self._kind(name) == "dense"]
        single = [name for name in dense if isinstance(self._by_name[name][0], SinglePrecisionNodes)]
        double = [name for name in dense if name not in single]
        ids = [name for name in names if self._kind(name) == "id"]
        blocks, block_names = [], []
        for members, is_single in ((double, False), (single, True), (ids, False)):
            if members:
                block, order = self._add_compiled(members)
                block = block if is_single else self.nodes.cast(block, np.float32)
                if members is ids:
                    is_unknown = self.nodes.add("Equal", block, np.zeros(1, np.float32))
                    block = self.nodes.add("Where", is_unknown, np.array([np.nan], np.float32), block)
                blocks.append(block)
                block_names += order
        return self._in_order(blocks, block_names, names)

    def _transposed_ids(self, names: Sequence[str]) -> str:
        """Return ids, shape (names, rows)."""
        block, order = self._add_compiled(names)
        return self._in_order([block], order, names)

    def _add_compiled(self, names: Sequence[str]) -> tuple[str, list[str]]:
        """Return numbers or ids, shape (names, rows), grouped by features that share nodes, and their order."""
        groups: dict[Hashable, list[str]] = {}
        for name in names:
            groups.setdefault(self._by_name[name][0].group, []).append(name)
        blocks = []
        for members in groups.values():
            outputs = [self._by_name[name] for name in members]
            blocks.append(outputs[0][0].nodes(self._inputs, self._fitted, outputs))
        return self.nodes.joined(blocks), [name for members in groups.values() for name in members]

    def _vector(self, name: str) -> str:
        feature, number = self._by_name[name]
        assert isinstance(feature, VectorOutputs), f"{feature.title} has no vectors"
        return feature.vector_nodes(self._inputs, self._fitted, number)

    def _in_order(self, blocks: Sequence[str], block_names: Sequence[str], names: Sequence[str]) -> str:
        return self.nodes.gathered(
            self.nodes.joined(blocks), [block_names.index(name) for name in names], len(block_names)
        )

    def _kind(self, name: str) -> str:
        if name not in self._kinds:
            raise ExportError(f"features: the model reads '{name}', which its preprocessing does not make; train again")
        return self._kinds[name]
