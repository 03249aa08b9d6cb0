"""Execution statistics of a step."""

from __future__ import annotations

from shortlist.system.execution import ExecutionStats, unsupported_operations

REFUSAL = (
    "'cuda' conversion failed: NotImplementedError: (\"Query execution with GPU not possible: unsupported operations."
    "\\nThe errors were:\\n- NotImplementedError: Unary function name='clip'\\n- NotImplementedError: Unary function"
    " name='hash'\\n- NotImplementedError: rolling_mean\", [NotImplementedError(\"Unary function name='clip'\"),"
    " NotImplementedError(\"Unary function name='hash'\"), NotImplementedError('rolling_mean')])"
)
"""Error of cudf-polars 26.6 as Polars 1.39 passes it on."""


def test_all_unsupported_operations_are_returned() -> None:
    assert unsupported_operations(REFUSAL) == [
        "Unary function name='clip'",
        "Unary function name='hash'",
        "rolling_mean",
    ]


def test_other_messages_have_no_unsupported_operations() -> None:
    assert unsupported_operations("conversion from `str` to `i64` failed in column 'a'") is None


def test_a_refusal_without_a_list_has_an_unknown_operation() -> None:
    assert unsupported_operations("GPU not possible: unsupported operations.") == ["unknown"]


def test_a_step_without_an_engine_has_no_record() -> None:
    step = ExecutionStats()
    step.on_cpu("ids of texts")
    assert step.record() is None


def test_a_gpu_step_counts_its_queries_and_cpu_operations() -> None:
    step = ExecutionStats()
    step.set_engine("gpu", device="NVIDIA H200")
    for _ in range(3):
        step.count_gpu_query()
    step.on_cpu("ids of texts")
    step.on_cpu("ids of texts")
    assert step.record() == {"name": "gpu", "device": "NVIDIA H200", "queries": 3, "on_cpu": {"ids of texts": 2}}
    step.clear()
    assert step.record() is None


def test_a_cpu_step_records_no_fallbacks() -> None:
    step = ExecutionStats()
    step.set_engine("cpu", reason="the package cudf-polars is not installed")
    step.on_cpu("ids of texts")
    assert step.record() == {"name": "cpu", "reason": "the package cudf-polars is not installed"}
