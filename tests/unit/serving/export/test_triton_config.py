"""Triton's configuration on nodes with GPUs, read from its protocol buffer."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shortlist.contracts import ShortlistError
from shortlist.serving.export.triton_config import Backend, as_text, from_text, model_config
from shortlist.spec.serving import Batching, TritonPlacement

BATCHING = Batching(max_batch_rows=8_192, max_queue_delay_us=500, preferred_rows=(1_024, 4_096))
INPUTS = [("numbers", "TYPE_FP64", [3]), ("list_0", "TYPE_INT64", [-1])]


def config(backend: Backend = "onnxruntime", **placement: Any) -> Any:
    model = model_config(
        "shop", backend, BATCHING, 7, INPUTS, ("score", "TYPE_FP32", [1]), TritonPlacement(**placement)
    )
    return from_text(as_text(model))  # through the text that Triton reads


def kinds(model: Any) -> list[str]:
    return [type(group).Kind.Name(group.kind) for group in model.instance_group]


def test_a_network_on_a_gpu_joins_requests_into_preferred_batches() -> None:
    gpu_config = config(device="gpu")
    assert kinds(gpu_config) == ["KIND_GPU"]
    assert list(gpu_config.dynamic_batching.preferred_batch_size) == [1_024, 4_096]
    assert gpu_config.dynamic_batching.max_queue_delay_microseconds == 500
    assert not gpu_config.optimization.execution_accelerators.gpu_execution_accelerator
    assert [warm_up.batch_size for warm_up in gpu_config.model_warmup] == [1, 1_024]


def test_tensorrt_uses_fp32_and_is_built_for_every_batch_size_before_the_first_request() -> None:
    tensorrt_config = config(device="gpu", accelerator="tensorrt")
    (tensorrt,) = tensorrt_config.optimization.execution_accelerators.gpu_execution_accelerator
    assert tensorrt.name == "tensorrt"
    assert tensorrt.parameters["precision_mode"] == "FP32"
    assert tensorrt.parameters["trt_engine_cache_path"] == "/tmp"  # noqa: S108
    assert [warm_up.batch_size for warm_up in tensorrt_config.model_warmup] == [1, 8_192]


def test_a_cpu_configuration_has_no_gpu_settings() -> None:
    cpu_config = config()
    assert kinds(cpu_config) == ["KIND_CPU"]
    assert not cpu_config.HasField("optimization")
    assert kinds(config("python")) == ["KIND_CPU"]


def test_our_program_on_a_gpu_is_refused() -> None:
    with pytest.raises(
        ShortlistError, match=r"placement\.device is gpu, but our program .* scores on the CPU. Declare cpu"
    ):
        config("python", device="gpu")


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="accelerator: tensorrt runs on a GPU; declare device: gpu"):
        TritonPlacement(accelerator="tensorrt")
    with pytest.raises(ValidationError, match="preferred_rows 4096 is above max_batch_rows 2048"):
        Batching(max_batch_rows=2_048, preferred_rows=(1_024, 4_096))


def test_a_configuration_that_triton_does_not_know_is_refused() -> None:
    from google.protobuf.text_format import ParseError

    text = as_text(config(device="gpu", accelerator="tensorrt"))
    with pytest.raises(ParseError, match="gpu_execution_accelerators"):
        from_text(text.replace("gpu_execution_accelerator", "gpu_execution_accelerators"))
