"""Execution statistics of a step: its engine, its GPU queries, and the operations that ran on the CPU instead."""

from __future__ import annotations

import re
from collections import Counter
from threading import Lock
from typing import Any, Final, Literal

_REFUSAL_MARKER: Final = "unsupported operations"
"""Text in cudf-polars' error for a plan that it cannot run."""
_REASON_PATTERN: Final = re.compile(r"(?:\\n|\n)- \w+: (.+?)(?=\\n- |\n- |[\"'], \[|$)")
"""One reason of that error's list; Polars passes the list on as the text of a Python tuple, with escaped line ends."""


class ExecutionStats:
    """Statistics of one step, shared by all threads of its process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Reset all statistics at the start of a step."""
        with self._lock:
            self._engine_facts: dict[str, Any] = {}
            self._queries = 0
            self._on_cpu: Counter[str] = Counter()

    def set_engine(self, engine: Literal["cpu", "gpu"], **facts: Any) -> None:
        """Set the engine; `facts` describe its device, or the reason why it is no GPU."""
        with self._lock:
            self._engine_facts = {"name": engine, **facts}

    def count_gpu_query(self) -> None:
        """Count a query that ran on the GPU."""
        with self._lock:
            self._queries += 1

    def on_cpu(self, operation: str) -> None:
        """Count an operation that ran on the CPU; reported only where the engine is a GPU."""
        with self._lock:
            self._on_cpu[operation] += 1

    def record(self) -> dict[str, Any] | None:
        """Return the statistics as plain values; None when no engine was set."""
        with self._lock:
            if not self._engine_facts:
                return None
            if self._engine_facts["name"] == "cpu":
                return dict(self._engine_facts)
            counts = {"queries": self._queries, "on_cpu": dict(sorted(self._on_cpu.items()))}
            return {**self._engine_facts, **{name: figure for name, figure in counts.items() if figure}}


EXECUTION: Final = ExecutionStats()
"""Statistics of the step that this process runs."""


def count_cpu_operation(operation: str) -> None:
    """Count work that always runs on the CPU, e.g. `ids of texts (numpy)`."""
    EXECUTION.on_cpu(operation)


def unsupported_operations(message: str) -> list[str] | None:
    r"""Return the operations that cudf-polars' error names as unsupported; None for other errors.

    >>> unsupported_operations(
    ...     "'cuda' conversion failed: NotImplementedError: (\"Query execution with GPU not possible: unsupported"
    ...     " operations.\\nThe errors were:\\n- NotImplementedError: Unary function name='hash'\", [...])"
    ... )
    ["Unary function name='hash'"]
    """
    if _REFUSAL_MARKER not in message:
        return None
    return [reason.strip() for reason in _REASON_PATTERN.findall(message)] or ["unknown"]
