"""A slate of 10 of a million items against ranking 500 of them: `make bench NAME=recommend [OPTIONS=1000000]`.

Both go through the same Envoy, server and Triton, in turn: a client that brings 500 candidates gets their scores, a
client that brings a user gets a slate of 10 from 500 candidates of three sources, diversified by vectors of 64 numbers.
What the added stages cost is the difference. What a server does in them is measured apart, as processor time of all its
threads, which other programs on the machine do not lengthen much.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import polars as pl

from benchmarks.bench import Line, console, record, show
from benchmarks.serve_callers import Caller, served, timed
from benchmarks.serve_world import Question, World, demo_world
from benchmarks.targets import exit_code
from shortlist.contracts import Files
from shortlist.rollout.local.stack import Stack
from shortlist.serving.server.requests.headers import recommend_model
from shortlist.serving.traffic.requests import prepare
from shortlist.slates.ordering.order import order
from shortlist.slates.recommender import Recommender, SlateRequest
from shortlist.slates.release import open_release, write_release
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.slates.retrieval.source import ROW
from shortlist.spec.data import Column, Data
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval, item_tables
from shortlist.storage.side_tables import side_path
from shortlist.storage.tables import DayTable

ITEMS: Final = 1_000_000
WIDTH: Final = 64
CANDIDATES: Final = 500
PLACES: Final = 10
ROUNDS: Final = 10
CALLS: Final = 30
"""Of each kind in a round."""
VECTOR: Final = "made_vector"
PEER: Final = f"rank of {CANDIDATES} items"
RETRIEVAL: Final[dict[str, Any]] = {
    "candidates": CANDIDATES,
    "sources": {
        "popular": {"kind": "popular"},
        "together": {"kind": "co_visitation"},
        "near": {"kind": "item_vector", "column": VECTOR},
    },
}
FILTERS: Final[dict[str, Any]] = {"rules": [{"kind": "where", "keep": "creator_id IS NOT NULL"}]}
ORDERING: Final[dict[str, Any]] = {"diversity": {"kind": "mmr", "by": VECTOR}}


def main() -> int:
    """Make the world, ask, print and record; exit code 1 when a figure is below what is asked."""
    items, printing = int(sys.argv[1]) if len(sys.argv) > 1 else ITEMS, console()
    with (
        TemporaryDirectory(prefix="shortlist-bench-") as scratch,
        printing.status("making log, model, index") as status,
    ):
        world = demo_world(Path(scratch) / "demo", ("xgboost",))
        release = release_of(world, items, Path(scratch))
        status.update("asking")
        with served(world, "xgboost", release) as stack:
            stages = open_release(release, with_vectors(world.spec.data))
            users = users_with_recent_items(stages)
            lines = lines_of(*time_requests(world, stack, users[0]), items)
        lines += [*stage_lines(stages, users), diversity_line()]
    show(f"{PLACES} of {items:,} items through Envoy and Triton", lines)
    record(lines)
    return exit_code(lines)


def release_of(world: World, items: int, scratch: Path) -> Path:
    """Return a release whose catalogue has so many items, each with a vector; those of the log are among them."""
    log = scratch / "log"
    shutil.copytree(world.folder / "log", log)
    declared = with_vectors(world.spec.data)
    (table,) = item_tables(declared)
    many_items(side_path(log, table), table.key, items)
    opened = DayTable.open(log, Files.LOG)
    days = frozenset(part.day for part in opened.days)
    fit_retrieval(Retrieval.model_validate(RETRIEVAL), declared, opened, days, scratch / "sources", 1)
    sections = Filters.model_validate(FILTERS), Ordering.model_validate(ORDERING)
    write_release(scratch / "sources", declared, *sections, log, None, scratch / "release")
    return scratch / "release"


def with_vectors(data: Data) -> Data:
    """Return a declaration whose items have a vector."""
    (items,) = item_tables(data)
    wider = items.model_copy(update={"columns": (*items.columns, Column(name=VECTOR, type="vector"))})
    tables = tuple(wider if table is items else table for table in data.side_tables)
    return data.model_copy(update={"side_tables": tables})


def many_items(path: Path, key: str, items: int) -> None:
    """Add made items to a side table, like those that are there, and a vector to each."""
    items_on_disk = pl.read_parquet(path)
    copies = items_on_disk.sample(max(0, items - items_on_disk.height), with_replacement=True, seed=1)
    highest: Any = items_on_disk[key].max()
    numbers = pl.int_range(highest + 1, highest + 1 + copies.height, eager=True).cast(items_on_disk.schema[key])
    all_items = pl.concat([items_on_disk, copies.with_columns(numbers.alias(key))])
    vectors = np.random.default_rng(1).standard_normal((all_items.height, WIDTH), np.float32)
    vector_column = pl.Series(VECTOR, vectors, pl.Array(pl.Float32, WIDTH)).cast(pl.List(pl.Float32))
    all_items.with_columns(vector_column).write_parquet(path)


def users_with_recent_items(stages: Recommender) -> list[int]:
    """Return the users with most recent items that sources start from; for others two of three find nothing."""
    recent = stages.retriever.recent.table
    longest_histories = recent.select(length=pl.col(ROW).list.len(), user="user").sort(
        "length", "user", descending=[True, False]
    )
    return longest_histories["user"].head(CALLS * ROUNDS).to_list()


def time_requests(world: World, stack: Stack, user: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of ranking and of recommending for a user, asked in turn."""
    question, name = Question(world, world.models["xgboost"], CANDIDATES), world.spec.name
    question.inputs["user_id"] = np.array([user])
    ranked = prepare(question.inputs, "http", name)
    asks = (
        (f"/v2/models/{name}/infer", ranked.body, ranked.headers),
        slate_request(world, question),
    )
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for ask, times in zip(asks, spent, strict=True):
            # Anew in each round: the gateway closes a connection that waits for long.
            with contextlib.closing(Caller(stack.port, *ask)) as caller:
                times.extend(timed(caller.ask, CALLS))
                response = json.loads(caller.ask()) if ask is asks[1] else {"outputs": []}
        slate = {output["name"]: output["data"] for output in response["outputs"]}
        assert len(slate["item_id"]) == PLACES and len({*slate["item_id"]}) == PLACES, slate
    return spent


