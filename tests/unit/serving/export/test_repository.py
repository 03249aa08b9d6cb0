from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from models.dlrm.section import DLRMModel
from models.xgboost.section import XGBoostModel
from shortlist.contracts import ShortlistError
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.onnx_session import create_session, null_inputs
from shortlist.serving.export.program.predictor import Failure, TritonPythonModel
from shortlist.serving.export.repository import verify_repository, write_repository
from shortlist.serving.export.signature import NO_CODE, Signature
from shortlist.serving.export.triton_config import from_text
from shortlist.serving.triton.triton import running_triton
from shortlist.spec.serving import Batching, Scoring
from shortlist.storage import artefacts
from shortlist.storage.artefacts import IntegrityError
from shortlist.training.export import export

WHOLE = Scoring(runtime="onnxruntime")
BATCHING = Batching(max_batch_rows=512, max_queue_delay_us=40_000, threads=1)


@pytest.fixture(scope="module")
def dlrm(all_features: Any) -> Path:
    """A DLRM that reads every kind of tensor."""
    section = DLRMModel(features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,), epochs=1, batch_size=64)
    folder = all_features.trained("dlrm", section, "dlrm")
    export(folder, "shop")
    return Path(folder)


@pytest.fixture
def repository(dlrm: Path, tmp_path: Path) -> Path:
    """A repository whose program runs the whole graph."""
    write_repository(dlrm / "serving", 12, BATCHING, tmp_path / "repository", scoring=WHOLE)
    return tmp_path / "repository"


def config_of(folder: Path) -> Any:
    return from_text((folder / "config.pbtxt").read_text())


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def tensors_of(config: Any, place: str) -> dict[str, tuple[int, list[int]]]:
    return {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in getattr(config, place)}


def test_a_repository_contains_its_serving_configuration(repository: Path, dlrm: Path) -> None:
    version = {f"shop/12/{name}" for name in ("model.onnx", "model.py", "scorers.py", "calibrated.py")}
    assert files_of(repository) == {"manifest.json", "shop/config.pbtxt", *version}
    config, signature = config_of(repository / "shop"), Signature.read(dlrm / "serving")
    assert (config.name, config.backend, config.max_batch_size) == ("shop", "python", 512)
    assert list(config.version_policy.specific.versions) == [12]
    assert config.dynamic_batching.max_queue_delay_microseconds == 40_000
    assert config.parameters["threads"].string_value == "1"
    assert [group.count for group in config.instance_group] == [1]
    assert set(tensors_of(config, "input")) == {tensor.name for tensor in create_session(dlrm / "serving").get_inputs()}
    assert tensors_of(config, "output") == {"score": (config.output[0].data_type, [1])}
    for warm_up in config.model_warmup:
        assert set(warm_up.inputs) == set(tensors_of(config, "input"))
        assert warm_up.inputs["numbers"].dims == [len(signature.numbers)]
        assert all(dims > 0 for tensor in warm_up.inputs.values() for dims in tensor.dims)
    assert all(tensor.allow_ragged_batch == (tensor.dims[0] < 0) for tensor in config.input)
    assert [warm_up.batch_size for warm_up in config.model_warmup] == [1, 512]


def test_a_cluster_gets_the_same_graph_without_any_python(dlrm: Path, tmp_path: Path) -> None:
    write_repository(dlrm / "serving", 3, BATCHING, tmp_path / "out", form="onnxruntime")
    assert files_of(tmp_path / "out") == {"manifest.json", "shop/config.pbtxt", "shop/3/model.onnx"}
    assert (tmp_path / "out/shop/3/model.onnx").read_bytes() == (dlrm / "serving" / "model.onnx").read_bytes()
    config = config_of(tmp_path / "out" / "shop")
    assert config.backend == "onnxruntime"
    assert not any(tensor.allow_ragged_batch for tensor in config.input)  # its backend could not read such a batch
    assert config.parameters["intra_op_thread_count"].string_value == "1"


def test_the_same_model_gives_the_same_repository(dlrm: Path, repository: Path, tmp_path: Path) -> None:
    write_repository(dlrm / "serving", 12, BATCHING, tmp_path / "again", scoring=WHOLE)
    assert artefacts.folder_digest(tmp_path / "again") == artefacts.folder_digest(repository)


