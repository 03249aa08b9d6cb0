"""What runs a model inside Triton: its whole graph, or the graph's features and then its trees or its network.

A repository holds it beside `model.py`. It runs in Triton's own environment (numpy 1.26, onnxruntime, OpenVINO, numba)
and imports nothing of this package but what lies beside it. A scorer may be asked by several threads at once, each with
its own rows.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .calibrated import ARRAYS, CALIBRATION, calibrated

SCORE = "score"
WHOLE, FEATURES, NETWORK, TREES = "model.onnx", "features.onnx", "network.onnx", "trees.npz"

Tensors = dict[str, np.ndarray]

HISTORY = "border_history"
"""An input of a network with attention: a row for all candidates that follow each other and have the same history."""

_SMALLEST = np.float32(1e-7)
"""Scores stay this far from 0 and 1, as in the whole graph (`shortlist.training.export`)."""
_WARM_ROWS = 1_024
"""A request's worth of candidates."""


class Scorer(Protocol):
    """Gives rows their scores."""

    names: list[str]
    """Of the tensors that it reads."""
    lists: set[str]
    """Those among them that are wide as their longest list."""

    def scores(self, tensors: Tensors) -> np.ndarray:
        """Return the scores of rows, float32, shape (rows, 1); (rows, 1 + further labels) where there are some."""
        ...


def load_scorer(folder: Path, threads: int, precision: str) -> Scorer:
    """Return what runs the files in the folder of a version.

    Args:
        folder: Of the version.
        threads: Threads that may ask at once.
        precision: Of a network: `fp32`, `bf16`, or `auto`.

    Raises:
        RuntimeError: It does not load here.
    """
    if (folder / NETWORK).exists():
        return NetworkScorer(folder, threads, precision)
    return TreeScorer(folder) if (folder / TREES).exists() else OnnxScorer(folder / WHOLE)


class OnnxScorer:
    """A graph in ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Each thread runs the whole graph on rows of its own: they meet once, not at every one of a hundred nodes.
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
        """Return everything that a graph answers, in its order."""
        return list(self._session.run(None, tensors))


class TreeScorer:
    """Features in ONNX Runtime, trees in loops of our own, which are compiled.

    300 trees of depth 3 take 1 024 rows 0.36 ms of processor time with the features there, in XGBoost 2.3.
    """

    def __init__(self, folder: Path) -> None:
        from .compiling import compiled

        self._features = OnnxScorer(folder / FEATURES)
        self.names, self.lists = self._features.names, self._features.lists
        with np.load(folder / TREES) as trees:
            self._trees = [trees[name] for name in ("columns", "tops", "thresholds", "nodes", "values", "base")]
        self._walk = compiled(Path(__file__).with_name("tree_walk.py"), "walk")
        self._probabilities = _Probabilities(folder)
        widest = 1 + int(self._trees[0][:, 0].max(initial=0))
        self.scores_of([np.zeros((1, widest), np.float32)])  # compiles it

    def scores(self, tensors: Tensors) -> np.ndarray:
        """Return the scores of rows."""
        return self.scores_of(self.features(tensors))

    def features(self, tensors: Tensors) -> list[np.ndarray]:
        """Return what the trees read."""
        return self._features.outputs(tensors)

    def scores_of(self, features: list[np.ndarray]) -> np.ndarray:
        """Return the scores of rows whose features are there."""
        log_odds = np.empty(len(features[0]), np.float32)
        self._walk(features[0], *self._trees, log_odds)
        return self._probabilities(log_odds)


class NetworkScorer:
    """Features in ONNX Runtime, the network in OpenVINO, which is faster and multiplies bfloat16 where the CPU does."""

    def __init__(self, folder: Path, threads: int, precision: str) -> None:
        import openvino

        self._tensor = openvino.Tensor
        core = openvino.Core()
        options = {
            "INFERENCE_PRECISION_HINT": _chosen(core, precision),
            # The thread that asks does the work: handing it over takes 0.2 ms of processor time.
            "NUM_STREAMS": 0,
            "INFERENCE_NUM_THREADS": 1,
            # Two Tritons share a machine during a rollout, and would sit on the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        self._features = OnnxScorer(folder / FEATURES)
        self.names, self.lists = self._features.names, self._features.lists
        # One for every thread, as one alone lets them wait for each other; large weights are mapped once for all.
        self._probabilities = _Probabilities(folder)
        network = core.read_model(str(folder / NETWORK))
        compiled = [core.compile_model(network, "CPU", options) for _ in range(threads)]
        self._idle = deque(each.create_infer_request() for each in compiled)
        for rows in sorted({padded(rows) for rows in range(1, -(-_WARM_ROWS // threads) + 1)}):
            for request in self._idle:
                self._run(request, [_zeros(tensor, rows) for tensor in compiled[0].inputs])

    def scores(self, tensors: Tensors) -> np.ndarray:
        """Return the scores of rows."""
        return self.scores_of(self.features(tensors))

    def features(self, tensors: Tensors) -> list[np.ndarray]:
        """Return what the network reads."""
        return self._features.outputs(tensors)

    def scores_of(self, features: list[np.ndarray]) -> np.ndarray:
        """Return the scores of rows whose features are there."""
        rows = len(features[0])
        features = [_padded(part) for part in features]
        request = self._idle.pop()
        try:
            return self._probabilities(self._run(request, features)[:rows])
        finally:
            self._idle.append(request)

    def _run(self, request: Any, features: list[np.ndarray]) -> np.ndarray:
        """Return the log-odds, in the request's own memory: its next run overwrites them."""
        # `infer` takes 0.08 ms more of Python, in which no other thread runs.
        for number, part in enumerate(features):
            request.set_input_tensor(number, self._tensor(part, shared_memory=True))
        request.start_async()
        request.wait()
        return np.asarray(request.get_output_tensor().data)