def slate_request(world: World, question: Question) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of a request for a slate for the user of a question."""
    user_inputs = {key: question.inputs[key] for key in ("user_id", "surface", "device")}
    inputs = [{"name": "k", "datatype": "INT64", "shape": [1], "data": [PLACES]}] + [
        {"name": key, "datatype": "INT64" if value.dtype.kind == "i" else "BYTES", "shape": [1], "data": value.tolist()}
        for key, value in user_inputs.items()
    ]
    path = f"/v2/models/{recommend_model(world.spec.name)}/infer"
    return path, json.dumps({"inputs": inputs}).encode(), {"Content-Type": "application/json"}


def lines_of(ranked: list[float], recommended: list[float], items: int) -> list[Line]:
    """Return p50 and p99 of both, and what the added stages cost."""
    lines = []
    for name, of in (("p50", 50), ("p99", 99)):
        peer, recommend_ms = (float(np.percentile(times, of)) for times in (ranked, recommended))
        lines.append(Line("recommend", f"{PEER}, {name}", round(peer, 3), "ms", PEER, 1.0))
        lines.append(
            Line(
                "recommend",
                f"{PLACES} of {items:,}, {name}",
                round(recommend_ms, 3),
                "ms",
                PEER,
                round(recommend_ms / peer, 3),
            )
        )
        if name == "p50":
            added = Line(
                "recommend",
                "added stages, p50",
                round(recommend_ms - peer, 3),
                "ms",
                PEER,
                round(recommend_ms / peer - 1, 3),
            )
            lines.append(added)
    return lines


def stage_lines(stages: Recommender, users: Sequence[int]) -> list[Line]:
    """Return the processor time of finding users' candidates and of ordering them, in this process."""
    random = np.random.default_rng(3)
    spent: dict[str, list[float]] = {"finding candidates": [], "ordering": []}
    for user in users:
        request = SlateRequest(f"request {user}", user, PLACES, datetime.now(UTC))
        started = time.process_time()
        candidates = stages.find(request)
        retrieved_at = time.process_time()
        assert candidates.rows.height == CANDIDATES and {*candidates.source_counts} == {*RETRIEVAL["sources"]}, (
            candidates
        )
        scores = random.random(candidates.rows.height)
        scored = time.process_time()
        stages.slate(request, candidates, scores)
        spent["finding candidates"].append(retrieved_at - started)
        spent["ordering"].append(time.process_time() - scored)
    return [
        Line("recommend", f"{name}, processor time, p{of}", float(np.percentile(times, of)) * 1_000, "ms")
        for name, times in spent.items()
        for of in (50, 99)
    ]


def diversity_line() -> Line:
    """Return what MMR takes for ten of five hundred."""
    random = np.random.default_rng(2)
    vectors = pl.Series(VECTOR, random.standard_normal((CANDIDATES, WIDTH), np.float32), pl.Array(pl.Float32, WIDTH))
    rows = pl.DataFrame([vectors.cast(pl.List(pl.Float32)), pl.Series("score", random.random(CANDIDATES))])
    section = Ordering.model_validate(ORDERING)
    spent = median(timed(lambda: order(rows, section, PLACES, "request"), 200))
    return Line("recommend", f"MMR, {CANDIDATES} to {PLACES}", round(spent, 3), "ms")


if __name__ == "__main__":
    sys.exit(main())
