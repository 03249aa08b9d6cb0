"""Trees for Triton's FIL backend: it computes the scores of the exported graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import xgboost as xgb

from models.xgboost.section import XGBoostModel
from shortlist.contracts import ShortlistError
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.rollout.kserve.objects.published import publish, repository_key
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.fil import write_fil_repository
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.repository import verify_repository
from shortlist.serving.export.signature import SIGNATURE_FILE, Signature
from shortlist.serving.export.triton_config import from_text
from shortlist.spec.serving import Batching, Serving, TritonPlacement
from shortlist.storage.artefacts import IntegrityError, folder_digest, write_json
from shortlist.storage.objects import ObjectStore
from shortlist.training.export import export

BATCHING = Batching(max_batch_rows=512, max_queue_delay_us=200, preferred_rows=(128, 256), threads=1)


@pytest.fixture(scope="module")
def trees(all_features: Any) -> Path:
    section = XGBoostModel(features=("*_number", "*_rate", "page_id", "picture_vector"), rounds=9)
    folder = Path(all_features.trained("xgboost", section, "xgboost"))
    export(folder, "shop")
    return folder


@pytest.fixture
def repository(trees: Path, tmp_path: Path) -> Path:
    write_fil_repository(trees / "serving", 4, BATCHING, tmp_path / "out", TritonPlacement(device="gpu"))
    return tmp_path / "out"


def config_of(folder: Path) -> Any:
    return from_text((folder / "config.pbtxt").read_text())


def tensors_of(config: Any, place: str) -> dict[str, tuple[int, list[int]]]:
    return {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in getattr(config, place)}


def test_the_ensemble_fits_together(repository: Path) -> None:
    verify_repository(repository)
    assert {path.relative_to(repository).as_posix() for path in repository.rglob("*") if path.is_file()} == {
        "manifest.json", "shop/config.pbtxt", "shop_transform/config.pbtxt", "shop_transform/4/model.onnx",
        "shop_trees/config.pbtxt", "shop_trees/4/xgboost.ubj",
    }  # fmt: skip
    assert (repository / "shop" / "4").is_dir()  # Triton wants a folder for the ensemble's version, too
    whole, first, second = (config_of(repository / name) for name in ("shop", "shop_transform", "shop_trees"))
    assert (whole.platform, first.backend, second.backend) == ("ensemble", "onnxruntime", "fil")
    assert tensors_of(whole, "input") == tensors_of(first, "input")
    ((features, (kind, width)),) = tensors_of(first, "output").items()
    assert tensors_of(second, "input") == {"input__0": (kind, width)}
    assert list(tensors_of(second, "output").values()) == list(tensors_of(whole, "output").values())
    maps = [(step.model_name, dict(step.input_map), dict(step.output_map)) for step in whole.ensemble_scheduling.step]
    assert maps == [
        (first.name, {name: name for name in tensors_of(whole, "input")}, {features: features}),
        (second.name, {"input__0": features}, {"output__0": "score"}),
    ]
    assert {key: value.string_value for key, value in second.parameters.items()} == {
        "model_type": "xgboost_ubj", "is_classifier": "false", "predict_proba": "false"
    }  # fmt: skip


def test_only_the_trees_go_to_the_gpu_and_requests_are_joined(repository: Path) -> None:
    kinds = type(config_of(repository / "shop_trees").instance_group[0]).Kind
    for name, kind in (("shop_transform", "KIND_CPU"), ("shop_trees", "KIND_GPU")):
        config = config_of(repository / name)
        assert [kinds.Name(group.kind) for group in config.instance_group] == [kind]
        assert list(config.dynamic_batching.preferred_batch_size) == [128, 256]
        assert config.dynamic_batching.max_queue_delay_microseconds == 200


def test_trees_behind_the_cut_graph_score_as_the_whole_graph(repository: Path, trees: Path, all_features: Any) -> None:
    tensors = encode(all_features.looked_up, Signature.read(trees / "serving"), all_features.transformer.plan.declared)
    (expected,) = create_session(trees / "serving").run(["score"], tensors)
    transform = onnxruntime.InferenceSession(
        str(repository / "shop_transform/4/model.onnx"), providers=["CPUExecutionProvider"]
    )
    (floats,) = transform.run(None, tensors)
    booster = xgb.Booster(model_file=repository / "shop_trees/4/xgboost.ubj")
    scores = booster.inplace_predict(floats, validate_features=False)
    np.testing.assert_allclose(scores, expected[:, 0], atol=1e-6)
    assert np.unique(scores).size > 10
    spoilt = booster.inplace_predict(floats[:, ::-1], validate_features=False)
    assert np.abs(spoilt - expected[:, 0]).max() > 1e-3


def test_a_graph_that_cannot_be_cut_or_has_no_trees_is_refused(trees: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(trees, tmp_path / "model")
    signature = Signature.read(trees / "serving").model_copy(update={"border": ()})
    write_json(tmp_path / "model/serving" / SIGNATURE_FILE, signature.model_dump(mode="json"))
    with pytest.raises(ShortlistError, match="does not say where its features end; train the model again"):
        write_fil_repository(tmp_path / "model/serving", 4, BATCHING, tmp_path / "out")
    (tmp_path / "model/model.ubj").unlink()
    with pytest.raises(IntegrityError, match=r"model\.ubj: missing"):
        write_fil_repository(tmp_path / "model/serving", 4, BATCHING, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("device", "backends"), [("gpu", ["", "onnxruntime", "fil"]), ("cpu", ["onnxruntime"])])
def test_a_cluster_serves_trees_on_the_declared_device(
    trees: Path, tmp_path: Path, device: str, backends: list[str]
) -> None:
    objects = ObjectStore.in_folder(tmp_path / "objects")
    deployment = Deployment(version=4, kind="xgboost", model_folder=trees, digest=folder_digest(trees), store=None)
    serving = Serving(placement=TritonPlacement.model_validate({"device": device}))
    owner = ObjectOwner(cluster="eu-1", namespace="ml", spec="shop")
    digest = publish(objects, owner, deployment, serving)
    key = repository_key(owner, 4, deployment.digest, digest)
    fetched = objects.fetch_folder(key, tmp_path / "pod")
    verify_repository(fetched)
    assert [config_of(folder).backend for folder in sorted(fetched.iterdir()) if folder.is_dir()] == backends