def test_a_complete_repository_passes_verification(repository: Path) -> None:
    assert set(verify_repository(repository)) == files_of(repository) - {"manifest.json"}


@pytest.mark.parametrize("name", ["config.pbtxt", "12/model.py", "12/features.onnx", "12/network.onnx"])
def test_a_changed_or_missing_file_is_named(dlrm: Path, tmp_path: Path, name: str) -> None:
    repository, name = tmp_path / "cut", f"shop/{name}"
    write_repository(dlrm / "serving", 12, BATCHING, repository)
    with (repository / name).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(IntegrityError, match=rf"{name}: changed after it was written"):
        verify_repository(repository)
    (repository / name).unlink()
    with pytest.raises(IntegrityError, match=rf"{name}: in the manifest but missing"):
        verify_repository(repository)


def test_the_graph_of_a_network_is_cut_where_its_features_end(dlrm: Path, tmp_path: Path) -> None:
    write_repository(dlrm / "serving", 12, BATCHING, tmp_path / "cut", scoring=Scoring(precision="auto"))
    version = {
        f"shop/12/{name}" for name in ("features.onnx", "network.onnx", "model.py", "scorers.py", "calibrated.py")
    }
    assert files_of(tmp_path / "cut") == {"manifest.json", "shop/config.pbtxt", *version}
    assert config_of(tmp_path / "cut" / "shop").parameters["precision"].string_value == "auto"
    features, network = (onnx.load(tmp_path / "cut/shop/12" / f"{name}.onnx") for name in ("features", "network"))
    border = [tensor.name for tensor in features.graph.output]
    assert border == list(Signature.read(dlrm / "serving").border) == [tensor.name for tensor in network.graph.input]
    assert [tensor.name for tensor in network.graph.output] == ["log_odds"]
    whole = onnx.load(dlrm / "serving" / "model.onnx")
    tail = 2 + 4  # the sigmoid, and what keeps it from 0 and 1; the answer's name
    assert len(features.graph.node) + len(network.graph.node) + tail == len(whole.graph.node)


def test_large_weights_are_stored_once_for_all_parts(all_features: Any, dlrm: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(dlrm, model)
    shutil.rmtree(model / "serving")
    artefacts.write_manifest(model)
    export(model, "shop", external_bytes=1_000)
    write_repository(model / "serving", 12, BATCHING, tmp_path / "cut")
    weights = tmp_path / "cut/shop/12/model.onnx.data"
    assert weights.stat().st_size > sum((weights.parent / f"{part}.onnx").stat().st_size for part in ("network",))
    tensors = encode(all_features.looked_up, Signature.read(model / "serving"), all_features.transformer.plan.declared)
    with running_triton(tmp_path / "cut") as running, triton.InferenceServerClient(running.grpc) as client:
        scores = client.infer("shop", infer_inputs(tensors)).as_numpy("score")
    (expected,) = create_session(dlrm / "serving").run(["score"], tensors)
    np.testing.assert_allclose(scores, expected, atol=1e-6, rtol=0)


def test_trees_are_stored_in_their_own_file(all_features: Any, tmp_path: Path) -> None:
    section = XGBoostModel(features=("*_number", "*_rate", "page_id", "picture_vector"), rounds=30)
    model = all_features.trained("xgboost", section, "trees")
    export(model, "shop")
    write_repository(model / "serving", 2, BATCHING, tmp_path / "cut")
    program = ("model.py", "scorers.py", "calibrated.py", "compiling.py", "tree_walk.py")
    version = {f"shop/2/{name}" for name in ("features.onnx", "trees.npz", *program)}
    assert files_of(tmp_path / "cut") == {"manifest.json", "shop/config.pbtxt", *version}
    tensors = encode(all_features.looked_up, Signature.read(model / "serving"), all_features.transformer.plan.declared)
    program = program_of(tmp_path / "cut", 2, 2)
    for rows in (1, 128, 129, len(tensors["numbers"])):  # of a block, a whole one, one more
        batch = {name: values[:rows] for name, values in tensors.items()}
        (expected,) = create_session(model / "serving").run(["score"], batch)
        np.testing.assert_allclose(program.scores(batch), expected, atol=1e-6, rtol=0)
    assert len(np.unique(expected)) > 50
    with running_triton(tmp_path / "cut") as running, triton.InferenceServerClient(running.grpc) as client:
        scores = client.infer("shop", infer_inputs(tensors)).as_numpy("score")
    np.testing.assert_array_equal(scores, program.scores(tensors))
    verify_repository(tmp_path / "cut")  # what was compiled lies elsewhere


def test_a_broken_graph_is_not_cut(dlrm: Path, tmp_path: Path) -> None:
    shutil.copytree(dlrm, tmp_path / "model")
    (tmp_path / "model/serving/model.onnx").write_bytes(b"not a graph")
    with pytest.raises(IntegrityError, match=r"model\.onnx: is no readable graph"):
        write_repository(tmp_path / "model/serving", 1, BATCHING, tmp_path / "out")


def test_files_of_another_model_are_detected(repository: Path, dlrm: Path, tmp_path: Path) -> None:
    write_repository(dlrm / "serving", 13, BATCHING, tmp_path / "other")
    (tmp_path / "other" / "shop" / "13").rename(repository / "shop" / "13")
    with pytest.raises(IntegrityError, match=r"shop/13/calibrated.py: not in the manifest"):
        verify_repository(repository)


def test_a_link_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / "other").symlink_to(tmp_path)  # a folder behind a link has no files of its own to list
    with pytest.raises(IntegrityError, match="other: is a link"):
        verify_repository(repository)


