"""What ran where: the engine of a step, its queries, and every operation that a GPU left to the CPU, by name."""

from __future__ import annotations

import re
from collections import Counter
from threading import Lock
from typing import Any, Final, Literal

_REFUSED: Final = "unsupported operations"
"""What cudf-polars says of a plan that it cannot run."""
_REASON: Final = re.compile(r"(?:\\n|\n)- \w+: (.+?)(?=\\n- |\n- |[\"'], \[|$)")
"""One reason of its list; Polars passes the list on as Python shows a tuple, line ends and all."""


class ExecutionStats:
    """The figures of one step; all threads of its process share them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        with self._lock:
            self._about: dict[str, Any] = {}
            self._queries = 0
            self._on_cpu: Counter[str] = Counter()

    def runs_on(self, engine: Literal["cpu", "gpu"], **about: Any) -> None:
        """Note the engine; `about` names its device, or says why it is no GPU."""
        with self._lock:
            self._about = {"name": engine, **about}

    def queried(self) -> None:
        """Count a query that ran on the GPU."""
        with self._lock:
            self._queries += 1

    def on_cpu(self, operation: str) -> None:
        """Count an operation that ran on the CPU; it is reported where the engine is a GPU."""
        with self._lock:
            self._on_cpu[operation] += 1

    def record(self) -> dict[str, Any] | None:
        """Return what is known as plain values; None when nothing was declared to run anywhere."""
        with self._lock:
            if not self._about:
                return None
            if self._about["name"] == "cpu":
                return dict(self._about)
            counted = {"queries": self._queries, "on_cpu": dict(sorted(self._on_cpu.items()))}
            return {**self._about, **{name: figure for name, figure in counted.items() if figure}}


EXECUTION: Final = ExecutionStats()
"""Of the step that this process runs."""


def on_cpu(operation: str) -> None:
    """Count work that no GPU engine is ever asked for, e.g. `ids of texts (numpy)`."""
    EXECUTION.on_cpu(operation)


def unsupported_operations(message: str) -> list[str] | None:
    r"""Return the operations that cudf-polars names in a refusal; None when the message is of another kind.

    >>> unsupported_operations(
    ...     "'cuda' conversion failed: NotImplementedError: (\"Query execution with GPU not possible: unsupported"
    ...     " operations.\\nThe errors were:\\n- NotImplementedError: Unary function name='hash'\", [...])"
    ... )
    ["Unary function name='hash'"]
    """
    if _REFUSED not in message:
        return None
    return [reason.strip() for reason in _REASON.findall(message)] or ["unknown"]
