"""Programs that pass paths through a shell get paths that are one word."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shortlist.serving.processes.errors import StackError
from shortlist.serving.triton import shell_safe_path as module
from shortlist.serving.triton.shell_safe_path import shell_safe_path


@pytest.mark.parametrize("name", ["my runs", "it's", 'a "b"', "$HOME", "a;b", "jeux d'été"])
def test_a_shell_finds_the_folder_of_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "model").touch()
    path = shell_safe_path(folder)
    listed = subprocess.run(f"ls {path}", shell=True, capture_output=True, text=True, check=True)  # noqa: S602
    assert listed.stdout == "model\n"
    assert shell_safe_path(folder) == path  # made once


def test_a_plain_path_stays_unchanged(tmp_path: Path) -> None:
    assert shell_safe_path(tmp_path) == tmp_path


def test_a_link_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell_safe_path(tmp_path / "my runs")
    monkeypatch.setattr(module.os, "getuid", lambda: 4_711)
    with pytest.raises(StackError, match="another user's; remove it"):
        shell_safe_path(tmp_path / "my runs")
