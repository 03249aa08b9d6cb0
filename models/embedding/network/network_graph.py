"""The common nodes of the exported graphs of networks over embedded ids: table, lists, floats and perceptrons."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar, cast

import numpy as np
from safetensors.torch import load_file
from torch import nn

from models.embedding.network.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.network.heads import MixtureOfExperts
from models.embedding.reading.layout import AttendedSequence, Layout
from models.embedding_section import EmbeddingSection
from models.modalities import UnitLength, VectorColumns
from shortlist.ranking.record import TrainedModel
from shortlist.serving.export.graph import FeatureGraph
from shortlist.slates.retrieval.vector_content import EPSILON
from shortlist.storage.artefacts import IntegrityError

WEIGHTS: Final = "weights.safetensors"
_LARGEST = np.float32(np.finfo(np.float32).max)

NetworkT = TypeVar("NetworkT", bound=EmbeddingNetwork)
ModelT = TypeVar("ModelT", bound=EmbeddingModel)


def read_model(
    record: TrainedModel, folder: Path, model: type[ModelT], section: type[EmbeddingSection],
    attended: AttendedSequence | None = None,
) -> tuple[Layout, ModelT]:  # fmt: skip
    """Return the layout and the model in a folder, in evaluation mode.

    Raises:
        IntegrityError: The weights do not fit the record.
    """
    layout = Layout.from_features(record.features, attended=attended)
    network_model = model(layout, section.model_validate(record.params))
    try:
        network_model.load_state_dict(load_file(folder / WEIGHTS))
    except RuntimeError as error:
        raise IntegrityError(f"{folder / WEIGHTS}: does not fit model.json: {error}") from None
    return layout, network_model.eval()


class NetworkGraph(Generic[NetworkT]):
    """Adds a network to a graph, float32; a kind sets the two types and implements `logits`, its `forward`.

    Shapes: R rows, F floats, S single ids, L longest list, D width, I inputs.
    """

    model_type: ClassVar[type[EmbeddingModel]]
    section_type: ClassVar[type[EmbeddingSection]]

    @classmethod
    def add_network(cls, graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
        """Add the features and the network of a model; return the tensor of its log-odds, shape (rows, 1).

        Args:
            graph: The graph that the nodes are added to.
            record: Names the features.
            folder: The model folder.
        """
        attended = cls._attended(cls.section_type.model_validate(record.params))
        layout, model = read_model(record, folder, cls.model_type, cls.section_type, attended)
        return cls(graph, layout, cast("NetworkT", model.network), model).logits()

    @classmethod
    def _attended(cls, section: EmbeddingSection) -> AttendedSequence | None:
        """Return the sequence that the network attends to, if any."""
        return None

    def __init__(self, graph: FeatureGraph, layout: Layout, network: NetworkT, model: EmbeddingModel) -> None:
        self._graph = graph
        self._add = graph.nodes.add
        self._layout = layout
        self._network = network
        table = model.table.weight_RD.numpy()
        self._width = table.shape[1]
        # One row of zeros behind the last, which places of a list without a value read.
        self._table = graph.nodes.constant(np.concatenate([table, np.zeros((1, self._width), np.float32)]))
        # Row numbers are INT32, OpenVINO's type and half the size of INT64: 2^31 rows of 16 bytes are 32 GiB.
        assert len(table) < np.iinfo(np.int32).max
        self._no_row = np.array([len(table)], np.int32)

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1; R x (1 + further labels)."""
        raise NotImplementedError

    def _join_inputs(self) -> str:
        """Return the standardised floats and all embeddings side by side, R x I."""
        # Single ids come first: without features of floats, they determine the number of rows.
        embedded = self._look_up_embeddings()
        flat = [self._add("Flatten", embedding, axis=1) for embedding in embedded]
        return self._add("Concat", self._standard(embedded), *flat, axis=1)

    def _look_up_embeddings(self) -> list[str]:
        """Return the embeddings, R x slots x D each."""
        starts, singles = self._layout.starts, self._layout.singles
        embeddings = []
        if singles:
            numbers_RS = self._add(
                "Add", self._graph.ids([feature.name for feature in singles]), np.array([starts[: len(singles)]])
            )
            rows_RS = self._rows(numbers_RS, "rows", len(singles))
            embeddings.append(self._add("Gather", self._table, rows_RS, axis=0))
        for number, feature in enumerate(self._layout.lists):
            embeddings.append(self._mean_of_list(number, feature.name, starts[len(singles) + number]))
        return embeddings

    def _mean_of_list(self, number: int, name: str, start: int) -> str:
        ids_RL, is_id_RL = self._graph.lists(name)
        numbers_RL = self._add("Add", ids_RL, np.array([start]))
        numbers_RL = self._add("Where", is_id_RL, numbers_RL, self._no_row.astype(np.int64))
        rows_RL = self._rows(numbers_RL, f"list_{number}", f"list_{number}")
        is_id_RL = self._add("Not", self._add("Equal", rows_RL, self._no_row))
        vectors_RLD = self._add("Gather", self._table, rows_RL, axis=0)
        sums_R1D = self._add("ReduceSum", vectors_RLD, np.array([1]), keepdims=1)
        is_id_RL = self._graph.nodes.cast(is_id_RL, np.float32)
        count_R1 = self._add("ReduceSum", is_id_RL, np.array([1]), keepdims=1)
        length_R1 = self._add("Max", count_R1, np.ones(1, np.float32))
        return self._add("Div", sums_R1D, self._add("Unsqueeze", length_R1, np.array([2])))

    def _rows(self, numbers: str, name: str, width: int | str) -> str:
        """Return row numbers of the table at the border between features and network."""
        return self._graph.border(self._graph.nodes.cast(numbers, np.int32), name, np.int32, width)

    def _standard(self, embedded: list[str]) -> str:
        """Return the standardised floats, R x F: null becomes the mean, 0; infinity the largest number, as in torch."""
        if not self._layout.dense and self._layout.history is None:
            return self._zeros(embedded)
        floats_RF = self._floats(embedded)
        centred_RF = self._add("Sub", floats_RF, self._network.mean_F.numpy()[None])
        scaled_RF = self._add("Mul", centred_RF, self._network.scale_F.numpy()[None])
        filled_RF = self._add("Where", self._add("IsNaN", scaled_RF), np.zeros(1, np.float32), scaled_RF)
        standard_RF = self._add("Clip", filled_RF, np.array(-_LARGEST), np.array(_LARGEST))
        vectors = self._network.vectors
        if vectors is not None:
            standard_RF = self._add("Concat", *self._normalise_vectors(standard_RF, vectors), axis=1)
        # The border is behind the scaling: bfloat16 keeps eight bits of a number, too few for a count or a date.
        standard_RF = self._graph.border(standard_RF, "floats", np.float32, self._layout.floats)
        return standard_RF if vectors is None else self._project_vectors(standard_RF, vectors)

    def _normalise_vectors(self, standard_RF: str, vectors: VectorColumns) -> list[str]:
        """Return the other floats, then every vector after its norm, R x W each."""
        plain = self._add("Gather", standard_RF, vectors.plain_P.numpy(), axis=1)
        parts = [self._columns(standard_RF, columns.start, columns.stop) for columns in vectors.slices]
        normed = [self._norm(norm, part) for norm, part in zip(vectors.modalities.norms, parts, strict=True)]
        return [*([plain] if len(vectors.plain_P) else []), *normed]

    def _norm(self, norm: nn.Module, vectors_RW: str) -> str:
        add = self._add
        if isinstance(norm, UnitLength):
            length_R1 = add("ReduceL2", vectors_RW, axes=[1], keepdims=1)
            return add("Div", vectors_RW, add("Max", length_R1, np.array(EPSILON, np.float32)))
        assert isinstance(norm, nn.LayerNorm)
        centred_RW = add("Sub", vectors_RW, add("ReduceMean", vectors_RW, axes=[1], keepdims=1))
        variance_R1 = add("ReduceMean", add("Mul", centred_RW, centred_RW), axes=[1], keepdims=1)
        deviation_R1 = add("Sqrt", add("Add", variance_R1, np.array(norm.eps, np.float32)))
        scaled_RW = add("Mul", add("Div", centred_RW, deviation_R1), norm.weight.detach().numpy())
        return add("Add", scaled_RW, norm.bias.detach().numpy())

    def _project_vectors(self, normed_RF: str, vectors: VectorColumns) -> str:
        """Return the other floats, then the projections of the vectors."""
        start, projected = len(vectors.plain_P), []
        plain = [self._columns(normed_RF, 0, start)] if start else []
        for layer in vectors.modalities.projections:
            assert isinstance(layer, nn.Linear)
            projected.append(self._linear(layer, self._columns(normed_RF, start, start + layer.in_features)))
            start += layer.in_features
        combined = [self._add("Sum", *projected)] if vectors.modalities.sums else projected
        return self._add("Concat", *plain, *combined, axis=1)

    def _columns(self, matrix: str, first: int, last: int) -> str:
        return self._add("Slice", matrix, np.array([first]), np.array([last]), np.array([1]))

    def _floats(self, embedded: list[str]) -> str:
        """Return the floats of the features, R x F."""
        if not self._layout.dense:
            return self._zeros(embedded)
        return self._graph.floats([feature.name for feature in self._layout.dense])

    def _zeros(self, embedded: list[str]) -> str:
        """Return a column of zeros, R x 1."""
        first = self._add("Slice", embedded[0], np.array([0, 0]), np.array([1, 1]), np.array([1, 2]))
        return self._add("Mul", self._add("Flatten", first, axis=1), np.zeros(1, np.float32))

    def _linear(self, layer: nn.Linear, inputs: str) -> str:
        weight, bias = (
            None if parameter is None else parameter.detach().numpy() for parameter in (layer.weight, layer.bias)
        )
        assert weight is not None
        return self._add("Gemm", inputs, weight, *([] if bias is None else [bias]), transB=1)

    def _apply_layers(self, network: nn.Module, inputs: str) -> str:
        if isinstance(network, MixtureOfExperts):
            return self._mixture_of_experts(network, inputs)
        for layer in network.children():
            if isinstance(layer, nn.Linear):
                inputs = self._linear(layer, inputs)
            elif isinstance(layer, nn.ReLU):
                inputs = self._add("Relu", inputs)
            else:
                assert isinstance(layer, nn.Dropout), f"no ONNX form of {layer}"  # does nothing when scoring
        return inputs

    def _mixture_of_experts(self, network: MixtureOfExperts, inputs: str) -> str:
        """Return the log-odds of H labels, R x H; each label weighs E experts of width W."""
        add, labels = self._add, network.towers.out_features
        outputs = [add("Unsqueeze", self._apply_layers(expert, inputs), np.array([1])) for expert in network.experts]
        experts_REW = add("Concat", *outputs, axis=1)
        shape = np.array([-1, labels, len(network.experts)])
        gates_RHE = add("Softmax", add("Reshape", self._linear(network.gates, inputs), shape), axis=2)
        mixed_RHW = add("MatMul", gates_RHE, experts_REW)
        weighted = add("Mul", mixed_RHW, network.towers.weight.detach().numpy())
        sums_RH = add("ReduceSum", weighted, np.array([2]), keepdims=0)
        return add("Add", sums_RH, network.towers.bias.detach().numpy())
