"""Pools the values of several keys of a row: one look-up per combination of tags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shortlist.serving.server.features.columns import Codes, Numbers, Rows, Tags, combine_keys
from shortlist.serving.server.features.feature_requirements import LookupStep
from shortlist.serving.server.features.view_table import ViewTable
from shortlist.serving.server.requests.request_errors import BadRequestError


def pool_rows(
    step: LookupStep, table: ViewTable, keys: Sequence[Codes | Tags], max_combinations: int | None = None
) -> Numbers:
    """Return the sums over a row's tags, then the newest tag's values; NaN for a row without tags.

    Args:
        step: The look-up step.
        table: Table of the step.
        keys: Key columns, each of one row or of all: codes, or the distinct tags of each row.
        max_combinations: Limit of the tag combinations of all rows; None for no limit.

    Returns:
        Numbers of the step, shape (rows, numbers).

    Raises:
        BadRequestError: The rows have more combinations.
    """
    rows = max((len(key) for key in keys if len(key) != 1), default=1)
    if max_combinations is not None:
        _check_combinations(step, keys, rows, max_combinations)
    table_rows, starts, lengths = _find_combinations(table, keys, rows)
    values = table.numbers.take(table_rows, axis=0)
    sum_count = len(step.numbers) - step.lasts
    has_tags = lengths > 0
    if not step.lasts and has_tags.all():  # the most common case
        return np.add.reduceat(values, starts, axis=0)
    block = np.full((rows, len(step.numbers)), np.nan)
    if has_tags.any():
        block[has_tags, :sum_count] = np.add.reduceat(values[:, :sum_count], starts[has_tags], axis=0)
        if step.lasts:
            block[has_tags, sum_count:] = _newest(values[:, sum_count:], lengths)
    return block


def _check_combinations(step: LookupStep, keys: Sequence[Codes | Tags], rows: int, max_combinations: int) -> None:
    combinations = np.ones(rows)  # floats: the product of many lengths does not overflow
    for key in keys:
        if isinstance(key, Tags):
            combinations *= key.numbers.lengths
    if (total := combinations.sum()) > max_combinations:
        raise BadRequestError(
            f"inputs: the tags of {rows} rows make {total:.0f} combinations of {', '.join(step.keys)}; wanted at most"
            f" {max_combinations} (serving.limits.max_tag_values)"
        )


def _find_combinations(table: ViewTable, keys: Sequence[Codes | Tags], rows: int) -> tuple[Rows, Rows, Rows]:
    """Return the table rows of all tag combinations, and per request row their start and number."""
    lists = [key for key in keys if isinstance(key, Tags)]
    if len(lists) == 1 and len(lists[0]) == rows and all(len(key) == 1 for key in keys if key is not lists[0]):
        (tags,) = lists
        has_fewer_values = len(tags.values) < len(
            tags.numbers.values
        )  # look up each distinct value once, or the values of each row
        tag_codes = tags.values if has_fewer_values else tags.codes.values
        table_rows = table.find(combine_keys([tag_codes if isinstance(key, Tags) else key for key in keys]))
        return (
            table_rows.take(tags.numbers.values) if has_fewer_values else table_rows,
            tags.numbers.starts,
            tags.numbers.lengths,
        )
    codes, starts, lengths = _combination_codes(keys, rows)
    return table.find(codes), starts, lengths


def _combination_codes(keys: Sequence[Codes | Tags], rows: int) -> tuple[Codes, Rows, Rows]:
    """Return the codes of all tag combinations, and per request row their start and number."""
    row_numbers = np.arange(rows)
    parts: list[Codes] = []
    for key in keys:
        if not isinstance(key, Tags):
            parts.append(key if len(key) == 1 else key[row_numbers])
            continue
        tags = key.take(np.zeros(len(row_numbers), np.intp) if len(key) == 1 else row_numbers).codes
        repeats = np.repeat(np.arange(len(row_numbers)), tags.lengths)
        parts = [part if len(part) == 1 else part[repeats] for part in parts]
        parts.append(tags.values)
        row_numbers = row_numbers[repeats]
    lengths = np.bincount(row_numbers, minlength=rows)
    return np.broadcast_to(combine_keys(parts), len(row_numbers)), np.cumsum(lengths) - lengths, lengths


def _newest(values: Numbers, lengths: Rows) -> Numbers:
    """Return the values of the newest tag of every row with tags; ties go to the largest values."""
    row_numbers = np.repeat(np.arange(len(lengths)), lengths)
    comparable = np.where(np.isnan(values), -np.inf, values)
    order = np.lexsort((*comparable.T[::-1], row_numbers))
    ends = np.cumsum(lengths)[lengths > 0] - 1
    return values[order[ends]]
