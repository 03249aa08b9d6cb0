"""Servers for load tests: a real Triton with a tiny model, and a server that misbehaves on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shortlist.serving.triton.triton import RunningTriton, running_triton

_CONFIG = """
name: "twice"
backend: "python"
max_batch_size: 4096
input [ { name: "x" data_type: TYPE_FP64 dims: [1] } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [1] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { }
"""
_MODEL = """
import time
import numpy as np
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = utils.get_input_tensor_by_name(request, "x").as_numpy()
            if (x < 0).any():
                error = utils.TritonError("negative")
                answers.append(utils.InferenceResponse(error=error))
                continue
            if (x > 1e6).any():
                time.sleep(0.3)
            score = utils.Tensor("score", (2 * x).astype(np.float32))
            answers.append(utils.InferenceResponse([score]))
        return answers
"""


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """A Triton whose model `twice` doubles numbers, fails on negative ones, and is slow on huge ones."""
    repository = tmp_path_factory.mktemp("repository")
    version = repository / "twice" / "3"
    version.mkdir(parents=True)
    (repository / "twice" / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_MODEL)
    with running_triton(repository) as server:
        yield server