def test_a_failed_write_leaves_no_repository(dlrm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shortlist.serving.export.repository.write_manifest", full)
    with pytest.raises(ShortlistError, match="the disk is full; no incomplete file is left"):
        write_repository(dlrm / "serving", 1, BATCHING, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_version_that_names_no_folder_is_refused(dlrm: Path, tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match="version 0 cannot name a model's folder"):
        write_repository(dlrm / "serving", 0, BATCHING, tmp_path / "out")


def program_of(repository: Path, threads: int, version: int = 12) -> TritonPythonModel:
    program, folder = TritonPythonModel(), str(repository / "shop")
    parameters = {"threads": {"string_value": str(threads)}, "precision": {"string_value": "fp32"}}
    config = json.dumps({"parameters": parameters})
    program.initialize({"model_config": config, "model_repository": folder, "model_version": str(version)})
    return program


@pytest.mark.parametrize("rows", [1, 127, 256, 401, 1_000])
def test_rows_split_among_threads_get_the_right_scores(dlrm: Path, repository: Path, rows: int) -> None:
    tensors = null_inputs(Signature.read(dlrm / "serving"), rows)
    tensors["numbers"] = np.random.default_rng(rows).normal(size=tensors["numbers"].shape)
    (expected,) = create_session(dlrm / "serving").run(["score"], tensors)
    np.testing.assert_allclose(program_of(repository, 3).scores(tensors), expected, rtol=1e-6)
    assert np.unique(expected).size > rows / 2


def test_a_failure_in_one_thread_fails_the_request_and_not_the_next_request(dlrm: Path, repository: Path) -> None:
    program, good = program_of(repository, 2), null_inputs(Signature.read(dlrm / "serving"), 500)
    expected = program.scores(good)
    (broken,) = program._score_requests([{**good, "codes": good["codes"][:200]}])  # the second part lacks rows
    assert isinstance(broken, Failure)
    np.testing.assert_array_equal(program.scores(good), expected)


def test_a_request_that_breaks_the_run_does_not_affect_other_requests(dlrm: Path, repository: Path) -> None:
    program = program_of(repository, 1)
    good = null_inputs(Signature.read(dlrm / "serving"), 2)
    bad = {**good, "numbers": np.zeros((2, 1))}
    first, broken, last = program._score_requests([good, bad, good])
    assert isinstance(broken, Failure) and broken.kind == "INTERNAL" and "the model did not run" in broken.message
    np.testing.assert_array_equal(first, last)


@pytest.fixture(scope="module")
def served(dlrm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton.InferenceServerClient]:
    """A client of a real Triton."""
    out = tmp_path_factory.mktemp("served") / "repository"
    write_repository(dlrm / "serving", 12, BATCHING, out)
    with running_triton(out) as running, triton.InferenceServerClient(running.grpc) as client:
        yield client
    verify_repository(out)  # Triton has left no trace


def infer_inputs(tensors: dict[str, np.ndarray]) -> list[triton.InferInput]:
    inputs = []
    for name, values in tensors.items():
        tensor = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        inputs.append(tensor.set_data_from_numpy(np.ascontiguousarray(values)))
    return inputs


def test_the_real_triton_gives_the_graphs_scores(
    served: triton.InferenceServerClient, dlrm: Path, all_features: Any
) -> None:
    tensors = encode(all_features.looked_up, Signature.read(dlrm / "serving"), all_features.transformer.plan.declared)
    answer = served.infer("shop", infer_inputs(tensors))
    (expected,) = create_session(dlrm / "serving").run(["score"], tensors)
    np.testing.assert_allclose(answer.as_numpy("score"), expected, atol=1e-6, rtol=0)
    assert np.unique(expected).size > 100
    assert answer.get_response().model_version == "12"


@pytest.mark.skipif("avx512_bf16" not in Path("/proc/cpuinfo").read_text(), reason="the CPU has no bfloat16")
def test_a_network_in_bf16_gives_about_the_same_scores(dlrm: Path, all_features: Any, tmp_path: Path) -> None:
    write_repository(dlrm / "serving", 12, BATCHING, tmp_path / "narrow", scoring=Scoring(precision="auto"))
    tensors = encode(all_features.looked_up, Signature.read(dlrm / "serving"), all_features.transformer.plan.declared)
    with running_triton(tmp_path / "narrow") as running, triton.InferenceServerClient(running.grpc) as client:
        scores = client.infer("shop", infer_inputs(tensors)).as_numpy("score")
    (expected,) = create_session(dlrm / "serving").run(["score"], tensors)
    assert 1e-5 < np.abs(scores - expected).max() < 0.02


def test_waiting_requests_are_batched_whatever_the_length_of_their_lists(
    served: triton.InferenceServerClient, dlrm: Path, all_features: Any
) -> None:
    tensors = encode(all_features.looked_up, Signature.read(dlrm / "serving"), all_features.transformer.plan.declared)
    parts = [{name: values[i : i + 3] for name, values in tensors.items()} for i in range(0, 60, 3)]
    for number, part in enumerate(parts):
        wider = np.full((3, 1 + number % 4), NO_CODE)
        part["list_1"] = np.concatenate([part["list_1"], wider], axis=1)
    old_statistics = served.get_inference_statistics("shop").model_stats[0]
    with ThreadPoolExecutor(len(parts)) as pool:
        answers = list(pool.map(lambda part: served.infer("shop", infer_inputs(part)).as_numpy("score"), parts))
    new_statistics = served.get_inference_statistics("shop").model_stats[0]
    (expected,) = create_session(dlrm / "serving").run(
        ["score"], {name: values[:60] for name, values in tensors.items()}
    )
    np.testing.assert_allclose(np.concatenate(answers), expected, rtol=1e-6)
    assert new_statistics.inference_count - old_statistics.inference_count == 60
    assert new_statistics.execution_count - old_statistics.execution_count < len(parts) / 2


def test_a_bad_request_is_answered_with_an_error_and_the_server_lives_on(
    served: triton.InferenceServerClient, dlrm: Path
) -> None:
    good = null_inputs(Signature.read(dlrm / "serving"), 2)
    for name, values in (
        ("numbers", good["numbers"][:, :-1]), ("numbers", good["numbers"][:1]),
        ("codes", good["codes"].astype(np.float64)),
    ):  # fmt: skip
        with pytest.raises(InferenceServerException, match=name):
            served.infer("shop", infer_inputs({**good, name: values}))
    missing = {name: values for name, values in good.items() if name != "codes"}
    with pytest.raises(InferenceServerException, match=r"expected \d+ inputs but got \d+"):
        served.infer("shop", infer_inputs(missing))
    assert served.infer("shop", infer_inputs(good)).as_numpy("score").shape == (2, 1)
