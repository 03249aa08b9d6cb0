"""Triton's configuration of a model (`config.pbtxt`), built from its protocol buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from shortlist.contracts import ShortlistError
from shortlist.serving.export.signature import CODES, NUMBERS, Signature
from shortlist.spec.serving import Batching, TritonPlacement

if TYPE_CHECKING:
    ModelConfig = Any  # its module has no type information

Backend = Literal["python", "onnxruntime", "fil"]

CONFIG_FILE: Final = "config.pbtxt"
_WARM_UP_ROWS = 1024
"""Rows of the larger warm-up batch: the candidates of a typical request."""
_TENSORRT: Final = {
    "precision_mode": "FP32",  # the precision that passed the parity gate
    "max_workspace_size_bytes": str(2**30),
    # A server that restarts in its pod reuses its engine: building it takes minutes.
    "trt_engine_cache_enable": "1",
    "trt_engine_cache_path": "/tmp",  # noqa: S108 - the pod's own; the rest of the disk is read-only
    "trt_timing_cache_enable": "1",
}
"""Parameters of ONNX Runtime's TensorRT provider, as Triton's backend names them."""
_WARM_UP_VALUES = 8
"""Values per row of lists in warm-up batches."""

TensorSpec = tuple[str, str, list[int]]
"""Name, type and width (-1: any) of a tensor, without its number of rows."""


def input_tensors(signature: Signature) -> list[TensorSpec]:
    """Return the tensors that a model with this signature reads."""
    tensors: list[TensorSpec] = []
    if signature.numbers:
        tensors.append((NUMBERS, "TYPE_FP64", [len(signature.numbers)]))
    if signature.codes:
        tensors.append((CODES, "TYPE_INT64", [len(signature.codes)]))
    tensors += [(tags.tensor, "TYPE_INT64", [-1]) for tags in signature.lists]
    return tensors + [(vector.tensor, "TYPE_FP32", [vector.width]) for vector in signature.vectors]


def model_config(
    name: str, backend: Backend, batching: Batching, version: int, inputs: list[TensorSpec], output: TensorSpec,
    placement: TritonPlacement,
) -> ModelConfig:  # fmt: skip
    """Return the configuration of one version of a model.

    Args:
        name: Name of the model.
        backend: Backend that runs it.
        batching: Batching of Triton; `threads` is passed to the backend as a parameter.
        version: The only version that is served.
        inputs: Input tensors.
        output: Output tensor.
        placement: Device to run on.

    Raises:
        ShortlistError: The Python backend is placed on a GPU.
    """
    on_gpu = placement.device == "gpu"
    if on_gpu and backend == "python":
        raise ShortlistError(
            "serving.placement.device is gpu, but our program in Triton's Python backend scores on the CPU. Declare cpu"
            " or what can use one: runtime.target: kserve, and export's forms onnxruntime and fil."
        )
    config = _base_config(name, batching, version, inputs, output)
    config.backend = backend
    for tensor in config.input:  # our program pads lists of different widths; other backends need equal widths
        tensor.allow_ragged_batch = backend == "python" and tensor.dims[0] < 0
    config.dynamic_batching.max_queue_delay_microseconds = batching.max_queue_delay_us
    config.dynamic_batching.preferred_batch_size.extend(batching.preferred_rows)
    config.instance_group.add(name=name, count=1, kind="KIND_GPU" if on_gpu else "KIND_CPU")
    largest_batch = min(_WARM_UP_ROWS, batching.max_batch_rows)
    if placement.accelerator == "tensorrt" and backend == "onnxruntime":
        tensorrt = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
        tensorrt.parameters.update(_TENSORRT)
        # An engine serves batch sizes between the smallest and largest of the warm-up.
        largest_batch = batching.max_batch_rows
    for key, value in _parameters(backend, batching).items():
        config.parameters[key].string_value = value
    for rows in sorted({1, largest_batch}):
        config.model_warmup.append(_warm_up(config, rows))
    return config


def ensemble_config(
    name: str,
    batching: Batching,
    version: int,
    inputs: list[TensorSpec],
    output: TensorSpec,
    steps: list[dict[str, Any]],
) -> ModelConfig:
    """Return the configuration of an ensemble of models that run one after another.

    Args:
        name: Name of the ensemble.
        batching: Contains its largest batch.
        version: The only version that is served.
        inputs: Input tensors.
        output: Output tensor.
        steps: Per model its `model_name`, and the outer names of its tensors: `input_map`, `output_map`.
    """
    config = _base_config(name, batching, version, inputs, output)
    config.platform = "ensemble"
    for step in steps:
        config.ensemble_scheduling.step.add(model_version=version, **step)
    return config


def as_text(config: ModelConfig) -> str:
    """Return a configuration as the text of `config.pbtxt`."""
    from google.protobuf import text_format

    return str(text_format.MessageToString(config))


def from_text(text: str) -> ModelConfig:
    """Return the configuration in a `config.pbtxt`."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    return text_format.Parse(text, model_config_pb2.ModelConfig())


def _base_config(
    name: str, batching: Batching, version: int, inputs: list[TensorSpec], output: TensorSpec
) -> ModelConfig:
    from tritonclient.grpc import model_config_pb2

    config = model_config_pb2.ModelConfig(name=name, max_batch_size=batching.max_batch_rows)
    config.version_policy.specific.versions.append(version)
    for config_tensors, tensors in ((config.input, inputs), (config.output, [output])):
        for tensor, kind, dims in tensors:
            config_tensors.add(name=tensor, data_type=model_config_pb2.DataType.Value(kind), dims=dims)
    return config


def _parameters(backend: Backend, batching: Batching) -> dict[str, str]:
    match backend:
        case "python":
            return {"threads": str(batching.threads)}
        case "onnxruntime":
            return {"intra_op_thread_count": str(batching.threads), "inter_op_thread_count": "1"}
        case "fil":
            # As a regressor of one output: the probability that the booster's own sigmoid gives, no class. Triton 25.09
            # and later; before, `is_classifier` was `output_class`.
            return {"model_type": "xgboost_ubj", "is_classifier": "false", "predict_proba": "false"}


def _warm_up(config: ModelConfig, rows: int) -> Any:
    from tritonclient.grpc import model_config_pb2

    warm_up = model_config_pb2.ModelWarmup(name=f"rows_{rows}", batch_size=rows)
    for tensor in config.input:
        warm_up_input = warm_up.inputs[tensor.name]
        warm_up_input.data_type = tensor.data_type
        warm_up_input.dims.extend(_WARM_UP_VALUES if width < 0 else width for width in tensor.dims)
        warm_up_input.zero_data = True
    return warm_up
