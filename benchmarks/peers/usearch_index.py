"""An index of usearch: what `benchmarks.index` compares the indexes of faiss with.

Runs in an environment of its own (`make bench NAME=peers OPTIONS=recommend`).

    python usearch_index.py VECTORS.npy QUERIES.npy MOST KIND FOUND.npz

KIND is `scan` (every vector, compared as 8-bit numbers) or `graph` (HNSW of 8-bit numbers, its neighbours and the
vectors that a query visits given below). FOUND.npz gets `items`, shape (queries, MOST), best first; `build_s` and
`search_ms` per query, processor time; `mib`, of what is kept in memory.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from usearch.index import Index, MetricKind, ScalarKind, search

CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 1_600


def main() -> None:
    """Build, ask, write."""
    vectors, queries = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2])
    list_length, kind = int(sys.argv[3]), sys.argv[4]
    began = time.process_time()
    if kind == "scan":
        vectors_int8 = np.rint(vectors * (127 / np.abs(vectors).max())).astype(np.int8)
        mib = vectors_int8.nbytes / 2**20
        queries_int8 = np.rint(queries * (127 / np.abs(queries).max(axis=1, keepdims=True))).astype(np.int8)

        def ask(query_number: int) -> np.ndarray:
            return search(
                vectors_int8, queries_int8[query_number], list_length, MetricKind.IP, exact=True, threads=1
            ).keys
    else:
        index = Index(
            ndim=vectors.shape[1], metric=MetricKind.IP, dtype=ScalarKind.I8, connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD, expansion_search=EXPANSION_SEARCH,
        )  # fmt: skip
        index.add(np.arange(len(vectors)), np.asarray(vectors))
        mib = index.memory_usage / 2**20

        def ask(query_number: int) -> np.ndarray:
            return index.search(queries[query_number], list_length, threads=1).keys

    build = time.process_time() - began
    items = np.full((len(queries), list_length), -1, np.int64)
    began = time.process_time()
    for query_number in range(len(queries)):
        keys = np.asarray(ask(query_number)).ravel()
        items[query_number, : len(keys)] = keys
    spent = time.process_time() - began
    np.savez(sys.argv[5], items=items, build_s=build, search_ms=1_000 * spent / len(queries), mib=mib)


if __name__ == "__main__":
    main()
