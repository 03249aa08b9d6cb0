"""What a history costs a request: `din` against the DLRM beneath it, 500 and 1 000 candidates and 50 past items.

Both models read the same features but for the sequence. A request is read from its JSON, looked up and laid out, and
scored in two ways: by the exported graph in ONNX Runtime, one thread, in this process; and by a real Triton of each
model, over shared memory as a server does. The two models take turns. Times are processor seconds of the thread, which
other programs on the machine change little, and through Triton what a clock shows.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import polars as pl

from benchmarks.bench import Line, record, show
from models.din.section import DINModel
from models.dlrm.section import DLRMModel
from shortlist.contracts import Columns, Files
from shortlist.features.fit import fit
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.table import build_table
from shortlist.features.view_index import ViewIndex
from shortlist.serving.export.onnx_session import session
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER, SCORE, Signature
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.server.triton_client import TritonClient
from shortlist.serving.triton.triton import running_triton
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Batching
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.export import export, pack
from shortlist.training.train import train

CANDIDATES: Final = (500, 1_000)
PAST: Final = 50
ROUNDS: Final = 1_000
_USERS, _ITEMS, _ROWS, _DAYS = 300, 5_000, 20_000, 4
_START: Final = datetime(2026, 3, 2, tzinfo=UTC)
DATA: Final = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [
            {"name": "user_id", "type": "integer"},
            {"name": "item_id", "type": "integer"},
            {"name": "page", "type": "string"},
            {"name": "price", "type": "number"},
            {"name": "clicked", "type": "integer"},
        ],
        "label": "clicked",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
        "user": "user_id",
        "item": "item_id",
        "split": {"warmup_days": 1, "validation_days": 1, "test_days": 1},
    }
)
FEATURES: Final = Features.model_validate(
    {
        "columns": [
            {"kind": "vocabulary", "each": ["user_id", "item_id", "page"]},
            {"kind": "target", "key": ["user_id"], "name": "user_rate"},
            {"kind": "target", "key": ["item_id"], "name": "item_rate"},
            {"kind": "target", "key": ["page"], "name": "page_rate"},
            {"kind": "count", "key": ["item_id"], "name": "item_rows"},
            {"kind": "numeric", "each": "price"},
            {"kind": "sequence", "of": "item_id", "key": "user_id", "last": PAST, "name": "past"},
        ]
    }
)
PLAIN: Final = ("user_id_id", "item_id_id", "page_id", "*_rate", "item_rows", "price_number")
NETWORK: Final[dict[str, Any]] = {"features": PLAIN, "embedding_dim": 16, "epochs": 1}


def main() -> None:
    """Train both, time requests, print and record."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepared(folder)
        models = {
            "dlrm": DLRMModel.model_validate(NETWORK),
            "din": DINModel.model_validate(NETWORK | {"history": "past", "target": "item_id_id"}),
        }
        graphs = {name: exported(name, model, folder) for name, model in models.items()}
        lines: list[Line] = []
        for count in CANDIDATES:
            requests = {name: Request(model, folder, count) for name, model in graphs.items()}
            in_process = {name: in_one_thread(graphs[name], request) for name, request in requests.items()}
            lines += timed(in_process, f"request of {count}", time.thread_time, "cpu-ms")
            with ExitStack() as running:
                asked = {
                    name: running.enter_context(through_triton(graphs[name], name, request))
                    for name, request in requests.items()
                }
                lines += timed(asked, f"request of {count} through Triton", time.perf_counter, "ms")
    show(f"A request with and without {PAST} past items", lines)
    record(lines)


def prepared(folder: Path) -> None:
    """Write a log, its statistics and its feature table."""
    random = np.random.default_rng(3)
    writer = DayTableWriter(folder / "log", Files.LOG, 250_000)
    for day in range(_DAYS):
        seconds = np.sort(random.integers(0, 86_400, _ROWS))
        rows = {
            "user_id": random.integers(0, _USERS, _ROWS),
            "item_id": random.integers(0, _ITEMS, _ROWS),
            "page": random.choice(["home", "search", "item"], _ROWS),
            "price": random.gamma(2.0, 10.0, _ROWS),
            Columns.LABEL: (random.random(_ROWS) < 0.3).astype(np.int8),
            Columns.TIME: [_START + timedelta(days=day, seconds=int(one)) for one in seconds],
            Columns.IMPRESSION: np.arange(day * _ROWS, (day + 1) * _ROWS),
        }
        frame = pl.DataFrame(rows, schema_overrides={Columns.TIME: pl.Datetime("us", "UTC")})
        writer.append(frame.with_columns(pl.col(Columns.TIME).dt.date().alias(Columns.DAY)))
    writer.close()
    sections = DATA, FEATURES, None, Runtime(engine="cpu"), folder / "log", folder / "fitted"
    fit(*sections)
    build_table(*sections, folder / "table")


