"""One answer for a row that asks a view once for each of its tags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shortlist.serving.server.columns import Codes, Numbers, Rows, Tags, mixed
from shortlist.serving.server.feature_requirements import Step
from shortlist.serving.server.request_errors import BadRequestError
from shortlist.serving.server.view_table import ViewTable


def pooled(step: Step, table: ViewTable, keys: Sequence[Codes | Tags], most: int | None = None) -> Numbers:
    """Return the sums over a row's tags, and the newest tag's values; NaN for a row without tags.

    Args:
        step: What is looked up.
        table: Its values.
        keys: Its key columns, each of one row or of all: codes, or the distinct tags of each row.
        most: Combinations of tags of all rows that may be looked up; None: any number.

    Returns:
        Shape (rows, numbers of the step).

    Raises:
        BadRequestError: The rows have more combinations of tags.
    """
    rows = max((len(key) for key in keys if len(key) != 1), default=1)
    if most is not None:
        _check(step, keys, rows, most)
    found, starts, lengths = _found(table, keys, rows)
    answers = table.numbers.take(found, axis=0)
    sums = len(step.numbers) - step.lasts
    some = lengths > 0
    if not step.lasts and some.all():  # the most frequent case
        return np.add.reduceat(answers, starts, axis=0)
    block = np.full((rows, len(step.numbers)), np.nan)
    if some.any():
        block[some, :sums] = np.add.reduceat(answers[:, :sums], starts[some], axis=0)
        if step.lasts:
            block[some, sums:] = _newest(answers[:, sums:], lengths)
    return block


def _check(step: Step, keys: Sequence[Codes | Tags], rows: int, most: int) -> None:
    combinations = np.ones(rows)  # floats: the product of many lengths does not overflow
    for key in keys:
        if isinstance(key, Tags):
            combinations *= key.numbers.lengths
    if (total := combinations.sum()) > most:
        raise BadRequestError(
            f"inputs: the tags of {rows} rows make {total:.0f} combinations of {', '.join(step.keys)}; wanted at most"
            f" {most} (serving.limits.max_tag_values)"
        )


def _found(table: ViewTable, keys: Sequence[Codes | Tags], rows: int) -> tuple[Rows, Rows, Rows]:
    """Return the table's row of every combination of tags of every row, where each row's begin, and how many it has."""
    lists = [key for key in keys if isinstance(key, Tags)]
    if len(lists) == 1 and len(lists[0]) == rows and all(len(key) == 1 for key in keys if key is not lists[0]):
        (tags,) = lists
        few = len(tags.values) < len(tags.numbers.values)  # each value is looked up once, or each row's values are
        asked = tags.values if few else tags.codes.values
        found = table.find(mixed([asked if isinstance(key, Tags) else key for key in keys]))
        return found.take(tags.numbers.values) if few else found, tags.numbers.starts, tags.numbers.lengths
    codes, starts, lengths = _combined(keys, rows)
    return table.find(codes), starts, lengths


def _combined(keys: Sequence[Codes | Tags], rows: int) -> tuple[Codes, Rows, Rows]:
    """Return the code of every combination of tags of every row, where each row's begin, and how many it has."""
    owner = np.arange(rows)
    parts: list[Codes] = []
    for key in keys:
        if not isinstance(key, Tags):
            parts.append(key if len(key) == 1 else key[owner])
            continue
        tags = key.take(np.zeros(len(owner), np.intp) if len(key) == 1 else owner).codes
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
