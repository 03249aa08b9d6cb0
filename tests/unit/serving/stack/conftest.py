import http.client
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.rollout.local.stack import Stack
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, Signature
from shortlist.serving.paths import ServingPaths
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import folder_digest, write_manifest

MODEL = "demo"
ECHO = (sys.executable, str(Path(__file__).with_name("echo_server.py")))


def write_model(folder: Path, weight: float) -> Path:
    """Write a model folder whose score is `weight` times the sum of two numbers."""
    from onnx import TensorProto, helper, save

    serving = folder / FOLDER
    serving.mkdir(parents=True)
    numbers = helper.make_tensor_value_info("numbers", TensorProto.DOUBLE, [None, 2])
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, [None, 1])
    weights = helper.make_tensor("weights", TensorProto.DOUBLE, [2, 1], np.full(2, weight))
    nodes = [
        helper.make_node("MatMul", ["numbers", "weights"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["score"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(nodes, "tiny", [numbers], [score], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), serving / MODEL_FILE)
    Signature(model=MODEL, kind="tiny", numbers=("a", "b")).write(serving)
    write_manifest(folder)
    return folder


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Deployment]:
    def make(version: int) -> Deployment:
        folder = write_model(tmp_path_factory.mktemp("model") / "model", weight=float(version))
        return Deployment(version=version, kind="tiny", model_folder=folder, digest=folder_digest(folder), store=None)

    return make


@pytest.fixture(scope="session")
def ask() -> Callable[..., Any]:
    """Send a request to a stack over a new HTTP connection; return status, headers and the JSON of the response."""

    def ask(
        stack: Stack, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, json.load(answer)
        finally:
            connection.close()

    return ask


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Wait until a condition holds."""

    def until(holds: Callable[[], bool], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.02)

    return until


@pytest.fixture(scope="module")
def bring_up() -> Iterator[Callable[..., Stack]]:
    """Start stacks; all their processes are stopped at the end."""
    paths = []

    def up(serving_paths: ServingPaths, serving: Serving | None = None, port: int = 0, **settings: str) -> Stack:
        paths.append(serving_paths)
        return Stack.up(serving_paths, MODEL, serving or Serving(), SQLiteOnline(), port, server=ECHO, **settings)

    yield up
    for serving_paths in paths:
        stop_stack(serving_paths)
