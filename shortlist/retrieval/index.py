"""The nearest of many vectors by inner product: exactly, by a scan of small numbers, or in clusters."""

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

from shortlist.retrieval.catalogue import mapped_array
from shortlist.retrieval.source import Ranked, best, highest, padded
from shortlist.spec.retrieval import ItemIndex
from shortlist.storage.artefacts import read_json, write_json

Matrix = NDArray[np.float32]

INDEX: Final = "index.json"
VECTORS: Final = "vectors.npy"
"""Every item's vector by row number, float32; zeros: it has none."""
_ROWS: Final = "index_rows.npy"
_APPROXIMATE: Final = "index.faiss"
_BLOCK_BYTES: Final = 64 << 20
"""Scores that an exact search holds at once."""
_ROWS_PER_LIST: Final = 64
"""Vectors per cluster that the clusters are made from."""
_BITS: Final = {4: (2, 3, 4, 6, 8), 8: (2, 4, 8, 16, 32)}
"""Bits of the numbers that a scan compares, and times the wanted rows that it finds before these are compared exactly:
the first of all that finds enough. Fewer bits are read faster, and hide more."""
_LARGEST: Final = 127
"""Largest of the whole numbers of 8 bits."""
_AT_ONCE: Final = 100_000
"""Vectors that are rounded at once."""
_SAMPLE: Final = 20_000
"""Vectors that the 16 levels of each number are chosen from."""
_DIVIDED_FROM: Final = 200_000
"""Vectors of 4-bit numbers from which two threads scan a part each; fewer are scanned sooner than another thread is
woken."""
_SHARES: Final = (0.45, 0.55)
"""Of the vectors, in the part of the thread that asks, which does other things first, and in the other thread's."""


class VectorIndex(ABC):
    """Vectors that can be searched."""

    approximate: bool

    @abstractmethod
    def search(self, queries: Matrix, most: int) -> Ranked:
        """Return the rows with the largest inner products, shape (B, most).

        Args:
            queries: Shape (B, D).
            most: Wanted rows.
        """

    def begin(self, queries: Matrix, most: int) -> Callable[[], Ranked]:
        """Begin a search, as far as another thread does it; return what finishes it."""
        return partial(self.search, queries, most)


def build_index(
    vectors: Matrix, queries: Matrix, section: ItemIndex, most: int, folder: Path, seed: int
) -> None:  # fmt: skip
    """Write the index of some vectors into a folder: `index.json` and what it names.

    Args:
        vectors: By row number, shape (rows, D); a row of zeros has no vector and is never found.
        queries: Real queries, shape (some, D), by which it is chosen how widely an approximate index searches.
        section: What is declared.
        most: Rows per query that will be asked for.
        folder: Where to write.
        seed: Of the clusters, and of the order of vectors that are scanned in parts.
    """
    vectors = np.ascontiguousarray(vectors, np.float32)
    there = np.flatnonzero(vectors.any(axis=1)).astype(np.int32)
    np.save(folder / VECTORS, vectors)
    np.save(folder / _ROWS, there)
    facts: dict[str, Any] = {"kind": "exact", "items": len(there), "dimensions": int(vectors.shape[1])}
    if len(there) > section.scan_up_to:
        facts |= _build_clusters(vectors[there], queries, section, most, folder, seed)
    elif len(there) > section.exact_up_to:
        facts |= _build_scan(vectors, there, queries, section, most, folder, seed)
    write_json(folder / INDEX, facts)


def open_index(folder: Path) -> VectorIndex:
    """Return the index in a folder, mapped into memory.

    Raises:
        IntegrityError: There is none.
    """
    facts = read_json(folder / INDEX)
    vectors, rows = (mapped_array(folder / name) for name in (VECTORS, _ROWS))
    if facts["kind"] == "exact":
        return ExactIndex(vectors)
    if facts["kind"] == "scan":
        # Vectors of earlier versions are in the order of rows, and parts of them are not alike: one thread scans all.
        shares = tuple(facts["shares"]) if facts.get("shuffled") else (1.0,)
        scan = Scan(facts.get("bits", 8), facts["depth"], shares)
        return ScannedIndex(folder / _APPROXIMATE, vectors, rows, scan)
    return ClusteredIndex(folder / _APPROXIMATE, rows, facts["probes"])


