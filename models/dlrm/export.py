"""A DLRM as nodes of an ONNX graph, or as TorchScript."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from models.dlrm.layout import Layout
from models.dlrm.network import DLRM, InteractionNetwork
from models.dlrm.section import DLRMModel
from models.record import TrainedModel, read_record
from shortlist.serving.export.calibration import Calibration
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import ExportError
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError

WEIGHTS: Final = "weights.safetensors"
_LARGEST = np.float32(np.finfo(np.float32).max)


def add_network(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and the network of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: Gets the nodes.
        record: Names the features.
        folder: The model folder.
    """
    layout, model = _read(record, folder)
    return _Compiler(graph, layout, model).logits()


class _Compiler:
    """`models.dlrm.network` in ONNX's operators, float32.

    Shapes: R rows, F floats, S single ids, L longest list, D width, N interacting vectors, P pairs.
    """

    def __init__(self, graph: FeatureGraph, layout: Layout, model: DLRM) -> None:
        self._graph = graph
        self._add = graph.nodes.add
        self._layout = layout
        self._network = model.network
        table = model.table.weight_RD.numpy()
        self._width = table.shape[1]
        # One row of zeros behind the last: a place in a list where there is no value reads it.
        self._table = graph.nodes.constant(np.concatenate([table, np.zeros((1, self._width), np.float32)]))
        # Numbers of rows are INT32, half of what int64 moves, and OpenVINO's own: 2^31 rows of 16 bytes are 32 GiB.
        assert len(table) < np.iinfo(np.int32).max
        self._no_row = np.array([len(table)], np.int32)

    def logits(self) -> str:
        # Single ids come first: without any feature of floats, they say how many rows there are.
        embedded = self._embedded()
        bottom_RD = self._through(self._network.bottom, self._standard(embedded))
        bottom_R1D = self._add("Unsqueeze", bottom_RD, np.array([1]))
        vectors_RND = self._add("Concat", bottom_R1D, *embedded, axis=1)
        turned_RDN = self._add("Transpose", vectors_RND, perm=[0, 2, 1])
        dots_RNN = self._add("MatMul", vectors_RND, turned_RDN)
        pairs_RP = self._add(
            "Gather", self._add("Flatten", dots_RNN, axis=1), self._network.interaction.pairs_P.numpy(), axis=1
        )
        return self._through(self._network.top, self._add("Concat", bottom_RD, pairs_RP, axis=1))

    def _embedded(self) -> list[str]:
        """Return the embeddings, R x slots x D each."""
        starts, singles = self._layout.starts, self._layout.singles
        found = []
        if singles:
            numbers_RS = self._add(
                "Add", self._graph.ids([one.name for one in singles]), np.array([starts[: len(singles)]])
            )
            rows_RS = self._rows(numbers_RS, "rows", len(singles))
            found.append(self._add("Gather", self._table, rows_RS, axis=0))
        for number, feature in enumerate(self._layout.lists):
            found.append(self._mean_of_list(number, feature.name, starts[len(singles) + number]))
        return found

    def _mean_of_list(self, number: int, name: str, start: int) -> str:
        ids_RL, there_RL = self._graph.lists(name)
        numbers_RL = self._add("Add", ids_RL, np.array([start]))
        numbers_RL = self._add("Where", there_RL, numbers_RL, self._no_row.astype(np.int64))
        rows_RL = self._rows(numbers_RL, f"list_{number}", f"list_{number}")
        there_RL = self._add("Not", self._add("Equal", rows_RL, self._no_row))
        vectors_RLD = self._add("Gather", self._table, rows_RL, axis=0)
        sums_R1D = self._add("ReduceSum", vectors_RLD, np.array([1]), keepdims=1)
        there_RL = self._graph.nodes.cast(there_RL, np.float32)
        count_R1 = self._add("ReduceSum", there_RL, np.array([1]), keepdims=1)
        length_R1 = self._add("Max", count_R1, np.ones(1, np.float32))
        return self._add("Div", sums_R1D, self._add("Unsqueeze", length_R1, np.array([2])))

    def _rows(self, numbers: str, name: str, width: int | str) -> str:
        """Return the numbers of the table's rows at the border between features and network."""
        return self._graph.border(self._graph.nodes.cast(numbers, np.int32), name, np.int32, width)

    def _standard(self, embedded: list[str]) -> str:
        """Return the standardised floats, R x F: null is the mean, 0; infinity the largest number, as in torch."""
        if not self._layout.dense:
            first = self._add("Slice", embedded[0], np.array([0, 0]), np.array([1, 1]), np.array([1, 2]))
            return self._add("Mul", self._add("Flatten", first, axis=1), np.zeros(1, np.float32))
        floats_RF = self._graph.floats([feature.name for feature in self._layout.dense])
        centred_RF = self._add("Sub", floats_RF, self._network.mean_F.numpy()[None])
        scaled_RF = self._add("Mul", centred_RF, self._network.scale_F.numpy()[None])
        known_RF = self._add("Where", self._add("IsNaN", scaled_RF), np.zeros(1, np.float32), scaled_RF)
        standard_RF = self._add("Clip", known_RF, np.array(-_LARGEST), np.array(_LARGEST))
        # Behind the scaling: a network in bfloat16 keeps eight bits of a number, too few for a count or a date.
        return self._graph.border(standard_RF, "floats", np.float32, self._layout.floats)

    def _through(self, network: nn.Module, inputs: str) -> str:
        for layer in network.children():
            if isinstance(layer, nn.Linear):
                weight, bias = (tensor.detach().numpy() for tensor in (layer.weight, layer.bias))
                inputs = self._add("Gemm", inputs, weight, bias, transB=1)
            elif isinstance(layer, nn.ReLU):
                inputs = self._add("Relu", inputs)
            else:
                assert isinstance(layer, nn.Dropout), f"no ONNX form of {layer}"  # does nothing when scoring
        return inputs


