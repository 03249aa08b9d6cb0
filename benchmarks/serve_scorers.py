"""Scoring alone, in-process: Triton's own program with each of the runtimes that a version can be served by."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.bench import ROUNDS, Line
from benchmarks.serve_world import CANDIDATES, World, rows_with_labels
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER, SCORE
from shortlist.serving.triton.triton_home import find_triton
from shortlist.spec.serving import Scoring

PROGRAM: Final = Path(__file__).with_name("serve_program.py")
SIZES: Final = (1, 64, CANDIDATES, 8_192)
PEER: Final = "ONNX Runtime"
ALONE: Final = ", features given"
"""Without the features; ONNX Runtime runs both as one."""
_FURTHEST, _AUC_FURTHEST = 1e-6, 1e-4
_CALLS: Final = {1: 60, 64: 60, 1_024: 20, 8_192: 4}
"""Calls of a round, by rows."""


class Scorer:
    """A version's program in a process of Triton's environment, without Triton."""

    def __init__(self, world: World, kind: str, scoring: Scoring, tensors: Mapping[str, np.ndarray], at: Path) -> None:
        """Start it.

        Args:
            world: Its spec says how many threads score.
            kind: Of the model.
            scoring: The runtime.
            tensors: Inputs of rows.
            at: Folder to write; the program's own.
        """
        write_repository(
            world.models[kind] / FOLDER, 1, world.spec.serving.batching, at / "repository", scoring=scoring
        )
        np.savez(at / "tensors.npz", **tensors)
        home, self._at = find_triton(), at
        parameters = {"threads": str(world.spec.serving.batching.threads), "precision": scoring.precision}
        config = json.dumps({"parameters": {name: {"string_value": value} for name, value in parameters.items()}})
        arguments = str(at / "repository" / world.spec.name), "1", config, str(at / "tensors.npz")
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [str(home.venv / "bin" / "python"), str(PROGRAM), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=home.environment, text=True,
        )  # fmt: skip

    def scores(self) -> np.ndarray:
        """Return the scores of all rows."""
        self._ask({"do": "score", "out": str(self._at / "scores.npy")})
        return np.asarray(np.load(self._at / "scores.npy")).ravel()

    def timed(self, rows: int, calls: int, model_alone: bool = False, warm: int = 3) -> dict[str, Any]:
        """Return `ms`, the milliseconds of calls, and `cpu_ms`, the mean processor time of one.

        Args:
            rows: Of a call.
            calls: How many.
            model_alone: Whether the features are there already.
            warm: Calls before them that do not count.
        """
        order_name = "time_model" if model_alone else "time"
        return dict(self._ask({"do": order_name, "rows": rows, "calls": calls, "warm": warm}))

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the scorer died; what it said is above"
        return json.loads(line)


@contextmanager
def scorer(world: World, kind: str, scoring: Scoring, tensors: Mapping[str, np.ndarray], at: Path) -> Iterator[Scorer]:
    """Give a running scorer."""
    at.mkdir(parents=True)
    running = Scorer(world, kind, scoring, tensors, at)
    try:
        yield running
    finally:
        running.close()


def runtimes(kind: str) -> dict[str, Scoring]:
    """Return what a model of a kind can be scored by on this processor."""
    whole = {PEER: Scoring(runtime="onnxruntime")}
    if kind == "xgboost":
        return whole | {"compiled walk": Scoring()}
    narrow = "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    return whole | {"OpenVINO fp32": Scoring()} | ({"OpenVINO bf16": Scoring(precision="bf16")} if narrow else {})


def score_lines(world: World, kind: str, title: str, at: Path) -> tuple[list[Line], list[str]]:
    """Check that all runtimes give the scores of the exported file, then time them A B A B.

    Raises:
        AssertionError: One of them gives others.
    """
    tensors, labels = rows_with_labels(world, kind)
    copies = -(-max(SIZES) // len(labels))
    tensors = {name: np.concatenate([values] * copies) for name, values in tensors.items()}
    (expected,) = create_session(world.models[kind] / FOLDER).run([SCORE], tensors)
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(scorer(world, kind, scoring, tensors, at / name.replace(" ", "-")))
            for name, scoring in runtimes(kind).items()
        }
        findings = [checked(title, name, scorer.scores(), expected.ravel(), labels) for name, scorer in running.items()]
        rounds_by_case: dict[tuple[int, str], list[dict[str, Any]]] = {}
        for _ in range(ROUNDS):
            for rows in SIZES:
                for name, process in running.items():
                    rounds_by_case.setdefault((rows, name), []).append(process.timed(rows, _CALLS[rows]))
                    if rows == CANDIDATES and name != PEER:
                        alone = process.timed(rows, _CALLS[rows], model_alone=True)
                        rounds_by_case.setdefault((rows, f"{name}{ALONE}"), []).append(alone)
    return list(_lines(title, rounds_by_case)), findings


def checked(title: str, name: str, scores: np.ndarray, expected: np.ndarray, labels: np.ndarray) -> str:
    """Return how scores agree with the exported file's; the first rows are those with labels.

    Raises:
        AssertionError: They are others.
    """
    furthest = float(np.abs(scores - expected).max())
    apart = abs(auc(labels, scores[: len(labels)].astype(float)) - auc(labels, expected[: len(labels)].astype(float)))
    assert furthest <= _FURTHEST or name.endswith("bf16"), f"{title}, {name}: scores differ by {furthest:.1e}"
    assert apart <= _AUC_FURTHEST, f"{title}, {name}: AUC differs by {apart:.1e}"
    return f"{title}, {name}: scores within {furthest:.1e}, AUC within {apart:.1e} of the exported file's"


def _lines(title: str, rounds_by_case: Mapping[tuple[int, str], list[dict[str, Any]]]) -> Iterator[Line]:
    middle = {key: median(ms for timing in rounds for ms in timing["ms"]) for key, rounds in rounds_by_case.items()}
    cpu = {key: median(timing["cpu_ms"] for timing in rounds) for key, rounds in rounds_by_case.items()}
    for rows, name in rounds_by_case:
        case_title = f"{title}, {rows:,} row{'s' * (rows > 1)}"
        base = middle[rows, PEER]
        yield Line(
            "score", f"{case_title}, {name}", round(middle[rows, name], 3), "ms", PEER, _of(middle[rows, name], base)
        )
        if rows == CANDIDATES:
            base = cpu[rows, PEER]
            yield Line(
                "score", f"{case_title}, {name}, cpu", round(cpu[rows, name], 3), "ms", PEER, _of(cpu[rows, name], base)
            )


def _of(value: float, base: float) -> float:
    return round(value / base, 3)
