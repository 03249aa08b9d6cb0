"""Every make target that documents name exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FOLDERS = ("components", "models", "monitoring", "pipelines", "shortlist", "deploy", "docs")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml")]
FILES += ROOT.glob("*.md")


def named(text: str) -> set[str]:
    """Return the targets that a text names as commands: in backticks, or where a line of a block begins."""
    matches = re.findall(r"(?:`|^\s*\$? ?)make ([a-z][a-z-]+)(?=[`\s;,.]|$)", text, re.MULTILINE)
    return {name for name in matches if name not in ("sure", "it", "the", "a", "an", "them", "room", "one")}


@pytest.mark.parametrize("text", ["run `make setup` once", "  make serve SPEC=demo", "`make bench NAME=serve`"])
def test_a_command_is_recognised(text: str) -> None:
    assert named(text) <= TARGETS
    assert named(text)


def test_every_target_that_is_named_exists() -> None:
    wrong = {
        f"{path.relative_to(ROOT)}: make {name}"
        for path in FILES
        for name in named(path.read_text(errors="replace")) - TARGETS
    }
    assert wrong == set()


LINTERS = ("ruff", "lint-imports", "shortlist")
WRITTEN = {"ruff, check", "ruff, format", "lint-imports, --no-cache", "shortlist, compile"}


def run_target(target: str, failing: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Return how a target ended whose programs are stand-ins, one of which fails, and what was called."""
    for name in ("pytest", "mypy", "python", *LINTERS):
        program = folder / name
        program.write_text(f"#!/bin/sh\necho {name}, $1 >> {folder}/ran\nexit {int(name == failing)}\n")
        program.chmod(0o755)
    for name in (".ready", ".ready-run", ".ready-cluster", ".ready-catboost", ".ready-test", "uv"):
        (folder / name).touch()
    folders = [f"{name}={folder}" for name in ("BIN", "VENV", "TRITON_VENV")]
    command = ["make", target, *folders, f"UV={folder / 'uv'}"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    return completed, {*(folder / "ran").read_text().splitlines()}


@pytest.mark.parametrize("failing", ["", "pytest", *LINTERS])
def test_make_test_runs_tests_and_linters_and_fails_when_a_part_fails(tmp_path: Path, failing: str) -> None:
    completed, ran = run_target("test", failing, tmp_path)
    assert (completed.returncode == 0) == (failing == ""), completed.stdout + completed.stderr
    assert "pytest, -m" in ran  # also beside a linter that fails
    if not failing:
        assert ran >= WRITTEN


@pytest.mark.parametrize("failing", ["", "mypy", *LINTERS])
def test_make_check_runs_linters_and_types_and_fails_when_a_part_fails(tmp_path: Path, failing: str) -> None:
    completed, ran = run_target("check", failing, tmp_path)
    assert (completed.returncode == 0) == (failing == ""), completed.stdout + completed.stderr
    if not failing:
        assert ran == {*WRITTEN, "mypy,", "python, -m"}
