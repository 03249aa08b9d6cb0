"""The set-up looks where pip is told to look."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from installer.command_line import read_pip_settings


def test_variables_come_before_files_and_lists_have_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://a.example\ncert = /a.pem\nfind-links =\n  /wheels\n  /more\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_INDEX_URL", "https://b.example")
    settings = read_pip_settings(sys.executable)
    assert (settings["index-url"], settings["cert"]) == ("https://b.example", "/a.pem")
    assert settings["find-links"] == "/wheels /more"
