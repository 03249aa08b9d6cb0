"""Scores rows with boosted trees in plain loops, which `compiling` compiles to machine code.

A model repository of trees contains this file.
"""

from __future__ import annotations

import numpy as np

TREES = "trees.npz"
"""File with the arrays `columns` to `base`, parameters of `walk`; `shortlist.serving.export.trees` writes it."""
TOP_NODES, TOP_EXITS = 7, 8
"""The first three levels of a tree: its nodes, level by level, and the nodes that follow them, from left to right."""
_LEVELS = TOP_NODES + TOP_EXITS
_BLOCK = 128
"""Rows per block, so that their features stay in the first-level cache."""


def walk(
    floats: np.ndarray, columns: np.ndarray, tops: np.ndarray, thresholds: np.ndarray, nodes: np.ndarray,
    values: np.ndarray, base: np.ndarray, log_odds: np.ndarray,
) -> None:  # fmt: skip
    """Write the log-odds of rows, added up tree by tree in float32 as XGBoost adds them: bit by bit the same.

    A value below a node's threshold goes left. The first three levels are seven comparisons without branches, for 16
    rows at once; below, every row takes the same number of steps. So there are no branch mispredictions.

    Args:
        floats: Features, FP32, shape (R, F); NaN is missing.
        columns: Columns that nodes read: a feature, and 1 if its missing values go left; INT32, shape (C, 2). A feature
            with both kinds of nodes has two columns.
        tops: Per tree the columns of its first seven nodes, the numbers of the eight nodes after them, and the number
            of levels below; INT32, shape (T, 16).
        thresholds: Thresholds of the first seven nodes, FP32, shape (T, 7).
        nodes: Column and left child of every node of all trees; the right child is the next node; INT32, shape (N, 2).
            A leaf reads column C, which is NaN, and names the node before itself, so that a row stays at the leaf.
        values: Thresholds of nodes, and log-odds of leaves, FP32, shape (N,).
        base: Log-odds before any tree, FP32, shape (1,).
        log_odds: Output array, FP32, shape (R,).
    """
    # A missing value that goes left becomes -inf; one that goes right stays NaN, which is below nothing.
    block = np.full((len(columns) + 1, _BLOCK), np.float32(np.nan))
    flat = block.reshape(-1)
    total = np.empty(_BLOCK, np.float32)
    at = np.zeros(_BLOCK, np.int32)
    for start in range(0, len(floats), _BLOCK):
        rows = min(_BLOCK, len(floats) - start)
        for column in range(len(columns)):
            feature, missing_left = columns[column]
            for row in range(rows):
                value = floats[start + row, feature]
                block[column, row] = np.float32(-np.inf) if missing_left and np.isnan(value) else value
        for row in range(rows):  # loops instead of slices: compiles in 1.1 s of processor time instead of 3.5
            total[row] = base[0]
        for tree in range(len(tops)):
            top = tops[tree]
            # Local variables instead of arrays: the compiler keeps them in registers.
            c0, c1, c2, c3 = block[top[0]], block[top[1]], block[top[2]], block[top[3]]
            c4, c5, c6 = block[top[4]], block[top[5]], block[top[6]]
            n0, n1, n2, n3, n4, n5, n6, n7 = top[7], top[8], top[9], top[10], top[11], top[12], top[13], top[14]
            t = thresholds[tree]
            t0, t1, t2, t3, t4, t5, t6 = t[0], t[1], t[2], t[3], t[4], t[5], t[6]
            for row in range(rows):
                left = (n0 if c3[row] < t3 else n1) if c1[row] < t1 else (n2 if c4[row] < t4 else n3)
                right = (n4 if c5[row] < t5 else n5) if c2[row] < t2 else (n6 if c6[row] < t6 else n7)
                at[row] = left if c0[row] < t0 else right
            for _ in range(top[_LEVELS]):
                for row in range(rows):
                    node = np.uint32(at[row])  # unsigned: the compiler need not handle negative indices
                    value = flat[np.uint32(nodes[node, 0]) * np.uint32(_BLOCK) + np.uint32(row)]
                    at[row] = nodes[node, 1] + (0 if value < values[node] else 1)
            for row in range(rows):
                total[row] += values[np.uint32(at[row])]
        for row in range(rows):
            log_odds[start + row] = total[row]
