"""Splits an exported graph into two files where its features end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from shortlist.serving.export.signature import LOG_ODDS
from shortlist.storage.artefacts import IntegrityError

if TYPE_CHECKING:
    from onnx import ModelProto

FEATURES_FILE: Final = "features.onnx"
NETWORK_FILE: Final = "network.onnx"


def write_features(graph: Path, border: tuple[str, ...], out: Path) -> None:
    """Write the part of a graph that computes the features, from its inputs to the tensors at the border.

    External weights are not copied: the part refers to a file of the same name in its own folder.

    Args:
        graph: The whole graph.
        border: `Signature.border`.
        out: Folder to write to.

    Raises:
        IntegrityError: The graph is missing or broken.
    """
    _write(graph, (), border, out / FEATURES_FILE)


def write_network(graph: Path, border: tuple[str, ...], out: Path) -> None:
    """Write the trained part of a graph, from the tensors at the border to the log-odds; see `write_features`."""
    _write(graph, border, (LOG_ODDS,), out / NETWORK_FILE)


def read_graph(graph: Path) -> ModelProto:
    """Return a graph without its external weights.

    Raises:
        IntegrityError: It is missing or broken.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(graph, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise IntegrityError(f"{graph}: is no readable graph ({error}); export the model again") from None


def _write(graph: Path, inputs: tuple[str, ...], outputs: tuple[str, ...], path: Path) -> None:
    from onnx.utils import Extractor

    model = read_graph(graph)
    names = list(inputs) or [tensor.name for tensor in model.graph.input]
    part = Extractor(model).extract_model(names, list(outputs))
    path.write_bytes(part.SerializeToString(deterministic=True))
