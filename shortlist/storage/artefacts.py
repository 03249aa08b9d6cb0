"""Folders that are written atomically, with a manifest of their files' digests."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shortlist.contracts import Files, ShortlistError

_SYNC_THREADS: Final = 16


class IntegrityError(ShortlistError):
    """A file is missing, was changed after it was written, or is not in the manifest."""


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a staging folder that is renamed to `folder` when the block ends without an error, and deleted otherwise.

    A killed process leaves only the staging folder, whose name ends in `.partial`; the next call deletes it. An
    existing `folder` is replaced.

    Raises:
        ShortlistError: The disk is full.
    """
    staging = folder.with_name(folder.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        _sync(staging)
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if is_disk_full(error):
            raise ShortlistError(
                f"{folder}: the disk is full; no incomplete file is left."
                " Free space, or choose another folder, and run again."
            ) from None
        raise
    if folder.exists():
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    staging.rename(folder)
    sync_path(folder.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_path(path.parent)


def write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """Write an indented JSON file atomically; NaN is refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        IntegrityError: The file is missing or is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path}: missing; the step that writes it did not finish. Run again.") from None
    except ValueError as error:
        raise IntegrityError(f"{path}: not valid JSON ({error}). Delete its folder and run again.") from None
    if not isinstance(value, dict):
        raise IntegrityError(f"{path}: wanted a JSON object, got {type(value).__name__}")
    return value


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> dict[str, str]:
    """Write `manifest.json` with the digest of every file below a folder; return the digests by relative path."""
    digests = file_digests(folder)
    write_json(folder / Files.MANIFEST, {"sha256": digests})
    return digests


def verify_manifest(folder: Path) -> dict[str, str]:
    """Return the digests by relative path after checking every file against `manifest.json`.

    Raises:
        IntegrityError: A file is missing, changed, or not in the manifest.
    """
    manifest_digests: dict[str, str] = read_json(folder / Files.MANIFEST)["sha256"]
    files = _list_files(folder)
    for name in sorted(set(manifest_digests) - set(files)):
        raise IntegrityError(f"{folder / name}: in the manifest but missing; restore it or train again")
    for name in sorted(set(files) - set(manifest_digests)):
        raise IntegrityError(f"{folder / name}: not in the manifest; it was added after training")
    for name, digest in manifest_digests.items():
        actual_digest = sha256(folder / name)
        if actual_digest != digest:
            raise IntegrityError(
                f"{folder / name}: changed after it was written (sha256 {actual_digest[:12]}, manifest {digest[:12]})"
            )
    return manifest_digests


def folder_digest(folder: Path) -> str:
    """Return one digest of all files below a folder, their names included; 16 hexadecimal digits."""
    return digest_of_files(file_digests(folder))


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder by relative path, without manifests."""
    return {name: sha256(folder / name) for name in _list_files(folder)}


def digest_of_files(digests: Mapping[str, str]) -> str:
    """Return `folder_digest` of a folder whose files have these SHA-256 by relative path, without manifests."""
    total = hashlib.sha256()
    for name in sorted(digests):
        total.update(f"{name}\0{digests[name]}\0".encode())
    return total.hexdigest()[:16]


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means that a disk, or a user's quota on it, is full."""
    codes = (errno.ENOSPC, errno.EDQUOT)
    # Polars, SQLite and `shutil.copytree` include the system's error in their own, as text.
    of_system = (form.format(code) for code in codes for form in ("(os error {})", "[Errno {}]"))
    texts = *of_system, "database or disk is full"
    return getattr(error, "errno", None) in codes or any(text in str(error) for text in texts)


def sync_path(path: Path) -> None:
    """Wait until the disk has a file's content, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _list_files(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in files if path.name != Files.MANIFEST)


def _sync(folder: Path) -> None:
    # In parallel, because a disk then writes many files together.
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        for _ in pool.map(sync_path, folder.rglob("*")):
            pass
    sync_path(folder)
