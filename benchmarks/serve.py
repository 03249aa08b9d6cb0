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
from benchmarks.serve_callers import asked, fastapi, scores_of, served, timed
from benchmarks.serve_in_process import InProcess
from benchmarks.serve_layers import Way, way_of
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
Found = Mapping[tuple[str, int], list[tuple[list[float], float]]]
"""By who was asked and how many asked: of each round the milliseconds of all calls, and the rows per second."""


def rank(world: World, kind: str, at: Path) -> tuple[list[Line], Way, list[str]]:
    """Check what the stack answers, then measure one model through it."""
    model, threads = world.models[kind], world.spec.serving.batching.threads
    question = Question(world, model, CANDIDATES)
    wanted = create_session(model / FOLDER).run([SCORE], question.tensors)[0].ravel()
    found: dict[tuple[str, int], list[tuple[list[float], float]]] = {}
    with (
        served(world, kind) as stack,
        scorer(world, kind, Scoring(), question.tensors, at / "scorer") as alone,
        fastapi(model, threads, question.tensors) as peer,
    ):
        settings = next(path for path in (world.folder / f"runs-{kind}").rglob("server.json"))
        said = [check(kind, stack, question, wanted)]
        assert np.abs(np.array(json.loads(peer.ask())) - wanted).max() < 1e-5, "the peer's scores differ"
        with InProcess(settings, question, alone, at / "in-process") as ours:
            for _ in range(ROUNDS):
                for clients in CLIENTS:
                    for protocol, title in TITLES.items():
                        one = asked(stack.port, question, protocol, clients, CALLS)
                        found.setdefault((title, clients), []).append(one)
                for title, time_calls in ((PEER, ours.timed), ("FastAPI", lambda calls: timed(peer.ask, calls))):
                    spent = time_calls(CALLS)
                    found.setdefault((title, 1), []).append((spent, CANDIDATES * 1e3 / median(spent)))
        way = way_of(stack, settings, question, alone, at / "log")
    return lines_of(kind, found), way, said


def check(kind: str, stack: Stack, question: Question, wanted: np.ndarray) -> str:
    """Ask once by every protocol; return how the answers agree with the exported file.

    Raises:
        AssertionError: One of them does not.
    """
    apart = {
        title: float(np.abs(asyncio.run(scores_of(stack.port, question, protocol)) - wanted).max())
        for protocol, title in TITLES.items()
    }
    assert max(apart.values()) < 1e-5, f"served scores differ from the exported file's: {apart}"
    return f"{kind}: served scores within {max(apart.values()):.1e} of the exported file's, by {len(apart)} protocols"


def lines_of(kind: str, found: Found) -> list[Line]:
    """Return the lines of a model: p50 and p99 of one client, who waits for nobody else, and the rates of all."""
    base = median(ms for spent, _ in found[PEER, 1] for ms in spent)
    rate = CANDIDATES * 1e3 / base
    lines = [Line("rank", f"{kind}, {PEER}, p50", round(base, 3), "ms", PEER, 1.0)]
    for (title, clients), rounds in found.items():
        if title == PEER:
            continue
        p50 = median(ms for spent, _ in rounds for ms in spent)
        p99 = float(np.percentile([ms for spent, _ in rounds for ms in spent], 99))
        rows = median(each for _, each in rounds)
        name = f"{kind}, {title}, {clients} client{'s' * (clients > 1)}"
        if clients == 1:
            lines.append(Line("rank", f"{name}, p50", round(p50, 3), "ms", PEER, round(p50 / base, 3)))
            lines.append(Line("rank", f"{name}, p99", round(p99, 3), "ms", PEER, round(p99 / base, 3)))
        lines.append(Line("rank", f"{name}, rate", round(rows), "rows/s", PEER, round(rows / rate, 3)))
    return lines


def layers_of(ways: Mapping[str, Way]) -> Table:
    """Return the table of where the time of a request goes."""
    table = Table(title=f"One request of {CANDIDATES:,} rows over HTTP, milliseconds", title_justify="left")
    table.add_column("")
    for kind in ways:
        table.add_column(kind, justify="right")
    names = [layer.name for layer in next(iter(ways.values())).layers]
    for number, name in enumerate(names):
        table.add_row(name, *(f"{way.layers[number].ms:.2f}" for way in ways.values()))
    table.add_section()
    table.add_row("from the client's first byte to its last", *(f"{way.whole_ms:.2f}" for way in ways.values()))
    return table


def main() -> int:
    """Print the tables and write the results; exit code 1 when a figure is below what is asked."""
    printing, lines, said = console(), [], []
    ways: dict[str, Way] = {}
    with TemporaryDirectory(prefix="shortlist-bench-") as scratch, printing.status("making logs and models") as status:
        folder = Path(scratch)
        demo, criteo = demo_world(folder / "demo"), criteo_world(folder / "criteo")
        trees = _trees(demo)
        for world, kind, title in ((criteo, "dlrm", "DLRM, Kaggle dims"), (demo, "xgboost", trees)):
            status.update(f"scoring in-process: {title}")
            more, words = score_lines(world, kind, title, folder / f"score-{kind}")
            lines, said = lines + more, said + words
        show("Scoring in-process, two threads, medians; runtimes in turn", lines)
        for kind in demo.models:
            status.update(f"scoring through the servers: {kind}")
            more, ways[kind], words = rank(demo, kind, folder / f"rank-{kind}")
            show(f"{kind}: ranking {CANDIDATES:,} items for a user through Envoy and Triton", more)
            lines, said = lines + more, said + words
    printing.print(layers_of(ways))
    for line in said:
        printing.print(line)
    for kind, way in ways.items():
        lines += [Line("way", f"{kind}, {layer.name}", round(layer.ms, 3), "ms") for layer in way.layers]
    record(lines)
    return exit_code(lines)


def _trees(world: World) -> str:
    import xgboost

    booster: Any = xgboost.Booster(model_file=world.models["xgboost"] / "model.ubj")
    return f"{booster.num_boosted_rounds()} trees"


if __name__ == "__main__":
    sys.exit(main())
