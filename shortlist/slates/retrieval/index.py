"""Indices for the nearest vectors by inner product: exact search, scan of quantised vectors, or clusters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shortlist.slates.retrieval.catalogue import open_mapped_array
from shortlist.slates.retrieval.source import RankedItems, pad_lists, rank_items, top_positions
from shortlist.spec.retrieval import ItemIndex
from shortlist.storage.artefacts import read_json, write_json

Matrix = NDArray[np.float32]

INDEX: Final = "index.json"
VECTORS: Final = "vectors.npy"
"""File with every item's vector by row number, float32; zeros: it has none."""
_ROWS: Final = "index_rows.npy"
_APPROXIMATE: Final = "index.faiss"
_BLOCK_BYTES: Final = 64 << 20
"""Bytes of scores that an exact search holds at once."""
_ROWS_PER_LIST: Final = 64
"""Vectors per cluster that clusters are trained on."""
_BITS: Final = {4: (2, 3, 4, 6, 8), 8: (2, 4, 8, 16, 32)}
"""Bits of quantised numbers, and the depths to try with them: multiples of the requested rows to compare exactly. The
first that reaches the recall is taken. Fewer bits are scanned faster, and are less precise."""
_LARGEST: Final = 127
"""Largest 8-bit number."""
_VECTORS_PER_BATCH: Final = 100_000
"""Vectors that are added to an index at once."""
_SAMPLE: Final = 20_000
"""Vectors that the 16 levels of each number are trained on."""
_DIVIDED_FROM: Final = 200_000
"""Number of 4-bit vectors from which on two threads scan a part each; scanning fewer is faster than waking another
thread."""
_SHARES: Final = (0.45, 0.55)
"""Shares of the vectors in the part of the calling thread, which does other work first, and of the other thread."""


class VectorIndex(ABC):
    """An index of vectors."""

    approximate: bool

    @abstractmethod
    def search(self, queries: Matrix, max_items: int) -> RankedItems:
        """Return the rows with the largest inner products, shape (B, most).

        Args:
            queries: Shape (B, D).
            max_items: Number of rows per query.
        """

    def begin(self, queries: Matrix, max_items: int) -> Callable[[], RankedItems]:
        """Start the part of a search that other threads do; return a function that finishes the search."""
        return partial(self.search, queries, max_items)


def build_index(
    vectors: Matrix, queries: Matrix, section: ItemIndex, max_items: int, folder: Path, seed: int
) -> None:  # fmt: skip
    """Write the index of vectors into a folder: `index.json` and the files of its kind.

    Args:
        vectors: Vectors by row number, shape (rows, D); a row of zeros has no vector and is never found.
        queries: Real queries, shape (some, D), by which the depth or probes of an approximate index are tuned.
        section: The declared index.
        max_items: Number of rows that queries will ask for.
        folder: Folder to write.
        seed: Seed of the clusters, and of the order of vectors that are scanned in parts.
    """
    vectors = np.ascontiguousarray(vectors, np.float32)
    item_rows = np.flatnonzero(vectors.any(axis=1)).astype(np.int32)
    np.save(folder / VECTORS, vectors)
    np.save(folder / _ROWS, item_rows)
    facts: dict[str, Any] = {"kind": "exact", "items": len(item_rows), "dimensions": int(vectors.shape[1])}
    if len(item_rows) > section.scan_up_to:
        facts |= _build_clusters(vectors[item_rows], queries, section, max_items, folder, seed)
    elif len(item_rows) > section.exact_up_to:
        facts |= _build_scan(vectors, item_rows, queries, section, max_items, folder, seed)
    write_json(folder / INDEX, facts)


def open_index(folder: Path) -> VectorIndex:
    """Return the index in a folder, mapped into memory.

    Raises:
        IntegrityError: There is none.
    """
    facts = read_json(folder / INDEX)
    vectors, rows = (open_mapped_array(folder / name) for name in (VECTORS, _ROWS))
    if facts["kind"] == "exact":
        return ExactIndex(vectors)
    if facts["kind"] == "scan":
        # Vectors of earlier versions are ordered by row, so that parts of them differ: one thread scans all.
        shares = tuple(facts["shares"]) if facts.get("shuffled") else (1.0,)
        scan = Scan(facts.get("bits", 8), facts["depth"], shares)
        return ScannedIndex(folder / _APPROXIMATE, vectors, rows, scan)
    return ClusteredIndex(folder / _APPROXIMATE, rows, facts["probes"])


