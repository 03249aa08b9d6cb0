"""The preprocessing of facebookresearch/dlrm, written again after its design: row by row, a dictionary per column.

Its pass over the text splits every line, turns hexadecimal texts into integers with Python and notes them in one
dictionary per column; a second pass maps every value through these dictionaries; counts below zero become zero. It has
no frequency cap. The original writes compressed numpy archives, and so does this: `fb_dlrm_features.py LOG.tsv OUT`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

COUNTS, CATEGORIES = 13, 26


def main(log: str, out: str) -> None:
    """Write OUT/raw.npz after the first pass and OUT/table.npz after the second."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with Path(log).open() as file:
        rows = sum(1 for _ in file)
    labels = np.zeros(rows, np.int32)
    counts = np.zeros((rows, COUNTS), np.int32)
    categories = np.zeros((rows, CATEGORIES), np.int64)
    known: list[dict[int, int]] = [{} for _ in range(CATEGORIES)]
    with Path(log).open() as file:
        for row, line in enumerate(file):
            fields = line.split("\t")
            for place, field in enumerate(fields):
                if field in ("", "\n"):
                    fields[place] = "0"
            labels[row] = np.int32(fields[0])
            counts[row] = np.array(fields[1 : 1 + COUNTS], dtype=np.int32)
            hashed = np.array([int(text, 16) for text in fields[1 + COUNTS :]], dtype=np.int64)
            categories[row] = hashed
            for column in range(CATEGORIES):
                known[column][int(hashed[column])] = 1
    np.savez_compressed(folder / "raw.npz", X_int=counts, X_cat=categories, y=labels)
    for column in known:
        for place, value in enumerate(column):
            column[value] = place
    ids = np.zeros((rows, CATEGORIES), np.int32)
    for column in range(CATEGORIES):
        ids[:, column] = [known[column][int(value)] for value in categories[:, column]]
    counts[counts < 0] = 0
    np.savez_compressed(folder / "table.npz", X_cat=ids, X_int=counts, y=labels, counts=[len(one) for one in known])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
