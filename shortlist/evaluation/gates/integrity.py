"""Checks that a model folder holds weights and numbers only, and no code that could run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shortlist.storage.artefacts import IntegrityError, verify_manifest

_HEAD_BYTES = 8
_RUNS_CODE = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".dill", ".npz", ".py", ".so")


def verify_model_folder(folder: Path) -> dict[str, str]:
    """Return the digests by relative path after checking every file's digest and that no file can run code.

    Every file must be of a known kind and begin as that kind begins, so that a renamed pickle is detected.

    Raises:
        IntegrityError: A file is missing, changed, added, a link, of an unknown kind, or not what its name says.
    """
    if not folder.is_dir():
        raise IntegrityError(f"{folder.name}: there is no model folder; the training step left none")
    digests = verify_manifest(folder)
    if not digests:
        raise IntegrityError(f"{folder.name}: the manifest lists no files")
    for name in digests:
        _check_file(folder / name, name)
    return digests


def _check_file(path: Path, name: str) -> None:
    if path.is_symlink():
        raise IntegrityError(f"{name}: is a link; a model's files must lie in its folder")
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if suffix in _KINDS and _KINDS[suffix](head, path):
        return
    if suffix == ".data" and path.suffixes[-2:] == [".onnx", ".data"]:
        _check_external_weights(head, path, name)
        return
    if suffix in _RUNS_CODE or _is_pickle(head):
        raise IntegrityError(f"{name}: can run code when it is read; save weights as safetensors, UBJ or ONNX")
    if suffix not in _KINDS:
        raise IntegrityError(f"{name}: unknown kind of file '{suffix}'; wanted one of {', '.join(_KINDS)}")
    raise IntegrityError(f"{name}: does not hold what its name says; train again")


def _check_external_weights(head: bytes, path: Path, name: str) -> None:
    """Raise where external weights do not begin with zeros, as no file that can run does."""
    if not path.with_suffix("").is_file():
        raise IntegrityError(f"{name}: weights without their graph; wanted {path.with_suffix('').name} beside them")
    if any(head) or len(head) < _HEAD_BYTES:
        raise IntegrityError(f"{name}: does not begin as exported weights do; export the model again")


def _is_pickle(head: bytes) -> bool:
    """Return whether a file begins as a pickle (protocol 2 and later) or a zip archive (torch.save, numpy.savez)."""
    return (head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")) or head[:4] == b"PK\x03\x04"


def _is_safetensors(head: bytes, path: Path) -> bool:
    # Magic bytes are not enough: a header of 640 bytes begins with the length 80 02, as a pickle does.
    length = int.from_bytes(head[:8], "little")
    if not 2 <= length <= path.stat().st_size - 8:
        return False
    with path.open("rb") as file:
        file.seek(8)
        return _holds_json(file.read(length))


def _holds_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _is_plain_array(head: bytes, path: Path) -> bool:
    if not head.startswith(b"\x93NUMPY"):
        return False
    try:
        return not np.load(path, mmap_mode="r", allow_pickle=False).dtype.hasobject
    except ValueError:  # an array of objects is a pickle inside
        return False


def _is_text_of_trees(content: bytes) -> bool:
    """Return whether a file holds trees as text: the first line is `tree`, and UTF-8 without control characters."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return text.startswith("tree\n") and all(character >= " " or character in "\n\t" for character in set(text))


_KINDS: dict[str, Callable[[bytes, Path], bool]] = {
    ".json": lambda _, path: _holds_json(path.read_bytes()),
    ".safetensors": _is_safetensors,
    ".ubj": lambda head, _: head[:1] == b"{",
    ".onnx": lambda head, _: head[:1] == b"\x08",  # field 1 of the protocol buffer: ir_version
    ".txt": lambda _, path: _is_text_of_trees(path.read_bytes()),
    ".parquet": lambda head, _: head[:4] == b"PAR1",
    ".npy": _is_plain_array,
}