class _Scoring(nn.Module):
    """Floats and ids to probabilities, without anything that depends on the number of rows: a trace would freeze it."""

    table_RD: Tensor
    starts_S: Tensor

    def __init__(self, layout: Layout, model: DLRM) -> None:
        super().__init__()
        self.network: InteractionNetwork = model.network
        table = model.table.weight_RD
        self.register_buffer("table_RD", torch.cat([table, torch.zeros(1, table.shape[1])]))
        self.register_buffer("starts_S", torch.tensor(layout.starts[: len(layout.singles)], dtype=torch.int64))
        self._list_starts = layout.starts[len(layout.singles) :]
        self._no_row = layout.rows

    def forward(self, dense_BF: Tensor, ids_BS: Tensor, *lists_BL: Tensor) -> Tensor:
        """Return the probabilities, shape (B, 1)."""
        own = self.network
        bottom_BD = own.bottom(torch.nan_to_num((dense_BF - own.mean_F) * own.scale_F, nan=0.0))
        lists_B1D = [self._mean(ids_BL, start) for ids_BL, start in zip(lists_BL, self._list_starts, strict=True)]
        singles_BSD = self.table_RD[ids_BS + self.starts_S]
        vectors_BND = torch.cat([bottom_BD.unsqueeze(1), singles_BSD, *lists_B1D], dim=1)
        dots_BNN = torch.bmm(vectors_BND, vectors_BND.transpose(1, 2))
        pairs_BP = dots_BNN.flatten(1).index_select(1, own.interaction.pairs_P)
        return torch.sigmoid(own.top(torch.cat([bottom_BD, pairs_BP], dim=1)))

    def _mean(self, ids_BL: Tensor, start: int) -> Tensor:
        there_BL = ids_BL >= 0
        rows_BL = torch.where(there_BL, ids_BL + start, self._no_row)
        length_B1 = there_BL.sum(dim=1, keepdim=True).clamp(min=1)
        return (self.table_RD[rows_BL].sum(dim=1) / length_B1).unsqueeze(1)


def write_torchscript(model: Path, version: int, serving: Serving, out: Path) -> None:
    """Write a registered version's network as one TorchScript file; see `export_torchscript`."""
    export_torchscript(model, out)


def export_torchscript(folder: Path, out: Path) -> None:
    """Write a DLRM without its features as TorchScript, for Triton's PyTorch backend (`model.pt`).

    It is an extra: TorchScript is an archive of code, so it never lies in a model folder.

    Inputs, in order: `INPUT__0` FP32 (rows, floats), NaN for null, features in the model's order; `INPUT__1` INT64
    (rows, single ids); then one INT64 (rows, longest) per multi-valued feature, padded with -1. Output: `OUTPUT__0`
    FP32 (rows, 1), the probability.

    Args:
        folder: A model folder.
        out: File to write.
    """
    if Calibration.read(folder) is not None:
        raise ExportError(
            f"{folder}: the model is calibrated, which its TorchScript form does not compute; serve its ONNX form, or"
            " declare calibration: none"
        )
    layout, model = _read(read_record(folder), folder)
    scoring = _Scoring(layout, model).eval()
    example = (
        torch.zeros(2, layout.floats),
        torch.zeros(2, len(layout.singles), dtype=torch.int64),
        *(torch.zeros(2, 3, dtype=torch.int64) for _ in layout.lists),
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has no successor that Triton's backend reads
        torch.jit.trace(scoring, example).save(str(out))  # type: ignore[no-untyped-call]


def _read(record: TrainedModel, folder: Path) -> tuple[Layout, DLRM]:
    layout = Layout.of(record.features)
    model = DLRM(layout, DLRMModel.model_validate(record.params))
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except RuntimeError as error:
        raise IntegrityError(f"{folder / WEIGHTS}: does not fit model.json: {error}") from None
    return layout, model.eval()
