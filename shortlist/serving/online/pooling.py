"""One answer for a row that asks a view once for each of its tags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shortlist.serving.online.columns import Codes, Numbers, Ragged, Rows, mixed
from shortlist.serving.online.needs import Step
from shortlist.serving.online.view_table import ViewTable


def pooled(step: Step, table: ViewTable, keys: Sequence[Codes | Ragged]) -> Numbers:
    """Return the sums over a row's tags, and the newest tag's values; NaN for a row without tags.

    Args:
        step: What is looked up.
        table: Its values.
        keys: Its key columns, each of one row or of all: codes, or the distinct tags of each row.

    Returns:
        Shape (rows, numbers of the step).
    """
    rows = max((len(key) for key in keys if len(key) != 1), default=1)
    codes, starts, lengths = _asked(keys, rows)
    answers = table.numbers.take(table.find(codes), axis=0)
    block = np.full((rows, len(step.numbers)), np.nan)
    some = lengths > 0
    if some.any():
        sums = len(step.numbers) - step.lasts
        block[some, :sums] = np.add.reduceat(answers[:, :sums], starts[some], axis=0)
        if step.lasts:
            block[some, sums:] = _newest(answers[:, sums:], lengths)
    return block


def _asked(keys: Sequence[Codes | Ragged], rows: int) -> tuple[Codes, Rows, Rows]:
    """Return the code of every combination of tags of every row, where each row's begin, and how many it has."""
    lists = [key for key in keys if isinstance(key, Ragged)]
    if len(lists) == 1 and len(lists[0]) == rows and all(len(key) == 1 for key in keys if key is not lists[0]):
        codes = mixed([key.values if isinstance(key, Ragged) else key for key in keys])  # the most frequent case
        return codes, lists[0].starts, lists[0].lengths
    owner = np.arange(rows)
    parts: list[Codes] = []
    for key in keys:
        if not isinstance(key, Ragged):
            parts.append(key if len(key) == 1 else key[owner])
            continue
        tags = key.take(np.zeros(len(owner), np.intp) if len(key) == 1 else owner)
        again = np.repeat(np.arange(len(owner)), tags.lengths)
        parts = [part if len(part) == 1 else part[again] for part in parts]
        parts.append(tags.values)
        owner = owner[again]
    lengths = np.bincount(owner, minlength=rows)
    return np.broadcast_to(mixed(parts), len(owner)), np.cumsum(lengths) - lengths, lengths


def _newest(answers: Numbers, lengths: Rows) -> Numbers:
    """Return, of every row that has tags, the values of the tag with the newest time, then the largest values."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    comparable = np.where(np.isnan(answers), -np.inf, answers)
    order = np.lexsort((*comparable.T[::-1], owner))
    ends = np.cumsum(lengths)[lengths > 0] - 1
    return answers[order[ends]]
