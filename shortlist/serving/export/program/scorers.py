"""Scorers inside Triton: run the whole graph, or its features followed by its trees or its network.

A repository contains it beside `model.py`. It runs in Triton's own environment (numpy 1.26, onnxruntime, OpenVINO,
numba) and imports only the modules copied beside it. Scorers are called by several threads at once, each with its own
rows.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .calibrated import ARRAYS, CALIBRATION, calibrate

SCORE = "score"
WHOLE, FEATURES, NETWORK, TREES = "model.onnx", "features.onnx", "network.onnx", "trees.npz"

Tensors = dict[str, np.ndarray]

HISTORY = "border_history"
"""Input of a network with attention, with one row per run of candidates that have the same history."""

_MIN_SCORE = np.float32(1e-7)
"""Smallest distance of a score to 0 and 1, as in the whole graph (`shortlist.training.export`)."""
_WARM_ROWS = 1_024
"""Number of candidates of a typical request."""


class Scorer(Protocol):
    """Scores rows."""

    names: list[str]
    """Names of the tensors that it reads."""
    lists: set[str]
    """Names of the list tensors, whose width varies."""

    def scores(self, tensors: Tensors) -> np.ndarray:
        """Return the scores of rows, float32, shape (rows, 1); (rows, 1 + further labels) where there are some."""
        ...


def load_scorer(folder: Path, threads: int, precision: str) -> Scorer:
    """Return the scorer for the files in the folder of a version.

    Args:
        folder: Folder of the version.
        threads: Most threads that call it at once.
        precision: Precision of a network: `fp32`, `bf16`, or `auto`.

    Raises:
        RuntimeError: It cannot be loaded on this machine.
    """
    if (folder / NETWORK).exists():
        return NetworkScorer(folder, threads, precision)
    return TreeScorer(folder) if (folder / TREES).exists() else OnnxScorer(folder / WHOLE)


class OnnxScorer:
    """A graph in ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Each thread runs the whole graph on its own rows, so that threads synchronise once, not at every node.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        inputs = self._session.get_inputs()
        self.names = [tensor.name for tensor in inputs]
        self.lists = {tensor.name for tensor in inputs if not isinstance(tensor.shape[1], int)}

    def scores(self, tensors: Tensors) -> np.ndarray:
        """Return the scores of rows."""
        (scores,) = self._session.run([SCORE], tensors)
        return np.asarray(scores)

    def outputs(self, tensors: Tensors) -> list[np.ndarray]:
        """Return all outputs of the graph, in its order."""
        return list(self._session.run(None, tensors))


class TreeScorer:
    """Runs the features in ONNX Runtime, and the trees in compiled loops.

    For 1 024 rows, 300 trees of depth 3 take 0.36 ms of processor time without the features; XGBoost takes 2.3 ms.
    """

    def __init__(self, folder: Path) -> None:
        from .compiling import compile_function

        self._features = OnnxScorer(folder / FEATURES)
        self.names, self.lists = self._features.names, self._features.lists
        with np.load(folder / TREES) as trees:
            self._trees = [trees[name] for name in ("columns", "tops", "thresholds", "nodes", "values", "base")]
        self._walk = compile_function(Path(__file__).with_name("tree_walk.py"), "walk")
        self._probabilities = _Probabilities(folder)
        widest = 1 + int(self._trees[0][:, 0].max(initial=0))
        self.scores_of([np.zeros((1, widest), np.float32)])  # compiles the loops

    def scores(self, tensors: Tensors) -> np.ndarray:
        """Return the scores of rows."""
        return self.scores_of(self.features(tensors))

    def features(self, tensors: Tensors) -> list[np.ndarray]:
        """Return the features that the trees read."""
        return self._features.outputs(tensors)

    def scores_of(self, features: list[np.ndarray]) -> np.ndarray:
        """Return the scores of rows whose features are there."""
        log_odds = np.empty(len(features[0]), np.float32)
        self._walk(features[0], *self._trees, log_odds)
        return self._probabilities(log_odds)


