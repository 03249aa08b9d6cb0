"""Where a step ran is counted and named."""

from __future__ import annotations

from shortlist.system.execution import ExecutionStats, unsupported_operations

REFUSAL = (
    "'cuda' conversion failed: NotImplementedError: (\"Query execution with GPU not possible: unsupported operations."
    "\\nThe errors were:\\n- NotImplementedError: Unary function name='clip'\\n- NotImplementedError: Unary function"
    " name='hash'\\n- NotImplementedError: rolling_mean\", [NotImplementedError(\"Unary function name='clip'\"),"
    " NotImplementedError(\"Unary function name='hash'\"), NotImplementedError('rolling_mean')])"
)
"""As Polars 1.39 passes on what cudf-polars 26.6 raises."""


def test_every_operation_of_a_refusal_is_named() -> None:
    assert unsupported_operations(REFUSAL) == [
        "Unary function name='clip'",
        "Unary function name='hash'",
        "rolling_mean",
    ]


def test_another_message_is_no_refusal() -> None:
    assert unsupported_operations("conversion from `str` to `i64` failed in column 'a'") is None


def test_a_refusal_without_a_list_is_still_one() -> None:
    assert unsupported_operations("GPU not possible: unsupported operations.") == ["unknown"]


def test_a_step_that_declares_no_engine_has_none() -> None:
    step = ExecutionStats()
    step.on_cpu("ids of texts")
    assert step.record() is None


def test_a_gpu_step_counts_its_queries_and_what_stayed_on_the_cpu() -> None:
    step = ExecutionStats()
    step.set_engine("gpu", device="NVIDIA H200")
    for _ in range(3):
        step.count_gpu_query()
    step.on_cpu("ids of texts")
    step.on_cpu("ids of texts")
    assert step.record() == {"name": "gpu", "device": "NVIDIA H200", "queries": 3, "on_cpu": {"ids of texts": 2}}
    step.clear()
    assert step.record() is None


def test_on_the_cpu_nothing_is_a_fallback() -> None:
    step = ExecutionStats()
    step.set_engine("cpu", reason="the package cudf-polars is not installed")
    step.on_cpu("ids of texts")
    assert step.record() == {"name": "cpu", "reason": "the package cudf-polars is not installed"}