def padded(rows: int) -> int:
    """Return a number of rows that a network is run with: OpenVINO makes kernels for every number that it meets.

    That takes 5 ms, and it keeps a limited number: requests of 1 to 1 024 rows took twice the processor time. At most
    an eighth is added.

    >>> [padded(rows) for rows in (1, 7, 9, 500, 513)]
    [1, 7, 10, 512, 640]
    """
    step = max(1, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step


def _padded(part: np.ndarray) -> np.ndarray:
    """Return a tensor with rows of zeros behind it; some have fewer rows than there are candidates."""
    more = padded(len(part)) - len(part)
    return np.concatenate([part, np.zeros((more, *part.shape[1:]), part.dtype)]) if more else part


def _chosen(core: Any, precision: str) -> str:
    able = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if precision == "bf16" and not able:
        raise RuntimeError(
            "serving.scoring.precision: got bf16; this processor has no bfloat16: declare auto, which takes fp32 here"
        )
    return "bf16" if able and precision != "fp32" else "f32"


def _zeros(tensor: Any, rows: int) -> np.ndarray:
    """Return an input of a request: so many candidates, and one history for all of them."""
    width = tensor.partial_shape[1]
    rows = 1 if tensor.get_any_name() == HISTORY else rows
    return np.zeros((rows, width.get_length() if width.is_static else 1), tensor.element_type.to_dtype())


class _Probabilities:
    """From a model's log-odds to its scores: calibrated, where the model is, and away from 0 and 1."""

    def __init__(self, folder: Path) -> None:
        self._calibration: list[np.ndarray] | None = None
        if (folder / CALIBRATION).exists():
            with np.load(folder / CALIBRATION) as arrays:
                self._calibration = [arrays[name] for name in ARRAYS]

    def __call__(self, log_odds: np.ndarray) -> np.ndarray:
        log_odds = log_odds.reshape(-1, 1)
        if self._calibration is not None:
            log_odds = calibrated(log_odds, *self._calibration)
        with np.errstate(over="ignore"):  # of very negative log-odds: the score is 0, and then the smallest
            scores = 1 / (1 + np.exp(-log_odds))
        # NaN stays NaN, so that whoever serves the model can tell.
        return np.asarray(np.clip(scores, _SMALLEST, 1 - _SMALLEST))
