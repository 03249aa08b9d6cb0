"""Triton's Python backend program for one exported model; a model repository contains it as `model.py`.

It runs in Triton's own environment (numpy 1.26) and imports only the modules copied beside it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .scorers import SCORE, Tensors, load_scorer

NO_CODE = -(2**63)
"""Padding of a list; see `shortlist.serving.export.signature`."""
_PART_ROWS = 128
"""Smallest part of a batch for a thread of its own."""


class Failure(NamedTuple):
    """Error of a request."""

    kind: str
    """Name of Triton's error code."""
    message: str


class TritonPythonModel:
    """Triton's interface to a model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model beside this program.

        Args:
            args: Triton's arguments: the configuration as JSON, the model's folder, the version.
        """
        parameters = json.loads(args["model_config"])["parameters"]
        self._threads = int(parameters["threads"]["string_value"])
        self._pool = ThreadPoolExecutor(self._threads)
        folder = Path(args["model_repository"]) / args["model_version"]
        self._scorer = load_scorer(folder, self._threads, parameters["precision"]["string_value"])
        self._names, self._lists = self._scorer.names, self._scorer.lists

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Score the waiting requests in one run; an invalid request gets an error and does not affect the others.

        Args:
            requests: Triton's requests.
        """
        tensors_or_failures = [self._read(request) for request in requests]
        answers = iter(self._score_requests([tensors for tensors in tensors_or_failures if isinstance(tensors, dict)]))
        return [_response(next(answers) if isinstance(tensors, dict) else tensors) for tensors in tensors_or_failures]

    def scores(self, tensors: Tensors) -> np.ndarray:
        """Return the scores of rows, computed in parts by all threads."""
        rows = len(tensors[self._names[0]])
        parts = max(1, min(self._threads, rows // _PART_ROWS))
        cuts = [rows * number // parts for number in range(parts + 1)]
        todo = deque(zip(range(parts), cuts[:-1], cuts[1:], strict=True))
        scores: list[Any] = [None] * parts
        helpers = [self._pool.submit(self._score_parts, tensors, todo, scores) for _ in range(parts - 1)]
        try:
            self._score_parts(tensors, todo, scores)
        finally:  # running helpers read Triton's memory, which must stay until they end; others are cancelled
            errors = [helper.exception() for helper in helpers if not helper.cancel()]
        for error in filter(None, errors):
            raise error
        return scores[0] if parts == 1 else np.concatenate(scores)

    def _read(self, request: Any) -> Tensors | Failure:
        """Return a request's tensors by name, or why they are invalid."""
        # This module exists only inside Triton.
        import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

        tensors = {}
        for name in self._names:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                return Failure("INVALID_ARG", f"input '{name}' is missing; wanted {', '.join(self._names)}")
            tensors[name] = tensor.as_numpy()
        rows = {name: len(values) for name, values in tensors.items()}
        if len(set(rows.values())) > 1:
            return Failure("INVALID_ARG", f"inputs differ in rows: {rows}; wanted one number of rows")
        return tensors

    def _score_requests(self, requests: Sequence[Tensors]) -> list[np.ndarray | Failure]:
        """Return the scores of each request, or its failure."""
        if not requests:
            return []
        try:
            scores = self.scores(self._concat(requests))
        except Exception as error:  # the engines raise many kinds of errors
            if len(requests) == 1:
                return [Failure("INTERNAL", f"the model did not run: {error}")]
            return [
                answer for tensors in requests for answer in self._score_requests([tensors])
            ]  # find the request that fails
        ends = np.cumsum([len(tensors[self._names[0]]) for tensors in requests])
        return list(np.split(scores, ends[:-1]))

    def _score_parts(self, tensors: Tensors, todo: deque[tuple[int, int, int]], scores: list[Any]) -> None:
        """Score one part after another until none is left."""
        while todo:
            try:
                number, start, end = todo.popleft()
            except IndexError:  # another thread took the last part
                return
            part = {name: values[start:end] for name, values in tensors.items()}
            scores[number] = self._scorer.scores(part)

    def _concat(self, requests: Sequence[Tensors]) -> Tensors:
        """Return the concatenated rows of all requests."""
        tensors_by_name = {}
        for name in self._names:
            parts = [tensors[name] for tensors in requests]
            parts = widen_lists(parts) if name in self._lists else parts
            tensors_by_name[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return tensors_by_name


def widen_lists(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return list tensors padded to a common width.

    >>> [part.tolist() for part in widen_lists([np.array([[5]]), np.array([[6, 7]])])] == [[[5, NO_CODE]], [[6, 7]]]
    True
    """
    widest = max(1, *(part.shape[1] for part in parts))
    return [
        part
        if part.shape[1] == widest
        else np.pad(part, ((0, 0), (0, widest - part.shape[1])), constant_values=NO_CODE)
        for part in parts
    ]


def _response(answer: np.ndarray | Failure) -> Any:
    import triton_python_backend_utils as pb_utils

    if isinstance(answer, Failure):
        kind = getattr(pb_utils.TritonError, answer.kind)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.message, kind))
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(SCORE, np.ascontiguousarray(answer))])
