"""Flattens nested settings and histories into the names, texts and numbers that MLflow accepts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Numbers = Mapping[str, float | int | None]
Point = tuple[str, float, int]
"""Name, value, step."""


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings, their names joined by dots; characters that MLflow refuses become "_".

    >>> flatten({"a": {"b": 1, "tab=1": [2, 3]}, "d": None})
    {'a.b': 1, 'a.tab_1': [2, 3], 'd': None}
    """
    leaves: dict[str, Any] = {}
    for name, value in nested.items():
        allowed = prefix + re.sub(r"[^\w.\- /]", "_", str(name))
        leaves |= flatten(value, f"{allowed}.") if isinstance(value, Mapping) else {allowed: value}
    return leaves


def finite_numbers(leaves: Mapping[str, Any]) -> dict[str, float]:
    """Return the leaves that are finite numbers (True is 1); MLflow's metrics take no others.

    >>> finite_numbers({"auc": 0.7, "passed": True, "why": "ok", "missing": None, "nan": math.nan})
    {'auc': 0.7, 'passed': 1.0}
    """
    return {
        name: float(value) for name, value in leaves.items() if isinstance(value, int | float) and math.isfinite(value)
    }


def bounded_text(value: object, longest: int) -> str:
    """Return a value as text of bounded length, JSON if it is no text.

    >>> bounded_text(["a", "b"], 100), bounded_text("x" * 9, 5), bounded_text(None, 5)
    ('["a", "b"]', 'xxxx…', 'null')
    """
    written = value if isinstance(value, str) else json.dumps(value, default=str)
    return written if len(written) <= longest else f"{written[: longest - 1]}…"


def metric_points(history: Sequence[Numbers]) -> list[Point]:
    """Return the numbers of a history with their steps: `epoch` or `round` of the record, else its position from 1.

    >>> metric_points([{"epoch": 3, "loss": 0.5, "auc": None}])
    [('loss', 0.5, 3)]
    """
    named_points: list[Point] = []
    for place, line in enumerate(history, start=1):
        values = {name: value for name, value in line.items() if name not in ("epoch", "round")}
        step = int(line.get("epoch") or line.get("round") or place)
        named_points += [(name, value, step) for name, value in finite_numbers(values).items()]
    return named_points
