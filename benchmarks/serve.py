"""Scoring 1 024 rows, in-process and through Envoy, server and Triton.

In-process, Triton's own program runs in Triton's own environment, with each runtime that a version can be served by;
all must give the exported file's scores. Through the servers, the measure is the same raw keys, looked up and scored by
the same code without any server; a table says where each tenth of a millisecond goes. The peer is what one writes in an
afternoon: the same ONNX file behind FastAPI and uvicorn, the tensors as JSON.

In-process and served calls alternate, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from rich.table import Table

from benchmarks.bench import Line, console, record, show
from benchmarks.serve_callers import fastapi, scores_of, served, time_calls, timed
from benchmarks.serve_in_process import InProcess
from benchmarks.serve_layers import RequestLayers, way_of
from benchmarks.serve_scorers import score_lines, scorer
from benchmarks.serve_world import CANDIDATES, Question, World, criteo_world, demo_world
from benchmarks.targets import exit_code
from shortlist.rollout.local.stack import Stack
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.signature import FOLDER, SCORE
from shortlist.serving.traffic.requests import WireProtocol
from shortlist.spec.serving import Scoring

TITLES: Final[dict[WireProtocol, str]] = {"http": "HTTP binary", "json": "HTTP JSON", "grpc": "gRPC"}
ROUNDS: Final = 5
CALLS: Final = 30
"""Calls of each client in a round."""
CLIENTS: Final = (1, 4)
PEER: Final = "in-process, raw keys"
RequestTimes = Mapping[tuple[str, int], list[tuple[list[float], float]]]
"""By who was asked and how many asked: of each round the milliseconds of all calls, and the rows per second."""


def rank(world: World, kind: str, at: Path) -> tuple[list[Line], RequestLayers, list[str]]:
    """Check what the stack answers, then measure one model through it."""
    model, threads = world.models[kind], world.spec.serving.batching.threads
    question = Question(world, model, CANDIDATES)
    expected = create_session(model / FOLDER).run([SCORE], question.tensors)[0].ravel()
    times: dict[tuple[str, int], list[tuple[list[float], float]]] = {}
    with (
        served(world, kind) as stack,
        scorer(world, kind, Scoring(), question.tensors, at / "scorer") as alone,
        fastapi(model, threads, question.tensors) as peer,
    ):
        settings = next(path for path in (world.folder / f"runs-{kind}").rglob("server.json"))
        findings = [check(kind, stack, question, expected)]
        assert np.abs(np.array(json.loads(peer.ask())) - expected).max() < 1e-5, "the peer's scores differ"
        with InProcess(settings, question, alone, at / "in-process") as in_process:
            for _ in range(ROUNDS):
                for clients in CLIENTS:
                    for protocol, title in TITLES.items():
                        measured = time_calls(stack.port, question, protocol, clients, CALLS)
                        times.setdefault((title, clients), []).append(measured)
                for title, time_peer in ((PEER, in_process.timed), ("FastAPI", lambda calls: timed(peer.ask, calls))):
                    spent = time_peer(CALLS)
                    times.setdefault((title, 1), []).append((spent, CANDIDATES * 1e3 / median(spent)))
        layers = way_of(stack, settings, question, alone, at / "log")
    return lines_of(kind, times), layers, findings


def check(kind: str, stack: Stack, question: Question, expected: np.ndarray) -> str:
    """Ask once by every protocol; return how the answers agree with the exported file.

    Raises:
        AssertionError: One of them does not.
    """
    apart = {
        title: float(np.abs(asyncio.run(scores_of(stack.port, question, protocol)) - expected).max())
        for protocol, title in TITLES.items()
    }
    assert max(apart.values()) < 1e-5, f"served scores differ from the exported file's: {apart}"
    return f"{kind}: served scores within {max(apart.values()):.1e} of the exported file's, by {len(apart)} protocols"


def lines_of(kind: str, times: RequestTimes) -> list[Line]:
    """Return the lines of a model: p50 and p99 of one client, who waits for nobody else, and the rates of all."""
    base = median(ms for spent, _ in times[PEER, 1] for ms in spent)
    rate = CANDIDATES * 1e3 / base
    lines = [Line("rank", f"{kind}, {PEER}, p50", round(base, 3), "ms", PEER, 1.0)]
    for (title, clients), rounds in times.items():
        if title == PEER:
            continue
        p50 = median(ms for spent, _ in rounds for ms in spent)
        p99 = float(np.percentile([ms for spent, _ in rounds for ms in spent], 99))
        rows = median(rows_per_second for _, rows_per_second in rounds)
        name = f"{kind}, {title}, {clients} client{'s' * (clients > 1)}"
        if clients == 1:
            lines.append(Line("rank", f"{name}, p50", round(p50, 3), "ms", PEER, round(p50 / base, 3)))
            lines.append(Line("rank", f"{name}, p99", round(p99, 3), "ms", PEER, round(p99 / base, 3)))
        lines.append(Line("rank", f"{name}, rate", round(rows), "rows/s", PEER, round(rows / rate, 3)))
    return lines


def layers_of(layers_by_kind: Mapping[str, RequestLayers]) -> Table:
    """Return the table of where the time of a request goes."""
    table = Table(title=f"One request of {CANDIDATES:,} rows over HTTP, milliseconds", title_justify="left")
    table.add_column("")
    for kind in layers_by_kind:
        table.add_column(kind, justify="right")
    names = [layer.name for layer in next(iter(layers_by_kind.values())).layers]
    for number, name in enumerate(names):
        table.add_row(name, *(f"{request_layers.layers[number].ms:.2f}" for request_layers in layers_by_kind.values()))
    table.add_section()
    table.add_row(
        "from the client's first byte to its last",
        *(f"{request_layers.whole_ms:.2f}" for request_layers in layers_by_kind.values()),
    )
    return table


def main() -> int:
    """Print the tables and write the results; exit code 1 when a figure is below what is asked."""
    printing, lines, findings = console(), [], []
    layers_by_kind: dict[str, RequestLayers] = {}
    with TemporaryDirectory(prefix="shortlist-bench-") as scratch, printing.status("making logs and models") as status:
        folder = Path(scratch)
        demo, criteo = demo_world(folder / "demo"), criteo_world(folder / "criteo")
        trees = _trees(demo)
        for world, kind, title in ((criteo, "dlrm", "DLRM, Kaggle dims"), (demo, "xgboost", trees)):
            status.update(f"scoring in-process: {title}")
            score_rows, score_findings = score_lines(world, kind, title, folder / f"score-{kind}")
            lines, findings = lines + score_rows, findings + score_findings
        show("Scoring in-process, two threads, medians; runtimes in turn", lines)
        for kind in demo.models:
            status.update(f"scoring through the servers: {kind}")
            score_rows, layers_by_kind[kind], score_findings = rank(demo, kind, folder / f"rank-{kind}")
            show(f"{kind}: ranking {CANDIDATES:,} items for a user through Envoy and Triton", score_rows)
            lines, findings = lines + score_rows, findings + score_findings
    printing.print(layers_of(layers_by_kind))
    for line in findings:
        printing.print(line)
    for kind, request_layers in layers_by_kind.items():
        lines += [Line("way", f"{kind}, {layer.name}", round(layer.ms, 3), "ms") for layer in request_layers.layers]
    record(lines)
    return exit_code(lines)


def _trees(world: World) -> str:
    import xgboost

    booster: Any = xgboost.Booster(model_file=world.models["xgboost"] / "model.ubj")
    return f"{booster.num_boosted_rounds()} trees"


if __name__ == "__main__":
    sys.exit(main())
