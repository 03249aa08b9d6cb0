"""Folders are written whole or not at all, and a changed file is found."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shortlist.storage.artefacts import (
    IntegrityError,
    atomic_folder,
    folder_digest,
    read_json,
    verify_manifest,
    write_json,
    write_manifest,
)


def test_a_folder_appears_only_when_the_block_ends_well(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(RuntimeError), atomic_folder(folder) as staging:
        (staging / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(folder) as staging:
        (staging / "whole").write_text("x")
        assert not folder.exists()
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_a_failed_rewrite_leaves_the_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with atomic_folder(folder) as staging:
        (staging / "a").write_text("old")
    with pytest.raises(OSError, match="full"), atomic_folder(folder) as staging:
        (staging / "a").write_text("new")
        raise OSError("full")
    assert (folder / "a").read_text() == "old"


def test_a_killed_writer_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys\n"
        "from shortlist.storage.artefacts import atomic_folder\n"
        "with atomic_folder(pathlib.Path(sys.argv[1])) as staging:\n"
        "    (staging / 'half').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    folder = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not folder.exists()
    with atomic_folder(folder) as staging:  # and it can be run again
        (staging / "whole").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_json_with_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"auc": float("nan")})
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.parametrize(("text", "message"), [("[1]", "wanted a JSON object, got list"), ("{", "not valid JSON")])
def test_a_file_that_is_not_a_json_object_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(IntegrityError, match=message):
        read_json(tmp_path / "a.json")


def test_a_missing_json_file_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="Run again"):
        read_json(tmp_path / "a.json")


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "below").mkdir(parents=True)
    (folder / "weights").write_bytes(b"123")
    (folder / "below" / "words").write_bytes(b"456")
    write_manifest(folder)
    return folder


def test_an_untouched_folder_verifies(sealed: Path) -> None:
    assert sorted(verify_manifest(sealed)) == ["below/words", "weights"]


def test_a_changed_file_is_reported(sealed: Path) -> None:
    (sealed / "below" / "words").write_bytes(b"457")
    with pytest.raises(IntegrityError, match="words: changed after it was written"):
        verify_manifest(sealed)


def test_a_missing_file_is_reported(sealed: Path) -> None:
    (sealed / "weights").unlink()
    with pytest.raises(IntegrityError, match="weights: in the manifest but missing"):
        verify_manifest(sealed)


def test_an_added_file_is_reported(sealed: Path) -> None:
    (sealed / "model.pkl").write_bytes(b"\x80")
    with pytest.raises(IntegrityError, match=r"model\.pkl: not in the manifest"):
        verify_manifest(sealed)


def test_a_folder_digest_changes_with_content_and_with_names(sealed: Path) -> None:
    digest_before = folder_digest(sealed)
    (sealed / "weights").rename(sealed / "heights")
    renamed = folder_digest(sealed)
    (sealed / "heights").write_bytes(b"124")
    assert len({digest_before, renamed, folder_digest(sealed)}) == 3
