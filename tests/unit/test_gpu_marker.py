"""Every test that needs a GPU lies in tests/gpu with the marker by which CI leaves it out; no other test needs one."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
GPU = TESTS / "gpu"
NEEDS_ONE = re.compile(r"mark\.gpu\b|skipif\(not torch\.cuda|not torch\.cuda\.is_available\(\)")
"""What a test says that cannot run without a GPU."""


def problems(text: str, *, in_gpu: bool) -> Iterator[str]:
    """Give what is wrong with a file of tests."""
    if not in_gpu and not re.search("gpu|cuda", text):
        return  # of most files this says it in a hundredth of the time
    tree = ast.parse(text)
    marked = any(
        isinstance(one, ast.Assign) and ast.unparse(one) == "pytestmark = pytest.mark.gpu" for one in tree.body
    )
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
            own = "pytest.mark.gpu" in map(ast.unparse, one.decorator_list)
            if in_gpu and not (own or marked):
                yield f"{one.name} carries no @pytest.mark.gpu"
            elif not in_gpu and (own or NEEDS_ONE.search(ast.unparse(one))):
                yield f"{one.name} needs a GPU and lies outside tests/gpu"


@pytest.mark.parametrize("in_gpu", [True, False])
def test_every_test_that_needs_a_gpu_lies_where_it_is_left_out_by_name(in_gpu: bool) -> None:
    files = [path for path in TESTS.rglob("test_*.py") if path.is_relative_to(GPU) == in_gpu and path != Path(__file__)]
    found = [f"{path.name}: {problem}" for path in files for problem in problems(path.read_text(), in_gpu=in_gpu)]
    assert files
    assert found == []


@pytest.mark.parametrize(
    ("text", "in_gpu", "said"),
    [
        ("def test_a(): pass", True, ["test_a carries no @pytest.mark.gpu"]),
        ("@pytest.mark.gpu\ndef test_a(): pass", True, []),
        ("pytestmark = pytest.mark.gpu\ndef test_a(): pass", True, []),
        ("@pytest.mark.gpu\ndef test_a(): pass", False, ["test_a needs a GPU and lies outside tests/gpu"]),
        (
            "def test_a():\n    if not torch.cuda.is_available(): pytest.skip('')",
            False,
            ["test_a needs a GPU and lies outside tests/gpu"],
        ),
        ("def test_a():\n    if torch.cuda.is_available(): pytest.skip('there is a GPU')", False, []),
    ],
)
def test_the_rule_reports_violations(text: str, in_gpu: bool, said: list[str]) -> None:
    assert list(problems(text, in_gpu=in_gpu)) == said


def test_ci_leaves_them_out_by_name() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    assert '\t@$(call run_tests,-m "not gpu and not long and not browser",4)\n' in makefile
    assert "\t@$(BIN)/pytest -m gpu -rs\n" in makefile


def test_ci_runs_the_long_tests() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    assert '\t@$(call run_tests,-m "long and not gpu",2)\n' in makefile
    assert "\nrun_tests = $(BIN)/pytest $(1) -n $(WORKERS) --maxprocesses $(2) --durations 25 \\\n" in makefile


@pytest.mark.parametrize("failing", ["nothing", "check", "test", "test-long", "fresh_machine.sh", "images.sh"])
def test_ci_runs_both_parts_and_fails_where_any_step_fails(tmp_path: Path, failing: str) -> None:
    (tmp_path / ".ci").mkdir()
    run = shutil.copy(TESTS.parent / ".ci/run", tmp_path / ".ci/run")
    program_text = """#!/bin/sh
echo "$(basename "$0") $1" >> "$PWD/steps"
[ "$1" != "$FAILING" ] && [ "${0##*/}" != "$FAILING" ]
"""
    for program in ("make", ".ci/fresh_machine.sh", ".ci/images.sh"):
        (tmp_path / program).write_text(program_text)
        (tmp_path / program).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FAILING": failing}
    completed = subprocess.run([run], env=environment, capture_output=True, text=True, check=False)
    assert (completed.returncode == 0) == (failing == "nothing"), completed.stderr
    steps = (tmp_path / "steps").read_text().splitlines()
    tests = {"nothing": ["make test", "make test-long"], "test-long": ["make test", "make test-long"]}
    tests |= {"test": ["make test"]}
    assert [step for step in steps if step.startswith("make ")] == ["make setup", "make check", *tests.get(failing, [])]
    assert {"fresh_machine.sh ", "images.sh "} <= set(steps)
