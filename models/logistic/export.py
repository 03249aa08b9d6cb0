"""A logistic regression as nodes of an ONNX graph: hashed ids and bins become tables with a coefficient per id."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from models.logistic.ranker import LogisticRanker
from models.one_hot import EMPTY_LIST, OneHot, hash_ids, select_floats
from shortlist.ranking.record import TrainedModel
from shortlist.serving.export.graph import FeatureGraph

_LARGEST: Final = np.float32(np.finfo(np.float32).max)


def add_terms(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and the terms of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: The graph that the nodes are added to.
        record: Names the features.
        folder: The model folder.
    """
    ranker = LogisticRanker.load(folder)
    return LogisticGraph(graph, ranker.one_hot, ranker.coefficients, ranker.intercept).log_odds()


class LogisticGraph:
    """Adds the terms of the log-odds to a graph, float32.

    Shapes: R rows, F floats, N numbers among them, S single ids, L longest list, E edges of a number's bins.
    """

    def __init__(self, graph: FeatureGraph, one_hot: OneHot, coefficients: np.ndarray, intercept: np.ndarray) -> None:
        """Create the graph of a fitted model.

        Args:
            graph: The graph that the nodes are added to.
            one_hot: Encoding of rows as vectors.
            coefficients: Coefficients of the floats, then of the buckets.
            intercept: Intercept, shape (1,).
        """
        self._graph, self._add = graph, graph.nodes.add
        self._one_hot = one_hot
        self._float_coefficients, self._bucket_coefficients = np.split(coefficients, [len(one_hot.mean)])
        self._intercept = intercept

    def log_odds(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        one_hot = self._one_hot
        singles = [feature for feature in one_hot.features if feature.kind == "id"]
        lists = [feature for feature in one_hot.features if feature.kind == "ids"]
        floats = select_floats(one_hot.features)
        terms = []
        if floats:
            floats_RF = self._graph.floats([feature.name for feature in floats])
            terms.append(self._add("MatMul", self._standard(floats_RF), self._float_coefficients[:, None]))
            if one_hot.edges is not None and len(one_hot.edges):
                terms.append(self._bin_terms(floats_RF, one_hot.edges))
        if singles:
            sizes = [feature.size or 0 for feature in singles]
            tables = [self._table(np.arange(size), column) for column, size in enumerate(sizes)]
            ids_RS = self._graph.ids([feature.name for feature in singles])
            terms.append(self._sum_coefficients(ids_RS, tables))
        terms += [
            self._mean_of_list(feature.name, feature.size or 0, -number)
            for number, feature in enumerate(lists, start=1)
        ]
        return self._add("Sum", *terms, self._intercept[None])

    def _table(self, ids: np.ndarray, column: int) -> np.ndarray:
        """Return the coefficient of every id of a column."""
        table: np.ndarray = self._bucket_coefficients[hash_ids(ids, np.array([column]), self._one_hot.buckets)]
        return table

    def _standard(self, floats_RF: str) -> str:
        """Return the standardised floats, R x F: null becomes the mean, infinity the largest number."""
        centred_RF = self._add("Sub", floats_RF, self._one_hot.mean[None])
        scaled_RF = self._add("Mul", centred_RF, self._one_hot.scale[None])
        filled_RF = self._add("Where", self._add("IsNaN", scaled_RF), np.zeros(1, np.float32), scaled_RF)
        return self._add("Clip", filled_RF, np.array(-_LARGEST), np.array(_LARGEST))

    def _sum_coefficients(self, ids_RS: str, tables: list[np.ndarray]) -> str:
        """Return the sum of one coefficient from each table, R x 1."""
        starts = np.cumsum([0, *(len(table) for table in tables[:-1])])
        rows_RS = self._add("Add", ids_RS, starts[None])
        weights_RS = self._add("Gather", np.concatenate(tables), rows_RS, axis=0)
        return self._add("ReduceSum", weights_RS, np.array([1]), keepdims=1)

    def _bin_terms(self, floats_RF: str, edges_NE: np.ndarray) -> str:
        """Return the sum of the coefficients of the numbers' bins, R x 1; null has bin 0."""
        floats, columns = select_floats(self._one_hot.features), []
        first_column = 0
        for feature in floats:
            columns += [first_column] if feature.kind == "dense" else []
            first_column += feature.width or 1
        numbers_RN = self._add("Gather", floats_RF, np.array(columns), axis=1)
        values_RN1 = self._add("Unsqueeze", numbers_RN, np.array([2]))
        above_RNE = self._graph.nodes.cast(self._add("GreaterOrEqual", values_RN1, edges_NE[None]), np.int64)
        bins_RN = self._add("Add", self._add("ReduceSum", above_RNE, np.array([2]), keepdims=0), np.array([1]))
        bins_RN = self._add("Where", self._add("IsNaN", numbers_RN), np.array([0]), bins_RN)
        bin_ids, first = np.arange(edges_NE.shape[1] + 2), len(self._one_hot.features)
        tables = [self._table(bin_ids, first + number) for number in range(len(edges_NE))]
        return self._sum_coefficients(bins_RN, tables)

    def _mean_of_list(self, name: str, size: int, column: int) -> str:
        """Return the mean of the coefficients of a list's ids, R x 1; an empty list has a coefficient of its own."""
        ids_RL, is_id_RL = self._graph.lists(name)
        rows_RL = self._add("Where", is_id_RL, ids_RL, np.array([size]))
        table = np.append(self._table(np.arange(size), column), np.float32(0))
        weights_RL = self._add("Gather", table, rows_RL, axis=0)
        sum_R1 = self._add("ReduceSum", weights_RL, np.array([1]), keepdims=1)
        count_R1 = self._add("ReduceSum", self._graph.nodes.cast(is_id_RL, np.float32), np.array([1]), keepdims=1)
        mean_R1 = self._add("Div", sum_R1, self._add("Max", count_R1, np.ones(1, np.float32)))
        is_empty_R1 = self._add("Equal", count_R1, np.zeros(1, np.float32))
        return self._add("Where", is_empty_R1, self._table(np.array([EMPTY_LIST]), column), mean_R1)
