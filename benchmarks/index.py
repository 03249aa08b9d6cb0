"""The approximate indexes of items against an exact search: build, memory, recall, time of a query.

Vectors lie around one centre per 50 items, spread so widely that the 500 nearest of a query come from many clusters:
harder than learnt vectors, which lie on fewer dimensions. Queries are items, moved a little. All searches take turns
and answer one query at a time, as a server does; time is processor time, which other programs on the machine do not
lengthen much. Clusters of more than a million items and a graph (usearch) of more than a hundred thousand take half an
hour and more, and are left out. usearch is measured where `make bench NAME=peers OPTIONS=recommend` has installed it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Line, cost, in_turn, record, show
from benchmarks.targets import exit_code
from shortlist.slates.retrieval.index import ExactIndex, VectorIndex, build_index, index_recall, mean_recall, open_index
from shortlist.spec.retrieval import ItemIndex
from shortlist.storage.artefacts import read_json

SIZES: Final = (100_000, 1_000_000, 5_000_000)
WIDTH: Final = 64
CANDIDATES: Final = 500
QUERIES: Final = 100
TUNING: Final = 200
KINDS: Final[Mapping[str, Mapping[str, int | str]]] = {
    "scan": {"scan_up_to": 1_000_000_000},
    "clusters": {"scan_up_to": 0},
    "clusters, int8": {"scan_up_to": 0, "precision": "int8"},
}
ROOT: Final = Path(__file__).parents[1]
MOST_CLUSTERED: Final = 1_000_000
MOST_IN_GRAPH: Final = 100_000
PEER: Final = ROOT / ".venv-peers-recommend/bin/python"
_BLOCK: Final = 100_000
_PER_CENTRE: Final = 50

Matrix = NDArray[np.float32]


def make_vectors(rows: int, seed: int = 0) -> Matrix:
    """Return vectors of length 1, shape (rows, WIDTH)."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(1, rows // _PER_CENTRE), WIDTH), np.float32)
    vectors = np.empty((rows, WIDTH), np.float32)
    for first in range(0, rows, _BLOCK):
        block = vectors[first : first + _BLOCK]
        block[:] = centres[random.integers(0, len(centres), len(block))]
        block += 0.4 * random.standard_normal(block.shape, np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def make_queries(vectors: Matrix, count: int, seed: int) -> Matrix:
    """Return queries near some vectors."""
    random = np.random.default_rng(seed)
    near = vectors[random.integers(0, len(vectors), count)] + 0.05 * random.standard_normal((count, WIDTH), np.float32)
    queries: Matrix = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    return queries


def measured(size: int) -> list[Line]:
    """Return the figures of one number of items."""
    vectors = make_vectors(size)
    queries, tuning = make_queries(vectors, QUERIES, 1), make_queries(vectors, TUNING, 2)
    name = f"{size:,} items".replace(",", " ")
    lines: list[Line] = []
    searched: dict[str, VectorIndex] = {"exact": ExactIndex(vectors)}
    with TemporaryDirectory() as scratch:
        for kind, settings in KINDS.items():
            if kind != "scan" and size > MOST_CLUSTERED:
                continue
            folder = Path(scratch) / kind
            folder.mkdir()
            section = ItemIndex.model_validate({"exact_up_to": 0, **settings})
            built = cost(lambda: build_index(vectors, tuning, section, CANDIDATES, folder, 1))  # noqa: B023
            index = searched[kind] = open_index(folder)
            recall = index_recall(index, searched["exact"], queries, CANDIDATES)
            mib = (folder / "index.faiss").stat().st_size / 2**20
            lines += [
                Line("index", f"{name}, {kind}, build, processor time", built.cpu_s, "s"),
                Line("index", f"{name}, {kind}, file", mib, "MiB"),
                Line("index", f"{name}, {kind}, recall@{CANDIDATES}", recall, "", _width_of(folder)),
            ]
        times, exact_ms = _times(name, searched, queries)
        return [*lines, *times, *_of_usearch(name, vectors, queries, searched["exact"], exact_ms, Path(scratch))]


def _of_usearch(
    name: str, vectors: Matrix, queries: Matrix, exact: VectorIndex, exact_ms: float, scratch: Path
) -> list[Line]:
    if not PEER.exists():
        return []
    np.save(scratch / "vectors.npy", vectors)
    np.save(scratch / "queries.npy", queries)
    nearest = exact.search(queries, CANDIDATES).items
    lines = []
    for kind in ("scan", "graph") if len(vectors) <= MOST_IN_GRAPH else ("scan",):
        program = [str(PEER), str(ROOT / "benchmarks/peers/usearch_index.py")]
        arguments = [str(scratch / "vectors.npy"), str(scratch / "queries.npy"), str(CANDIDATES), kind]
        subprocess.run([*program, *arguments, str(scratch / "found.npz")], check=True)  # noqa: S603 - our own program
        answers, of = np.load(scratch / "found.npz"), f"{name}, usearch {kind}, int8"
        ms = float(answers["search_ms"])
        lines += [
            Line("index", f"{of}, build, processor time", float(answers["build_s"]), "s"),
            Line("index", f"{of}, memory", float(answers["mib"]), "MiB"),
            Line("index", f"{of}, recall@{CANDIDATES}", mean_recall(answers["items"], nearest), ""),
            Line("index", f"{of}, processor time", ms, "ms/query", "exact", ms / exact_ms),
        ]
    return lines


def _width_of(folder: Path) -> str:
    """Return how widely an index searches."""
    facts = read_json(folder / "index.json")
    if facts["kind"] == "scan":
        return f"{facts['bits']} bits, {facts['depth']} times the rows"
    return f"{facts['probes']} of {facts['lists']}"


def _times(name: str, searched: Mapping[str, VectorIndex], queries: Matrix) -> tuple[list[Line], float]:
    def search(index: VectorIndex) -> None:
        for number in range(len(queries)):
            index.search(queries[number : number + 1], CANDIDATES)

    works = {kind: partial(search, index) for kind, index in searched.items()}
    ms = {kind: 1_000 * cost.cpu_s / len(queries) for kind, cost in in_turn(works, rounds=3).items()}
    lines = [
        Line("index", f"{name}, {kind}, processor time", milliseconds, "ms/query", "exact", milliseconds / ms["exact"])
        for kind, milliseconds in ms.items()
    ]
    return lines, ms["exact"]


def main() -> int:
    """Measure every size; the exit code is 1 when an index finds less than 0.98 of the exact answers."""
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    lines = [line for size in sizes for line in measured(size)]
    show(f"Nearest {CANDIDATES} of items with {WIDTH} numbers each", lines)
    record(lines)
    return exit_code(line for line in lines if "usearch" not in line.name)


if __name__ == "__main__":
    raise SystemExit(main())