class NetworkScorer:
    """Runs the features in ONNX Runtime, and the network in OpenVINO, in bfloat16 if the CPU supports it."""

    def __init__(self, folder: Path, threads: int, precision: str) -> None:
        import openvino

        self._tensor = openvino.Tensor
        core = openvino.Core()
        options = {
            "INFERENCE_PRECISION_HINT": _inference_precision(core, precision),
            # The calling thread runs the network: handing it to another takes 0.2 ms of processor time.
            "NUM_STREAMS": 0,
            "INFERENCE_NUM_THREADS": 1,
            # Two Tritons share a machine during a rollout, and would be pinned to the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        self._features = OnnxScorer(folder / FEATURES)
        self.names, self.lists = self._features.names, self._features.lists
        # One compiled model per thread, as threads would wait for a shared one; large weights are mapped once.
        self._probabilities = _Probabilities(folder)
        network = core.read_model(str(folder / NETWORK))
        compiled = [core.compile_model(network, "CPU", options) for _ in range(threads)]
        self._idle = deque(model.create_infer_request() for model in compiled)
        for rows in sorted({padded_row_count(rows) for rows in range(1, -(-_WARM_ROWS // threads) + 1)}):
            for request in self._idle:
                self._run(request, [_zeros(tensor, rows) for tensor in compiled[0].inputs])

    def scores(self, tensors: Tensors) -> np.ndarray:
        """Return the scores of rows."""
        return self.scores_of(self.features(tensors))

    def features(self, tensors: Tensors) -> list[np.ndarray]:
        """Return the features that the network reads."""
        return self._features.outputs(tensors)

    def scores_of(self, features: list[np.ndarray]) -> np.ndarray:
        """Return the scores of rows whose features are there."""
        rows = len(features[0])
        features = [_pad_rows(part) for part in features]
        request = self._idle.pop()
        try:
            return self._probabilities(self._run(request, features)[:rows])
        finally:
            self._idle.append(request)

    def _run(self, request: Any, features: list[np.ndarray]) -> np.ndarray:
        """Return the log-odds in the request's own memory, which its next run overwrites."""
        # `infer` would hold the interpreter lock for another 0.08 ms.
        for number, part in enumerate(features):
            request.set_input_tensor(number, self._tensor(part, shared_memory=True))
        request.start_async()
        request.wait()
        return np.asarray(request.get_output_tensor().data)


def padded_row_count(rows: int) -> int:
    """Return the number of rows to run a network with: OpenVINO creates kernels for every new number of rows.

    That takes 5 ms, and its cache is limited: requests of 1 to 1 024 rows took twice the processor time. At most an
    eighth is added.

    >>> [padded_row_count(rows) for rows in (1, 7, 9, 500, 513)]
    [1, 7, 10, 512, 640]
    """
    step = max(1, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step


def _pad_rows(part: np.ndarray) -> np.ndarray:
    """Return a tensor padded with rows of zeros."""
    missing_rows = padded_row_count(len(part)) - len(part)
    return np.concatenate([part, np.zeros((missing_rows, *part.shape[1:]), part.dtype)]) if missing_rows else part


def _inference_precision(core: Any, precision: str) -> str:
    has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if precision == "bf16" and not has_bf16:
        raise RuntimeError(
            "serving.scoring.precision: got bf16; this processor has no bfloat16: declare auto, which takes fp32 here"
        )
    return "bf16" if has_bf16 and precision != "fp32" else "f32"


def _zeros(tensor: Any, rows: int) -> np.ndarray:
    """Return an input of zeros for `rows` candidates that share one history."""
    width = tensor.partial_shape[1]
    rows = 1 if tensor.get_any_name() == HISTORY else rows
    return np.zeros((rows, width.get_length() if width.is_static else 1), tensor.element_type.to_dtype())


class _Probabilities:
    """Converts log-odds to scores: calibrated, if the model is, and clipped away from 0 and 1."""

    def __init__(self, folder: Path) -> None:
        self._calibration: list[np.ndarray] | None = None
        if (folder / CALIBRATION).exists():
            with np.load(folder / CALIBRATION) as arrays:
                self._calibration = [arrays[name] for name in ARRAYS]

    def __call__(self, log_odds: np.ndarray) -> np.ndarray:
        log_odds = log_odds.reshape(-1, 1)
        if self._calibration is not None:
            log_odds = calibrate(log_odds, *self._calibration)
        with np.errstate(over="ignore"):  # very negative log-odds give the score 0, which is then clipped
            scores = 1 / (1 + np.exp(-log_odds))
        # NaN stays NaN, so that the server detects it.
        return np.asarray(np.clip(scores, _MIN_SCORE, 1 - _MIN_SCORE))
