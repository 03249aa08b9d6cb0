from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from shortlist.evaluation.gates.integrity import verify_model_folder
from shortlist.storage.artefacts import IntegrityError, write_manifest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.json").write_text('{"kind": "dlrm"}')
    safetensors.numpy.save_file({"weights": np.zeros(3, np.float32)}, folder / "weights.safetensors")
    np.save(folder / "plain.npy", np.zeros(3))
    write_manifest(folder)
    return folder


def test_weights_and_numbers_are_accepted(model: Path) -> None:
    assert set(verify_model_folder(model)) == {"model.json", "weights.safetensors", "plain.npy"}


def test_a_safetensors_header_that_begins_like_a_pickle_is_no_pickle(model: Path) -> None:
    path = model / "weights.safetensors"
    tensors = {"weights": np.zeros(3, np.float32)}
    safetensors.numpy.save_file(tensors, path)
    missing = 0x480 - int.from_bytes(path.read_bytes()[:8], "little")  # the length 80 04 is how a pickle begins
    safetensors.numpy.save_file(tensors, path, metadata={"x": "x" * (missing - len('"__metadata__":{"x":""},'))})
    assert path.read_bytes()[:2] == b"\x80\x04"
    write_manifest(model)
    assert verify_model_folder(model)


def test_a_changed_file_is_refused(model: Path) -> None:
    (model / "model.json").write_text('{"kind": "xgboost"}')
    with pytest.raises(IntegrityError, match=r"model\.json: changed after it was written"):
        verify_model_folder(model)


@pytest.mark.parametrize("name", ["m.pkl", "m.pickle", "m.pt", "m.pth", "m.joblib", "m.npz", "m.py"])
def test_files_that_run_code_are_refused_by_name(model: Path, name: str) -> None:
    _refused(model, lambda folder: (folder / name).write_bytes(b"harmless"), f"{name}: can run code")


@pytest.mark.parametrize("name", ["weights.safetensors", "model.ubj", "model.onnx", "rates.parquet", "m.npy", "m.bin"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_renamed_pickle_is_refused_by_its_first_bytes(model: Path, name: str, protocol: int) -> None:
    _refused(model, lambda folder: (folder / name).write_bytes(pickle.dumps([1], protocol)), f"{name}: can run code")


def test_a_renamed_archive_of_torch_is_refused(model: Path) -> None:
    def archive(folder: Path) -> None:
        with zipfile.ZipFile(folder / "model.ubj", "w") as file:
            file.writestr("data.pkl", pickle.dumps([1]))

    _refused(model, archive, r"model\.ubj: can run code")


def test_an_old_pickle_without_magic_bytes_is_refused(model: Path) -> None:
    _refused(model, lambda folder: (folder / "model.ubj").write_bytes(pickle.dumps([1], 0)), "does not hold what")


def test_trees_as_text_are_accepted(model: Path) -> None:
    (model / "model.txt").write_text("tree\nversion=v4\nnum_class=1\n")
    write_manifest(model)
    assert "model.txt" in verify_model_folder(model)


@pytest.mark.parametrize(
    "content", [pickle.dumps([1], 0), b"tree\nversion\x00", b"tree\n\xff\xfe", b"#!/bin/sh\n", b""]
)
def test_text_that_is_no_trees_is_refused(model: Path, content: bytes) -> None:
    _refused(model, lambda folder: (folder / "model.txt").write_bytes(content), r"model\.txt: does not hold what its")


def test_an_array_of_objects_is_refused(model: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    _refused(model, lambda folder: np.save(folder / "m.npy", objects, allow_pickle=True), "does not hold what")


def test_an_unknown_kind_is_refused(model: Path) -> None:
    _refused(model, lambda folder: (folder / "m.bin").write_text("?"), r"m\.bin: unknown kind of file '\.bin'; wanted")


def test_broken_json_is_refused(model: Path) -> None:
    _refused(model, lambda folder: (folder / "more.json").write_text("{"), "does not hold what")


def test_a_link_is_refused(model: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    _refused(model, lambda folder: (folder / "linked.json").symlink_to(outside), "is a link")


def test_no_folder_and_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="the training step left none"):
        verify_model_folder(tmp_path / "nothing")
    with pytest.raises(IntegrityError, match=r"manifest\.json: missing"):
        verify_model_folder(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"sha256": {}}))
    with pytest.raises(IntegrityError, match="lists no files"):
        verify_model_folder(tmp_path)


def _refused(model: Path, add: Callable[[Path], object], message: str) -> None:
    add(model)
    write_manifest(model)  # the digests agree: only the kind of file can stop it
    with pytest.raises(IntegrityError, match=message):
        verify_model_folder(model)
