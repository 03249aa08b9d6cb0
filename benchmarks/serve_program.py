"""Triton's own program of a version, run in Triton's environment without Triton; `serve_scorers` starts it and asks.

It imports nothing of this package. A line of JSON comes in: `score` writes the scores of all rows to a file, `time`
calls with the first rows of them. A line of JSON goes out.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from typing import Any

import numpy as np


def main(model: str, version: str, config: str, tensors: str) -> None:
    """Answer orders until there are none.

    Args:
        model: Folder of the model in a repository.
        version: Folder in it.
        config: What Triton would say of the model, as JSON.
        tensors: File with its inputs.
    """
    sys.path.insert(0, model)
    sys.dont_write_bytecode = True
    program = importlib.import_module(f"{version}.model").TritonPythonModel()
    program.initialize({"model_config": config, "model_repository": model, "model_version": version})
    with np.load(tensors) as file:
        rows = dict(file)
    for line in sys.stdin:
        order = json.loads(line)
        found = _scored(program, rows, order) if order["do"] == "score" else _timed(program, rows, order)
        os.write(1, json.dumps(found).encode() + b"\n")


def _scored(program: Any, rows: dict[str, np.ndarray], order: dict[str, Any]) -> bool:
    np.save(order["out"], program.scores(rows))
    return True


def _timed(program: Any, rows: dict[str, np.ndarray], order: dict[str, Any]) -> dict[str, Any]:
    some = {name: values[: order["rows"]] for name, values in rows.items()}
    for _ in range(3):
        program.scores(some)
    spent, before = [], resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(order["calls"]):
        start = time.perf_counter_ns()
        program.scores(some)
        spent.append((time.perf_counter_ns() - start) / 1e6)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {"ms": spent, "cpu_ms": cpu * 1e3 / order["calls"]}


if __name__ == "__main__":
    main(*sys.argv[1:])
