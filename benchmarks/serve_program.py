"""Triton's own program of a version, run in Triton's environment without Triton; `serve_scorers` starts it and asks.

It imports nothing of this package. A line of JSON comes in: `score` writes the scores of all rows to a file, `time`
calls with the first rows of them, `time_model` too, but with their features there. A line of JSON goes out.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise
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
        os.write(1, json.dumps(_ORDERS[order["do"]](program, rows, order)).encode() + b"\n")


def _scored(program: Any, rows: dict[str, np.ndarray], order: dict[str, Any]) -> bool:
    np.save(order["out"], program.scores(rows))
    return True


def _timed(program: Any, rows: dict[str, np.ndarray], order: dict[str, Any]) -> dict[str, Any]:
    first_rows = {name: values[: order["rows"]] for name, values in rows.items()}
    return _spent(lambda: program.scores(first_rows), order)


def _model_timed(program: Any, rows: dict[str, np.ndarray], order: dict[str, Any]) -> dict[str, Any]:
    """Time the trees or the network alone, shared out among as many threads as the program's."""
    scorer, threads = program._scorer, program._threads
    edges = np.linspace(0, order["rows"], threads + 1).astype(int)
    first, *further_calls = [
        scorer.features({name: values[start:end] for name, values in rows.items()}) for start, end in pairwise(edges)
    ]

    def call() -> None:
        helpers = [program._pool.submit(scorer.scores_of, features) for features in further_calls]
        scorer.scores_of(first)
        for helper in helpers:
            helper.result()

    return _spent(call, order)


def _spent(call: Callable[[], object], order: dict[str, Any]) -> dict[str, Any]:
    calls = order["calls"]
    for _ in range(order["warm"]):
        call()
    spent, usage_before = [], resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        spent.append((time.perf_counter_ns() - start) / 1e6)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = usage.ru_utime + usage.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    return {"ms": spent, "cpu_ms": cpu * 1e3 / calls}


_ORDERS = {"score": _scored, "time": _timed, "time_model": _model_timed}


if __name__ == "__main__":
    main(*sys.argv[1:])
