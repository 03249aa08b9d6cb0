"""The approximate index of items against an exact search, `make bench-index`: build, memory, recall, time of a query.

Vectors lie around 2 000 centres, spread so widely that the 500 nearest of a query come from many clusters: harder than
learnt vectors, which lie on fewer dimensions. Queries are items, moved a little. Both searches answer one query at a
time, as a server does; time is processor time, which other programs on the machine do not lengthen much.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Line, cost, record, show
from shortlist.retrieval.index import ExactIndex, VectorIndex, build_index, index_recall, open_index
from shortlist.spec.retrieval import ItemIndex
from shortlist.storage.artefacts import read_json

SIZES: Final = (100_000, 1_000_000)
WIDTH: Final = 64
CANDIDATES: Final = 500
QUERIES: Final = 100
TUNING: Final = 200
_BLOCK: Final = 100_000

Matrix = NDArray[np.float32]


def make_vectors(rows: int, seed: int = 0) -> Matrix:
    """Return vectors of length 1, shape (rows, WIDTH)."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(2_000, WIDTH)).astype(np.float32)
    made = np.empty((rows, WIDTH), np.float32)
    for first in range(0, rows, _BLOCK):
        block = made[first : first + _BLOCK]
        block[:] = centres[random.integers(0, len(centres), len(block))]
        block += 0.4 * random.standard_normal(block.shape, np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def make_queries(vectors: Matrix, count: int, seed: int) -> Matrix:
    """Return queries near some vectors."""
    random = np.random.default_rng(seed)
    near = vectors[random.integers(0, len(vectors), count)] + 0.05 * random.standard_normal((count, WIDTH), np.float32)
    made: Matrix = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    return made


def measured(size: int) -> list[Line]:
    """Return the figures of one number of items."""
    vectors = make_vectors(size)
    queries, tuning = make_queries(vectors, QUERIES, 1), make_queries(vectors, TUNING, 2)
    exact = ExactIndex(vectors)
    of_exact = _ms(exact, queries)
    name = f"{size:,} items".replace(",", " ")
    lines = [Line("index", f"{name}, exact, processor time", of_exact, "ms/query")]
    for precision in ("float32", "int8"):
        with TemporaryDirectory() as folder:
            section = ItemIndex.model_validate({"exact_up_to": 0, "precision": precision})
            built = cost(lambda: build_index(vectors, tuning, section, CANDIDATES, Path(folder), 1))  # noqa: B023
            facts = read_json(Path(folder) / "index.json")
            index, mib = open_index(Path(folder)), (Path(folder) / "index.faiss").stat().st_size / 2**20
            found, recall = _ms(index, queries), index_recall(index, exact, queries, CANDIDATES)
        probes = f"{facts['probes']} of {facts['lists']} lists"
        lines += [
            Line("index", f"{name}, {precision}, build, processor time", built.cpu_s, "s"),
            Line("index", f"{name}, {precision}, file", mib, "MiB"),
            Line("index", f"{name}, {precision}, recall@{CANDIDATES}", recall, "", probes),
            Line("index", f"{name}, {precision}, processor time", found, "ms/query", "exact", found / of_exact),
        ]
    return lines


def main() -> int:
    """Measure every size; the exit code is 1 when an index finds less than 0.98 of the exact answers."""
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    lines = [line for size in sizes for line in measured(size)]
    show(f"Nearest {CANDIDATES} of items with {WIDTH} numbers each", lines)
    record(lines)
    return int(any("recall" in line.name and line.value < 0.98 for line in lines))


def _ms(index: VectorIndex, queries: Matrix) -> float:
    index.search(queries[:1], CANDIDATES)
    took = cost(lambda: [index.search(queries[one : one + 1], CANDIDATES) for one in range(len(queries))])
    return 1_000 * took.cpu_s / len(queries)


if __name__ == "__main__":
    raise SystemExit(main())