class ExactIndex(VectorIndex):
    """Every vector is compared with every query, by BLAS."""

    approximate = False

    def __init__(self, vectors: Matrix) -> None:
        """Take vectors by row number, shape (items, D); a row of zeros is never found."""
        self._vectors = vectors
        self._missing = np.flatnonzero(~np.asarray(vectors).any(axis=1))

    def search(self, queries: Matrix, most: int) -> Ranked:
        """Return the rows with the largest inner products; equal ones by row number."""
        step = max(1, _BLOCK_BYTES // (4 * max(1, len(self._vectors))))
        found = Ranked(np.full((len(queries), most), -1, np.int32), np.full((len(queries), most), -np.inf, np.float32))
        for first in range(0, len(queries), step):
            scores = np.asarray(queries[first : first + step], np.float32) @ np.asarray(self._vectors).T
            scores[:, self._missing] = -np.inf
            for line, own in enumerate(scores, start=first):
                rows = highest(own, most)
                rows = rows[own[rows] > -np.inf]
                found.items[line, : len(rows)], found.scores[line, : len(rows)] = rows, own[rows]
        return found


class Scan(NamedTuple):
    """How numbers of few bits are searched."""

    bits: int
    """Of a number: 4 or 8."""
    depth: int
    """Times the wanted rows that are compared exactly."""
    shares: tuple[float, ...]
    """Of the vectors in each part, which a thread of its own searches if one is free; they sum to 1. Vectors of several
    parts are in random order, so that each part finds its share of what the whole would."""


class ScannedIndex(VectorIndex):
    """Every vector is compared as numbers of 4 or 8 bits (faiss); those found are put in order by the vectors."""

    approximate = True

    def __init__(self, path: Path, vectors: Matrix, rows: NDArray[np.int32], scan: Scan) -> None:
        """Take an index of faiss: of 8 bits it is mapped into memory, of 4 it is read.

        Args:
            path: Its file.
            vectors: By row number, shape (items, D).
            rows: Row number of every vector in the file.
            scan: How it is searched.
        """
        self._scan, self._size = scan, len(rows)
        bounds = (np.cumsum((0, *scan.shares)) * len(rows)).astype(np.int64).tolist()
        self._parts = [
            _Part(_vectors_of_file(path, first, last), rows[first:last].astype(np.int64), vectors)
            for first, last in pairwise(bounds)
        ]
        self._helpers = ThreadPoolExecutor(max(1, len(self._parts) - 1), thread_name_prefix="scan")

    def search(self, queries: Matrix, most: int) -> Ranked:
        """Return the rows with the largest inner products among those whose rounded vectors have."""
        if len(queries) == 1:
            return self.begin(queries, most)()
        sent, counts = self._sent(queries), self._counts(most)
        parts = [part.search(queries, sent, count) for part, count in zip(self._parts, counts, strict=True)]
        found = [_best_of_parts(of_query, most) for of_query in zip(*parts, strict=True)]
        nothing = Ranked(np.empty((0, most), np.int32), np.empty((0, most), np.float32))
        return Ranked(*(np.concatenate(lists) for lists in zip(nothing, *found, strict=True)))

    def begin(self, queries: Matrix, most: int) -> Callable[[], Ranked]:
        """Let other threads search all parts but the first, for one query; return what searches that one."""
        if len(queries) != 1:
            return partial(self.search, queries, most)
        sent = self._sent(queries)
        first, *others = [
            partial(part.search, queries, sent, count)
            for part, count in zip(self._parts, self._counts(most), strict=True)
        ]
        begun = [self._helpers.submit(search) for search in others]

        def finish() -> Ranked:
            found = first()
            for search, answer in zip(others, begun, strict=True):
                # A search that no thread has begun is not waited for: where no core is free, this one is sooner there.
                found += search() if answer.cancel() else answer.result()
            return _best_of_parts(found, most)

        return finish

    def _sent(self, queries: Matrix) -> Matrix:
        """Return queries as they are compared with the small numbers."""
        largest = np.abs(queries).max(axis=1, keepdims=True, initial=0)
        # For a query of zeros any rows are as near as others, and faiss would give none.
        sent = np.where(largest > 0, queries / np.where(largest > 0, largest, 1), 1).astype(np.float32)
        return _rounded(sent, _LARGEST) if self._scan.bits == 8 else sent

    def _counts(self, most: int) -> list[int]:
        """Return how many rows each part compares exactly for some wanted ones."""
        wanted = min(self._scan.depth * most, self._size)
        return [ceil(share * wanted) for share in self._scan.shares]


class _Part(NamedTuple):
    """Vectors that one thread searches."""

    index: Any
    """Of faiss."""
    rows: NDArray[np.int64]
    """Row number of every vector in it."""
    vectors: Matrix
    """All of them, by row number, shape (items, D)."""

    def search(self, queries: Matrix, sent: Matrix, count: int) -> list[_Compared]:
        """Return for every query the rows with the largest sums, and their inner products with it.

        Args:
            queries: Shape (B, D).
            sent: The same as they are compared with the small numbers.
            count: Of rows.
        """
        import faiss

        threads = faiss.omp_get_max_threads()
        # A query is searched by one thread: another one would only wait for it, busily, and a fork has no other.
        faiss.omp_set_num_threads(min(threads, max(1, len(queries))))
        try:
            places = self.index.search(sent, min(count, len(self.rows)))[1]
            faiss.omp_set_num_threads(1)
            return [self._compared(query, self.rows[own]) for query, own in zip(queries, places, strict=True)]
        finally:
            faiss.omp_set_num_threads(threads)

    def _compared(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> _Compared:
        import faiss

        products, query = np.empty(len(rows), np.float32), np.ascontiguousarray(query, np.float32)
        pointers = (faiss.swig_ptr(each) for each in (products, query, self.vectors, rows))
        # Other threads run meanwhile, and no row is copied. Its stubs lack the function.
        faiss.fvec_inner_products_by_idx(*pointers, self.vectors.shape[1], 1, len(rows))  # type: ignore[attr-defined]
        return rows, products


_Compared = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows and their inner products with a query."""


def _best_of_parts(found: Sequence[_Compared], most: int) -> Ranked:
    """Return the best rows of one query, of those that each part found."""
    rows, products = (np.concatenate(lists) for lists in zip(*found, strict=True))
    return best(rows, products, most)


def _vectors_of_file(path: Path, first: int, last: int) -> Any:
    """Return some neighbouring vectors of an index of faiss; all of them are mapped into memory where they can be."""
    import faiss

    index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    if last - first < index.ntotal:
        index.remove_ids(faiss.IDSelectorNot(faiss.IDSelectorRange(first, last)))
    return index


class ClusteredIndex(VectorIndex):
    """Vectors in clusters, of which a query searches those with the nearest centres (faiss, inverted file)."""

    approximate = True

    def __init__(self, path: Path, rows: NDArray[np.int32], probes: int) -> None:
        """Map an index of faiss into memory.

        Args:
            path: Its file.
            rows: Row number of every vector in it.
            probes: Clusters that a query searches.
        """
        import faiss

        self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        self._rows, self._probes = rows, probes

    def search(self, queries: Matrix, most: int) -> Ranked:
        """Return the rows with the largest inner products among the searched clusters."""
        import faiss

        options = faiss.SearchParametersIVF(nprobe=self._probes)  # type: ignore[call-arg] # its stubs lack it
        wanted = min(most, len(self._rows))
        scores, places = self._index.search(np.ascontiguousarray(queries, np.float32), wanted, params=options)
        items = np.where(places < 0, -1, np.asarray(self._rows)[np.maximum(places, 0)]).astype(np.int32)
        return padded(items, np.where(places < 0, -np.inf, scores).astype(np.float32), most)


def index_recall(index: VectorIndex, exact: VectorIndex, queries: Matrix, most: int) -> float:
    """Return which share of the exact answers an index finds, the mean over queries.

    Args:
        index: The index.
        exact: The same vectors, searched exactly.
        queries: Shape (some, D), one at least.
        most: Rows per query.
    """
    found, wanted = index.search(queries, most).items, exact.search(queries, most).items
    return found_share(found, wanted)


def found_share(found: NDArray[np.int32], wanted: NDArray[np.int32]) -> float:
    """Return which share of wanted rows is among found ones, the mean over lines; -1 is no row.

    >>> found_share(np.array([[1, 2, -1]], np.int32), np.array([[2, 3, -1]], np.int32))
    0.5
    """
    shares = [
        len(np.intersect1d(ours[ours >= 0], theirs[theirs >= 0])) / max(1, int((theirs >= 0).sum()))
        for ours, theirs in zip(found, wanted, strict=True)
    ]
    return float(np.mean(shares))


def default_lists(items: int) -> int:
    """Return how many clusters some vectors are divided into: four times the root of their number.

    >>> default_lists(1_000_000)
    4000
    """
    return max(1, int(4 * items**0.5))


def _rounded(vectors: Matrix, scale: NDArray[Any] | float) -> Matrix:
    """Return whole numbers as faiss takes them; it computes with 8 bits of each."""
    numbers: Matrix = np.rint(vectors * scale).astype(np.float32)
    return numbers


def _build_scan(
    vectors: Matrix, there: NDArray[np.int32], queries: Matrix, section: ItemIndex, most: int, folder: Path, seed: int
) -> dict[str, Any]:
    import faiss

    exact = ExactIndex(vectors).search(queries, most).items
    divided = len(there) >= _DIVIDED_FROM
    if divided:
        there = np.random.default_rng(seed).permutation(there)
        np.save(folder / _ROWS, there)
    for bits, depths in _BITS.items():
        index = _four_bits(vectors, there, seed) if bits == 4 else _eight_bits(vectors, there)
        faiss.write_index(index, str(folder / _APPROXIMATE))
        for depth in depths:
            scan = Scan(bits, depth, _SHARES if bits == 4 and divided else (1.0,))
            found = ScannedIndex(folder / _APPROXIMATE, vectors, there, scan).search(queries, most).items
            recall = found_share(found, exact)
            facts = {"kind": "scan", **scan._asdict(), "shuffled": divided, "tuned_recall": recall}
            if recall >= section.min_recall:
                return facts
    return facts


def _four_bits(vectors: Matrix, there: NDArray[np.int32], seed: int) -> Any:
    """Return vectors each of whose numbers is the nearest of 16 levels; registers hold what a query scores them."""
    import faiss

    width = vectors.shape[1]
    index = faiss.IndexPQFastScan(width, width, 4, faiss.METRIC_INNER_PRODUCT)
    index.pq.cp.seed, index.pq.cp.min_points_per_centroid = seed, 1
    # With repetitions: there may be fewer vectors than levels.
    index.train(vectors[np.random.default_rng(seed).choice(there, _SAMPLE)])
    for first in range(0, len(there), _AT_ONCE):
        index.add(vectors[there[first : first + _AT_ONCE]])
    return index


def _eight_bits(vectors: Matrix, there: NDArray[np.int32]) -> Any:
    import faiss

    width = vectors.shape[1]
    index = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT)
    scale = _LARGEST / float(np.abs(vectors).max())
    for first in range(0, len(there), _AT_ONCE):
        index.add(_rounded(vectors[there[first : first + _AT_ONCE]], scale))
    return index


def _build_clusters(
    vectors: Matrix, queries: Matrix, section: ItemIndex, most: int, folder: Path, seed: int
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
    tried = [section.probes] if section.probes is not None else _probes_to_try(lists)
    exact = ExactIndex(vectors).search(queries, most).items
    for probes in tried:
        recall = found_share(ClusteredIndex(folder / _APPROXIMATE, rows, probes).search(queries, most).items, exact)
        if recall >= section.min_recall:
            break
    return {"kind": "ivf", "precision": section.precision, "lists": lists, "probes": probes, "tuned_recall": recall}


def _probes_to_try(lists: int) -> Sequence[int]:
    """Return numbers of probes, rising by a half: up to all lists, with which an index finds everything.

    >>> list(_probes_to_try(20))
    [1, 2, 3, 5, 8, 12, 18, 20]
    """
    tried = [1]
    while tried[-1] < lists:
        tried.append(min(lists, tried[-1] + max(1, (tried[-1] + 1) // 2)))
    return tried