class ExactIndex(VectorIndex):
    """Exact search: every vector is compared with every query, by BLAS."""

    approximate = False

    def __init__(self, vectors: Matrix) -> None:
        """Search vectors by row number, shape (items, D); a row of zeros is never found."""
        self._vectors = vectors
        self._missing = np.flatnonzero(~np.asarray(vectors).any(axis=1))

    def search(self, queries: Matrix, max_items: int) -> RankedItems:
        """Return the rows with the largest inner products; equal ones by row number."""
        step = max(1, _BLOCK_BYTES // (4 * max(1, len(self._vectors))))
        ranked = RankedItems(
            np.full((len(queries), max_items), -1, np.int32), np.full((len(queries), max_items), -np.inf, np.float32)
        )
        for first in range(0, len(queries), step):
            scores = np.asarray(queries[first : first + step], np.float32) @ np.asarray(self._vectors).T
            scores[:, self._missing] = -np.inf
            for query_number, query_scores in enumerate(scores, start=first):
                rows = top_positions(query_scores, max_items)
                rows = rows[query_scores[rows] > -np.inf]
                ranked.items[query_number, : len(rows)], ranked.scores[query_number, : len(rows)] = (
                    rows,
                    query_scores[rows],
                )
        return ranked


class Scan(NamedTuple):
    """Parameters of a scan of quantised vectors."""

    bits: int
    """Bits per number: 4 or 8."""
    depth: int
    """Multiple of the requested rows that are compared exactly."""
    shares: tuple[float, ...]
    """Share of the vectors in each part, which is searched by a thread of its own if one is free; they sum to 1.
    Vectors in several parts are shuffled, so that each part finds a proportional number of the best rows."""


class ScannedIndex(VectorIndex):
    """Scan of all vectors, quantised to 4 or 8 bits (faiss); the best rows are ranked by the exact vectors."""

    approximate = True

    def __init__(self, path: Path, vectors: Matrix, rows: NDArray[np.int32], scan: Scan) -> None:
        """Open a faiss index: 8-bit vectors are mapped into memory, 4-bit vectors are read.

        Args:
            path: File of the faiss index.
            vectors: Exact vectors by row number, shape (items, D).
            rows: Row number of every vector in the file.
            scan: Parameters of the scan.
        """
        self._scan, self._size = scan, len(rows)
        bounds = (np.cumsum((0, *scan.shares)) * len(rows)).astype(np.int64).tolist()
        self._parts = [
            _ScanPart(_read_vectors(path, first, last), rows[first:last].astype(np.int64), vectors)
            for first, last in pairwise(bounds)
        ]
        self._helpers = ThreadPoolExecutor(max(1, len(self._parts) - 1), thread_name_prefix="scan")

    def search(self, queries: Matrix, max_items: int) -> RankedItems:
        """Return the rows with the largest inner products among the best rows of the scan."""
        if len(queries) == 1:
            return self.begin(queries, max_items)()
        quantised, rows_per_part = self._quantise_queries(queries), self._rows_per_part(max_items)
        parts = [part.search(queries, quantised, count) for part, count in zip(self._parts, rows_per_part, strict=True)]
        ranked_lists = [_rank_parts(query_parts, max_items) for query_parts in zip(*parts, strict=True)]
        empty = RankedItems(np.empty((0, max_items), np.int32), np.empty((0, max_items), np.float32))
        return RankedItems(*(np.concatenate(lists) for lists in zip(empty, *ranked_lists, strict=True)))

    def begin(self, queries: Matrix, max_items: int) -> Callable[[], RankedItems]:
        """Start other threads on all parts but the first, for one query; return a function that finishes the search."""
        if len(queries) != 1:
            return partial(self.search, queries, max_items)
        quantised = self._quantise_queries(queries)
        first_search, *other_searches = [
            partial(part.search, queries, quantised, count)
            for part, count in zip(self._parts, self._rows_per_part(max_items), strict=True)
        ]
        futures = [self._helpers.submit(search) for search in other_searches]

        def finish() -> RankedItems:
            compared_parts = first_search()
            for search, future in zip(other_searches, futures, strict=True):
                # A search that no thread has started is done here: where no core is free, that is faster than waiting.
                compared_parts += search() if future.cancel() else future.result()
            return _rank_parts(compared_parts, max_items)

        return finish

    def _quantise_queries(self, queries: Matrix) -> Matrix:
        """Return queries as the scan compares them with quantised vectors."""
        largest = np.abs(queries).max(axis=1, keepdims=True, initial=0)
        # For a query of zeros all rows are equally near, and faiss would return none.
        quantised = np.where(largest > 0, queries / np.where(largest > 0, largest, 1), 1).astype(np.float32)
        return _round_vectors(quantised, _LARGEST) if self._scan.bits == 8 else quantised

    def _rows_per_part(self, max_items: int) -> list[int]:
        """Return how many rows each part compares exactly."""
        row_count = min(self._scan.depth * max_items, self._size)
        return [ceil(share * row_count) for share in self._scan.shares]


class _ScanPart(NamedTuple):
    """Part of the vectors that one thread searches."""

    index: Any
    """Index of faiss."""
    rows: NDArray[np.int64]
    """Row number of every vector in the index."""
    vectors: Matrix
    """Exact vectors of all items by row number, shape (items, D)."""

    def search(self, queries: Matrix, quantised: Matrix, count: int) -> list[_ComparedRows]:
        """Return for every query the best rows of the scan, and their exact inner products with it.

        Args:
            queries: Exact queries, shape (B, D).
            quantised: Queries as the scan compares them, same shape.
            count: Number of rows.
        """
        import faiss

        threads = faiss.omp_get_max_threads()
        # One thread per query: a second one would only spin, and a forked process has no other.
        faiss.omp_set_num_threads(min(threads, max(1, len(queries))))
        try:
            positions_by_query = self.index.search(quantised, min(count, len(self.rows)))[1]
            faiss.omp_set_num_threads(1)
            return [
                self._compare_exactly(query, self.rows[positions])
                for query, positions in zip(queries, positions_by_query, strict=True)
            ]
        finally:
            faiss.omp_set_num_threads(threads)

    def _compare_exactly(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> _ComparedRows:
        import faiss

        products, query = np.empty(len(rows), np.float32), np.ascontiguousarray(query, np.float32)
        pointers = (faiss.swig_ptr(array) for array in (products, query, self.vectors, rows))
        # It releases the GIL and copies no row. The stubs of faiss lack the function.
        faiss.fvec_inner_products_by_idx(*pointers, self.vectors.shape[1], 1, len(rows))  # type: ignore[attr-defined]
        return rows, products


_ComparedRows = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows and their inner products with a query."""


def _rank_parts(compared_parts: Sequence[_ComparedRows], max_items: int) -> RankedItems:
    """Return the best rows of one query among those of all parts."""
    rows, products = (np.concatenate(lists) for lists in zip(*compared_parts, strict=True))
    return rank_items(rows, products, max_items)


def _read_vectors(path: Path, first: int, last: int) -> Any:
    """Return the vectors from first to last of a faiss index; the whole index is mapped into memory where possible."""
    import faiss

    index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    if last - first < index.ntotal:
        index.remove_ids(faiss.IDSelectorNot(faiss.IDSelectorRange(first, last)))
    return index


class ClusteredIndex(VectorIndex):
    """Clustered vectors: a query searches the clusters with the nearest centres (faiss, inverted file)."""

    approximate = True

    def __init__(self, path: Path, rows: NDArray[np.int32], probes: int) -> None:
        """Map a faiss index into memory.

        Args:
            path: File of the faiss index.
            rows: Row number of every vector in it.
            probes: Number of clusters that a query searches.
        """
        import faiss

        self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        self._rows, self._probes = rows, probes

    def search(self, queries: Matrix, max_items: int) -> RankedItems:
        """Return the rows with the largest inner products among the searched clusters."""
        import faiss

        options = faiss.SearchParametersIVF(nprobe=self._probes)  # type: ignore[call-arg] # its stubs lack it
        row_count = min(max_items, len(self._rows))
        scores, positions = self._index.search(np.ascontiguousarray(queries, np.float32), row_count, params=options)
        items = np.where(positions < 0, -1, np.asarray(self._rows)[np.maximum(positions, 0)]).astype(np.int32)
        return pad_lists(items, np.where(positions < 0, -np.inf, scores).astype(np.float32), max_items)


def index_recall(index: VectorIndex, exact: VectorIndex, queries: Matrix, max_items: int) -> float:
    """Return the share of the exact answers that an index finds, the mean over queries.

    Args:
        index: The index.
        exact: Exact index of the same vectors.
        queries: Shape (some, D), one at least.
        max_items: Number of rows per query.
    """
    approximate_items, exact_items = index.search(queries, max_items).items, exact.search(queries, max_items).items
    return mean_recall(approximate_items, exact_items)


def mean_recall(approximate: NDArray[np.int32], exact: NDArray[np.int32]) -> float:
    """Return the share of the exact rows that are among the approximate rows, the mean over lines; -1 is no row.

    >>> mean_recall(np.array([[1, 2, -1]], np.int32), np.array([[2, 3, -1]], np.int32))
    0.5
    """
    shares = [
        len(np.intersect1d(approximate_rows[approximate_rows >= 0], exact_rows[exact_rows >= 0]))
        / max(1, int((exact_rows >= 0).sum()))
        for approximate_rows, exact_rows in zip(approximate, exact, strict=True)
    ]
    return float(np.mean(shares))


def default_lists(items: int) -> int:
    """Return the default number of clusters: four times the square root of the number of vectors.

    >>> default_lists(1_000_000)
    4000
    """
    return max(1, int(4 * items**0.5))


def _round_vectors(vectors: Matrix, scale: NDArray[Any] | float) -> Matrix:
    """Return vectors rounded to whole numbers, of which faiss keeps 8 bits each."""
    numbers: Matrix = np.rint(vectors * scale).astype(np.float32)
    return numbers


def _build_scan(
    vectors: Matrix,
    item_rows: NDArray[np.int32],
    queries: Matrix,
    section: ItemIndex,
    max_items: int,
    folder: Path,
    seed: int,
) -> dict[str, Any]:
    import faiss

    exact = ExactIndex(vectors).search(queries, max_items).items
    is_divided = len(item_rows) >= _DIVIDED_FROM
    if is_divided:
        item_rows = np.random.default_rng(seed).permutation(item_rows)
        np.save(folder / _ROWS, item_rows)
    for bits, depths in _BITS.items():
        index = (
            _build_four_bit_index(vectors, item_rows, seed) if bits == 4 else _build_eight_bit_index(vectors, item_rows)
        )
        faiss.write_index(index, str(folder / _APPROXIMATE))
        for depth in depths:
            scan = Scan(bits, depth, _SHARES if bits == 4 and is_divided else (1.0,))
            scanned_items = (
                ScannedIndex(folder / _APPROXIMATE, vectors, item_rows, scan).search(queries, max_items).items
            )
            recall = mean_recall(scanned_items, exact)
            facts = {"kind": "scan", **scan._asdict(), "shuffled": is_divided, "tuned_recall": recall}
            if recall >= section.min_recall:
                return facts
    return facts


def _build_four_bit_index(vectors: Matrix, item_rows: NDArray[np.int32], seed: int) -> Any:
    """Return a faiss index in which each number is the nearest of 16 levels."""
    import faiss

    width = vectors.shape[1]
    index = faiss.IndexPQFastScan(width, width, 4, faiss.METRIC_INNER_PRODUCT)
    index.pq.cp.seed, index.pq.cp.min_points_per_centroid = seed, 1
    # With repetitions: there may be fewer vectors than levels.
    index.train(vectors[np.random.default_rng(seed).choice(item_rows, _SAMPLE)])
    for first in range(0, len(item_rows), _VECTORS_PER_BATCH):
        index.add(vectors[item_rows[first : first + _VECTORS_PER_BATCH]])
    return index


def _build_eight_bit_index(vectors: Matrix, item_rows: NDArray[np.int32]) -> Any:
    import faiss

    width = vectors.shape[1]
    index = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT)
    scale = _LARGEST / float(np.abs(vectors).max())
    for first in range(0, len(item_rows), _VECTORS_PER_BATCH):
        index.add(_round_vectors(vectors[item_rows[first : first + _VECTORS_PER_BATCH]], scale))
    return index


def _build_clusters(
    vectors: Matrix, queries: Matrix, section: ItemIndex, max_items: int, folder: Path, seed: int
) -> dict[str, Any]:
    import faiss

    count, width = vectors.shape
    lists = min(section.lists or default_lists(count), count)
    centres = faiss.IndexFlatIP(width)
    index: faiss.IndexIVF
    if section.precision == "int8":
        kind = faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexIVFScalarQuantizer(centres, width, lists, kind, faiss.METRIC_INNER_PRODUCT)
    else:
        index = faiss.IndexIVFFlat(centres, width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = seed
    index.cp.min_points_per_centroid = 1
    random = np.random.default_rng(seed)
    sample = vectors[np.sort(random.choice(count, min(count, lists * _ROWS_PER_LIST), replace=False))]
    index.train(sample)
    index.add(vectors)
    faiss.write_index(index, str(folder / _APPROXIMATE))
    rows = np.arange(count, dtype=np.int32)
    probe_counts = [section.probes] if section.probes is not None else _probes_to_try(lists)
    exact = ExactIndex(vectors).search(queries, max_items).items
    for probes in probe_counts:
        recall = mean_recall(
            ClusteredIndex(folder / _APPROXIMATE, rows, probes).search(queries, max_items).items, exact
        )
        if recall >= section.min_recall:
            break
    return {"kind": "ivf", "precision": section.precision, "lists": lists, "probes": probes, "tuned_recall": recall}


def _probes_to_try(lists: int) -> Sequence[int]:
    """Return numbers of probes to try, each half more than the one before, up to the number of lists.

    >>> list(_probes_to_try(20))
    [1, 2, 3, 5, 8, 12, 18, 20]
    """
    probe_counts = [1]
    while probe_counts[-1] < lists:
        probe_counts.append(min(lists, probe_counts[-1] + max(1, (probe_counts[-1] + 1) // 2)))
    return probe_counts
