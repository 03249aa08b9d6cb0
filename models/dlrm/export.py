"""A DLRM as nodes of an ONNX graph, or as TorchScript."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.dlrm.network import DLRM, InteractionNetwork
from models.dlrm.section import DLRMModel
from models.embedding.network.network_graph import NetworkGraph, read_model
from models.embedding.reading.layout import Layout
from shortlist.ranking.record import read_record
from shortlist.serving.export.calibration import Calibration
from shortlist.serving.export.graph_builder import ExportError
from shortlist.spec.serving import Serving


class InteractionGraph(NetworkGraph[InteractionNetwork]):
    """`models.dlrm.network` in ONNX's operators; N interacting vectors, P pairs."""

    model_type = DLRM
    section_type = DLRMModel

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        # Single ids come first: without features of floats, they determine the number of rows.
        embedded = self._look_up_embeddings()
        bottom_RD = self._apply_layers(self._network.bottom, self._standard(embedded))
        bottom_R1D = self._add("Unsqueeze", bottom_RD, np.array([1]))
        vectors_RND = self._add("Concat", bottom_R1D, *embedded, axis=1)
        turned_RDN = self._add("Transpose", vectors_RND, perm=[0, 2, 1])
        dots_RNN = self._add("MatMul", vectors_RND, turned_RDN)
        pairs_RP = self._add(
            "Gather", self._add("Flatten", dots_RNN, axis=1), self._network.interaction.pairs_P.numpy(), axis=1
        )
        return self._apply_layers(self._network.top, self._add("Concat", bottom_RD, pairs_RP, axis=1))


class _Scoring(nn.Module):
    """Computes probabilities without operations that depend on the number of rows, which a trace would freeze."""

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
        network = self.network
        standard_BF = torch.nan_to_num((dense_BF - network.mean_F) * network.scale_F, nan=0.0)
        bottom_BD = network.bottom(standard_BF if network.vectors is None else network.vectors(standard_BF))
        lists_B1D = [self._mean(ids_BL, start) for ids_BL, start in zip(lists_BL, self._list_starts, strict=True)]
        singles_BSD = self.table_RD[ids_BS + self.starts_S]
        vectors_BND = torch.cat([bottom_BD.unsqueeze(1), singles_BSD, *lists_B1D], dim=1)
        dots_BNN = torch.bmm(vectors_BND, vectors_BND.transpose(1, 2))
        pairs_BP = dots_BNN.flatten(1).index_select(1, network.interaction.pairs_P)
        return torch.sigmoid(network.top(torch.cat([bottom_BD, pairs_BP], dim=1)))

    def _mean(self, ids_BL: Tensor, start: int) -> Tensor:
        is_id_BL = ids_BL >= 0
        rows_BL = torch.where(is_id_BL, ids_BL + start, self._no_row)
        length_B1 = is_id_BL.sum(dim=1, keepdim=True).clamp(min=1)
        return (self.table_RD[rows_BL].sum(dim=1) / length_B1).unsqueeze(1)


def write_torchscript(model: Path, version: int, serving: Serving, out: Path) -> None:
    """Write a registered version's network as one TorchScript file; see `export_torchscript`."""
    export_torchscript(model, out)


def export_torchscript(folder: Path, out: Path) -> None:
    """Write a DLRM without its features as TorchScript, for Triton's PyTorch backend (`model.pt`).

    TorchScript is an archive of code, so the file is never written into a model folder.

    Inputs, in order: INPUT__0, FP32 (rows, floats), NaN for null, features in the model's order; INPUT__1, INT64
    (rows, single ids); then one INT64 (rows, longest) per multi-valued feature, padded with -1. Output: OUTPUT__0,
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
    if read_record(folder).labels:
        raise ExportError(
            f"{folder}: the model has further labels, which its TorchScript form does not answer; serve its ONNX form"
        )
    layout, model = read_model(read_record(folder), folder, DLRM, DLRMModel)
    scoring = _Scoring(layout, model).eval()
    example = (
        torch.zeros(2, layout.floats),
        torch.zeros(2, len(layout.singles), dtype=torch.int64),
        *(torch.zeros(2, 3, dtype=torch.int64) for _ in layout.lists),
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has no successor that Triton's backend reads
        torch.jit.trace(scoring, example).save(str(out))  # type: ignore[no-untyped-call]
