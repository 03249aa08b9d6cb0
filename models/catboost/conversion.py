"""CatBoost's model as `ObliviousTrees`: its statistics of ids become numbers that are looked up.

CatBoost knows an id by a hash of its text, and a combination by a hash of those hashes. Its model says the statistics
by hash; the ids and combinations that have one are those of the training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from models.catboost.lookup import Combination, Lookup, find_positions, float_features, id_features, ids_and_floats
from models.catboost.oblivious_trees import ObliviousTrees
from shortlist.contracts import ShortlistError
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import float_names

_MULTIPLIER: Final = np.uint64(0x4906BA494954CB65)
_EMPTY_BUCKET: Final = np.uint64(2**64 - 1)
_SINGLE_IDS: Final = "cat_feature_value"
_COMPARISONS: Final = "float_feature"
_MATCHES: Final = "cat_feature_exact_value"


class _Statistic(NamedTuple):
    """A number that is looked up: a statistic of a combination, or whether an id is a certain one."""

    combination: Combination
    declared: Mapping[str, Any]
    """Entry of `features_info.ctrs`; empty for a certain id."""
    id: int = 0

    @property
    def name(self) -> str:
        """What tells the number from others of the combination."""
        if not self.declared:
            return f"id {self.id}"
        return f"{self.declared['ctr_type']} {self.declared['prior_numerator']} {self.declared['prior_denomerator']}"


class _Counts(NamedTuple):
    """The rows of each key by class, or their number."""

    hashes: np.ndarray
    """Ascending, uint64."""
    counts: np.ndarray
    """Float32, shape (hashes + 1, classes); the last row, for other keys, is zero."""
    denominator: float


def convert(
    model: Mapping[str, Any], features: Sequence[TableFeature], read_rows: Callable[[], Iterable[pl.DataFrame]],
    rarely_unknown: frozenset[str],
) -> ObliviousTrees:  # fmt: skip
    """Return the trees of a model that CatBoost wrote as JSON, with its scores.

    Args:
        model: The content of the JSON file, with the hashes of its categories.
        features: The features that it reads: CatBoost's floats, then its categories, in this order.
        read_rows: Returns the rows that it was trained on, again at each call.
        rarely_unknown: Names of the ids and floats that hardly any training row lacks.

    Raises:
        ShortlistError: The model has a statistic that this version does not read.
    """
    reader = _ModelReader(model, features)
    splits_by_tree = [_list(tree, "splits") for tree in model["oblivious_trees"]]
    splits = [split for tree_splits in splits_by_tree for split in tree_splits]
    statistics = [reader.statistic(split) for split in splits]
    columns_by_combination = _columns_by_combination(statistics)
    keys_by_combination = _distinct_keys(columns_by_combination, features, read_rows)
    lookups = tuple(
        reader.lookup(combination, list(columns.values()), keys_by_combination, rarely_unknown)
        for combination, columns in columns_by_combination.items()
    )
    names = [(combination, name) for combination, columns in columns_by_combination.items() for name in columns]
    number_by_name = {name: len(reader.float_names) + number for number, name in enumerate(names)}
    columns = [
        split["float_feature_index"] if statistic is None else number_by_name[statistic.combination, statistic.name]
        for split, statistic in zip(splits, statistics, strict=True)
    ]
    scale, (bias,) = model["scale_and_bias"]
    depths = np.array([len(tree_splits) for tree_splits in splits_by_tree], np.int64)
    leaves = [np.array(tree["leaf_values"], np.float64) * scale for tree in model["oblivious_trees"]]
    return ObliviousTrees(
        depths=depths,
        columns=np.array(columns, np.int64),
        borders=np.array([split.get("border", 0.5) for split in splits], np.float32),
        leaves=np.concatenate(leaves).astype(np.float32),
        missing_is_above=np.zeros(int((2**depths - 1).sum()), bool),  # CatBoost compares NaN as below everything
        base=np.array([bias], np.float32),
        lookups=lookups,
    )


def leaf_weights(model: Mapping[str, Any]) -> np.ndarray:
    """Return the weight of the training rows in the leaves of all trees of a model that CatBoost wrote as JSON."""
    return np.concatenate([np.array(tree["leaf_weights"], np.float64) for tree in model["oblivious_trees"]])


def _columns_by_combination(statistics: Iterable[_Statistic | None]) -> dict[Combination, dict[str, _Statistic]]:
    """Return the numbers of each combination by name, each once."""
    columns_by_combination: dict[Combination, dict[str, _Statistic]] = {}
    for statistic in statistics:
        if statistic is not None:
            columns_by_combination.setdefault(statistic.combination, {})[statistic.name] = statistic
    return columns_by_combination


class _ModelReader:
    """Reads the splits and statistics of a model.

    Attributes:
        float_names: Names of the floats, in CatBoost's order.
    """

    def __init__(self, model: Mapping[str, Any], features: Sequence[TableFeature]) -> None:
        self.float_names = float_names(float_features(features))
        self._ids = id_features(features)
        described = model["features_info"]
        self._id_by_hash = {int(known["hash"]): int(known["value"]) for known in _list(described, "cat_features_hash")}
        floats, categories = _list(described, "float_features"), _list(described, "categorical_features")
        first = sum(len(_list(feature, "borders")) for feature in floats)
        first += sum(len(_list(feature, "values")) for feature in categories)
        # Borders are numbered through all features: floats, ids that are compared by value, then statistics.
        self._first_statistic_split = first
        self._declared = _list(described, "ctrs")
        self._statistic_ends = np.cumsum([len(declared["borders"]) for declared in self._declared])
        self._counts = {name: _read_counts(table) for name, table in (model.get("ctr_data") or {}).items()}

    def statistic(self, split: Mapping[str, Any]) -> _Statistic | None:
        """Return the number that a split compares; None: a float.

        Raises:
            ShortlistError: It is none of those that this module reads.
        """
        match split["split_type"]:
            case "FloatFeature":
                return None
            case "OneHotFeature":
                return _Statistic(self._combination([split["cat_feature_index"]]), {}, self._id(split["value"]))
        border_number = split["split_index"] - self._first_statistic_split
        declared = self._declared[int(np.searchsorted(self._statistic_ends, border_number, side="right"))]
        if declared["ctr_type"] not in ("Borders", "Counter") or declared["target_border_idx"] != 0:
            raise ShortlistError(
                f"CatBoost's model has a statistic '{declared['ctr_type']}'; wanted Borders or Counter. Install the"
                " version of requirements/catboost.txt"
            )
        parts = declared["elements"]

        def of_kind(kind: str) -> list[Mapping[str, Any]]:
            return [part for part in parts if part["combination_element"] == kind]

        comparisons = (
            (self.float_names[part["float_feature_index"]], part["border"]) for part in of_kind(_COMPARISONS)
        )
        matches = ((self._ids[part["cat_feature_index"]].name, self._id(part["value"])) for part in of_kind(_MATCHES))
        combination = self._combination(
            [part["cat_feature_index"] for part in of_kind(_SINGLE_IDS)], tuple(comparisons), tuple(matches)
        )
        assert len(parts) == len(combination.radices)
        return _Statistic(combination, declared)

    def lookup(
        self, combination: Combination, columns: Sequence[_Statistic], keys_by_combination: Mapping[Combination, Any],
        rarely_unknown: frozenset[str],
    ) -> Lookup:  # fmt: skip
        """Return the numbers of a combination by key."""
        is_single, rarely_unknown_parts = combination.is_single, combination.names & rarely_unknown
        keys = np.arange(combination.sizes[0]) if is_single else keys_by_combination[combination]
        hashes, has_hash = self._hashes(combination, keys)
        counts = [self._counts[column.declared["identifier"]] for column in columns if column.declared]
        is_kept = np.zeros(len(keys), bool)
        for table in counts:
            is_kept |= has_hash & (find_positions(table.hashes, hashes) < len(table.hashes))
        if not is_single:  # what has no statistic, because few were to be kept, is as what was never seen
            keys, hashes, has_hash = keys[is_kept], hashes[is_kept], has_hash[is_kept]
        values = np.stack([self._values(column, keys, hashes, has_hash) for column in columns], axis=1)
        if is_single:
            values = values[:-1]
            if rarely_unknown_parts:
                values[0] = np.nan
            return Lookup(combination, rarely_unknown_parts, np.empty(0, np.int64), values)
        if rarely_unknown_parts:
            keys = np.insert(keys, 0, -1)
            values = np.insert(values, 0, np.nan, axis=0)
        return Lookup(combination, rarely_unknown_parts, keys, values)

    def _values(self, column: _Statistic, keys: np.ndarray, hashes: np.ndarray, has_hash: np.ndarray) -> np.ndarray:
        """Return the numbers of keys, and last that of a key without one; float32 arithmetic, as CatBoost's."""
        if not column.declared:
            return np.append(keys == column.id, False).astype(np.float32)
        declared, table = column.declared, self._counts[column.declared["identifier"]]
        places = np.where(has_hash, find_positions(table.hashes, hashes), len(table.hashes))
        counts = table.counts[np.append(places, len(table.hashes))]
        if declared["ctr_type"] == "Counter":
            positives, rows = counts[:, 0], np.float32(table.denominator)
        else:
            positives, rows = counts[:, 1], counts[:, 0] + counts[:, 1]
        prior, weight = np.float32(declared["prior_numerator"]), np.float32(declared["prior_denomerator"])
        rates = (positives + prior) / (rows + weight)
        return np.asarray((rates + np.float32(declared["shift"])) * np.float32(declared["scale"]), np.float32)

    def _hashes(self, combination: Combination, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return CatBoost's hash of each key, and whether all its ids have one."""
        hashes, has_hash = np.zeros(len(keys), np.uint64), np.ones(len(keys), bool)
        parts = combination.parts(keys)
        for number, size in enumerate(combination.sizes):
            by_id, is_known = self._hash_by_id(size)
            has_hash &= is_known[parts[number]]
            parts[number] = by_id[parts[number]]
        for part in parts:
            hashes = _MULTIPLIER * (hashes + _MULTIPLIER * part.astype(np.uint64))
        return hashes, has_hash

    def _hash_by_id(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the hash of each id, a signed number of 32 bits in one of 64, and whether it is known."""
        by_id, is_known = np.zeros(size, np.int64), np.zeros(size, bool)
        for hashed, id_ in self._id_by_hash.items():
            if id_ < size:
                by_id[id_], is_known[id_] = hashed - 2**32 * (hashed >= 2**31), True
        return by_id, is_known

    def _id(self, hashed: int) -> int:
        return self._id_by_hash[hashed % 2**32]

    def _combination(
        self, ids: Sequence[int], comparisons: tuple[tuple[str, float], ...] = (),
        matches: tuple[tuple[str, int], ...] = (),
    ) -> Combination:  # fmt: skip
        features = [self._ids[number] for number in ids]
        sizes = tuple(feature.size or 0 for feature in features)
        return Combination(tuple(feature.name for feature in features), sizes, comparisons, matches)


def _list(values: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of the model; CatBoost leaves an empty one out, or writes null."""
    return values.get(key) or []


def _read_counts(table: Mapping[str, Any]) -> _Counts:
    stride = table["hash_stride"]
    cells = table["hash_map"]
    hashes = np.array([int(cell) for cell in cells[::stride]], np.uint64)
    counts = np.array([cells[column::stride] for column in range(1, stride)], np.float32).T
    order = np.argsort(hashes)
    order = order[hashes[order] != _EMPTY_BUCKET]
    counts = np.concatenate([counts[order], np.zeros((1, stride - 1), np.float32)])
    return _Counts(hashes[order], counts, table["counter_denominator"])


def _distinct_keys(
    combinations: Iterable[Combination], features: Sequence[TableFeature],
    read_rows: Callable[[], Iterable[pl.DataFrame]],
) -> dict[Combination, np.ndarray]:  # fmt: skip
    """Return the keys of rows, each once, ascending, for combinations of more than an id."""
    keys = {combination: np.empty(0, np.int64) for combination in combinations if not combination.is_single}
    for frame in read_rows() if keys else ():
        floats, ids = ids_and_floats(frame, features)
        for combination, earlier_keys in keys.items():
            keys[combination] = np.union1d(earlier_keys, combination.keys(floats | ids))
    return keys