def exported(kind: str, section: DLRMModel, folder: Path) -> Path:
    """Return the folder of a trained model with its graph."""
    table, out = DayTable.open(folder / "table", Files.TABLE), folder / kind
    train(kind, section, table, Runtime(engine="cpu"), out / "model", out / "scores")
    pack(out / "model", folder / "fitted")
    export(out / "model", kind)
    return out / "model"


class Request:
    """What answers a request of a user with a history for a model: reads it, looks it up and lays it out."""

    def __init__(self, model: Path, folder: Path, candidates: int) -> None:
        """Take a model folder, the folder that `prepared` wrote, and a number of candidates."""
        plan = Preprocessing.load(model / Files.PREPROCESSING).plan
        views = ViewIndex.read(folder / "fitted" / "views")
        self._assembler = DayAssembler(plan, Signature.read(model / FOLDER), views)
        self._body, self._candidates = _body(candidates), candidates
        self._day = (_START + timedelta(days=_DAYS - 1)).date()

    def tensors(self) -> dict[str, Any]:
        """Return the inputs of the model."""
        return dict(self._assembler.requested(self._body, None, self._candidates, self._day))


def in_one_thread(model: Path, request: Request) -> Callable[[], Any]:
    """Return what answers a request by the exported graph in this process."""
    graph = session(model / FOLDER)
    return lambda: graph.run([SCORE], request.tensors())


@contextmanager
def through_triton(model: Path, name: str, request: Request) -> Iterator[Callable[[], Any]]:
    """Give what answers a request by a Triton of the model's own."""
    with TemporaryDirectory() as scratch, asyncio.Runner() as loop:
        write_repository(model / FOLDER, 1, Batching(), Path(scratch) / "repository")
        with running_triton(Path(scratch) / "repository") as triton:
            client = TritonClient(triton.http, name, 1)
            yield lambda: loop.run(client.scores(request.tensors()))
            loop.run(_closed(client))


async def _closed(client: TritonClient) -> None:
    client.close()


def timed(requests: Mapping[str, Callable[[], Any]], what: str, clock: Callable[[], float], unit: str) -> list[Line]:
    """Return how long requests take that take turns, in milliseconds, and their ratios.

    Args:
        requests: By model.
        what: They are.
        clock: Of seconds.
        unit: Its unit, in the results.
    """
    taken: dict[str, list[float]] = {name: [] for name in requests}
    for answer in requests.values():
        answer()
    for _ in range(ROUNDS):
        for name, answer in requests.items():
            began = clock()
            answer()
            taken[name].append((clock() - began) * 1_000)
    lines = []
    for share in (50, 99):
        without, attended = (float(np.percentile(taken[name], share)) for name in ("dlrm", "din"))
        said = f"without the sequence: {without:.2f}"
        lines.append(Line("attention", f"{what}, p{share}", attended, unit, said, attended / without))
    return lines


def _body(candidates: int) -> bytes:
    random = np.random.default_rng(5)
    time_us = int((_START + timedelta(days=_DAYS - 1, hours=12)).timestamp() * 1e6)
    columns: dict[str, tuple[str, list[Any]]] = {
        "user_id": ("INT64", [7]),
        "item_id": ("INT64", random.integers(0, _ITEMS, candidates).tolist()),
        "page": ("BYTES", ["home"]),
        "price": ("FP64", random.gamma(2.0, 10.0, candidates).tolist()),
        Columns.TIME: ("INT64", [time_us]),
    }
    inputs = [
        {"name": name, "datatype": datatype, "shape": [len(values)], "data": values}
        for name, (datatype, values) in columns.items()
    ]
    return json.dumps({"inputs": inputs}).encode()


if __name__ == "__main__":
    main()
