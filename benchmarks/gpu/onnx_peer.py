"""ONNX Runtime scoring the network that we export for serving: what Triton's ONNX backend does with a batch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.bench import Line
from benchmarks.gpu.published import Configuration, published
from benchmarks.gpu.setting import Findings
from benchmarks.gpu.timing import latency_p50
from models.dlrm.network import DLRM

_MOST_ROWS: Final = 50_000
"""Of a table: one ONNX file holds 2 GiB, and what look-ups cost does not depend on rows that lie in memory."""
_TOLERANCE: Final = 5e-3
"""Of a probability; the CUDA provider multiplies float32 in TF32."""


def onnx_lines(findings: Findings, sizes: Sequence[int]) -> list[Line]:
    """Return the rates of ONNX Runtime on the device; a note where it is not installed for it."""
    provider = "CUDAExecutionProvider" if findings.setting.on_gpu else "CPUExecutionProvider"
    missing = _missing(provider)
    if missing:
        findings.notes.append(f"ONNX Runtime: {missing}")
        return []
    import onnxruntime

    setting = findings.setting
    configuration = published(setting)
    configuration = Configuration(
        tuple(min(size, _MOST_ROWS) for size in configuration.sizes), configuration.floats, configuration.section
    )
    torch.manual_seed(17)
    model = DLRM(configuration.layout, configuration.section).eval()
    random = np.random.default_rng(17)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        _export(configuration, model, path)
        session = onnxruntime.InferenceSession(str(path), providers=[provider])
        for size in sizes:
            floats = random.standard_normal((size, configuration.floats)).astype(np.float32)
            ids = np.stack([random.integers(0, rows, size) for rows in configuration.sizes], axis=1)
            feeds = {"floats": floats, "ids": ids}
            off = float(np.abs(session.run(None, feeds)[0][:, 0] - _scores(configuration, model, floats, ids)).max())
            findings.expect(f"{size:,} rows, {provider}, scores", off <= _TOLERANCE, f"{off:.1e} from ours")
            p50 = latency_p50(lambda feeds=feeds: session.run(None, feeds), setting, 50)
            name = f"{size:,} rows, ONNX Runtime, {provider}, host to host"
            lines.append(Line("inference", name, round(size / p50), "rows/s"))
    return lines


def _missing(provider: str) -> str:
    for package in ("onnx", "onnxruntime"):
        if find_spec(package) is None:
            return f"the package {package} is not installed"
    import onnxruntime

    providers = onnxruntime.get_available_providers()
    return "" if provider in providers else f"this build has no {provider} ({', '.join(providers)})"


class _GraphInputs:
    """Stands where `models.dlrm.export` expects computed features: they are inputs."""

    def __init__(self, nodes: Any) -> None:
        self.nodes = nodes

    def floats(self, names: Sequence[str]) -> str:
        """Return the input of floats."""
        return "floats"

    def ids(self, names: Sequence[str]) -> str:
        """Return the input of ids."""
        return "ids"

    def border(self, tensor: str, *described: Any) -> str:
        """Return the tensor: nobody cuts here."""
        return tensor


def _export(configuration: Configuration, model: DLRM, path: Path) -> None:
    from models.dlrm.export import InteractionGraph
    from shortlist.serving.export.graph_builder import GraphBuilder, save, tensor_info

    nodes = GraphBuilder()
    logits = InteractionGraph(_GraphInputs(nodes), configuration.layout, model.network, model).logits()
    score = nodes.add_named("Identity", nodes.add("Sigmoid", logits), "score")
    inputs = [
        tensor_info("floats", np.float32, configuration.floats),
        tensor_info("ids", np.int64, len(configuration.sizes)),
    ]
    save(nodes.model(inputs, [tensor_info(score, np.float32, 1)]), path)


@torch.no_grad()
def _scores(configuration: Configuration, model: DLRM, floats: np.ndarray, ids: np.ndarray) -> np.ndarray:
    from models.embedding.reading.chunks import Lookups

    rows = torch.from_numpy((ids + np.array(configuration.layout.starts)).astype(np.int32).ravel())
    lookups = Lookups(rows, torch.arange(len(rows) + 1, dtype=torch.int32), None)
    return torch.sigmoid(model(torch.from_numpy(floats), lookups)).numpy()
