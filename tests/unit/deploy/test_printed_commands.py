"""Every command that a message names is one that make and the program accept as it is printed."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.main import get_command

from shortlist.cli.commands import app

ROOT = Path(__file__).parents[3]
FOLDERS = ("shortlist", "monitoring", "components", "models", "pipelines", "requirements/installer")
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = frozenset(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
OF_A_SPEC = frozenset(
    ("serve", "status", "deploy-canary", "canary-status", "promote", "rollback", "watch", "tune", "submit", "schedule")
)
"""Targets that act on the demo where the command does not name its spec."""
_USAGE_ERROR: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]
EXPORTED = frozenset(re.findall(r"^export ([A-Z]+)(?: ([A-Z]+))*$", MAKEFILE, re.MULTILINE)[0])
"""Variables that make hands on to every program."""
_MAKE = re.compile(r"(?<![\w-])make ([a-z][a-z-]*)((?: [A-Z_]+=(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+))*)")
_PROGRAM = re.compile(r"(?<![\w./-])(?:\.venv/bin/)?shortlist ([a-z][a-z-]+)((?: [^\s`;]+)*)")


class Printed(NamedTuple):
    """A command in a message."""

    location: str
    name: str
    """The target, or the program's command."""
    arguments: tuple[str, ...]


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that are no docstrings; a value that is put in stands as 1."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "1" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, re.sub(r"\{\w+\}", "1", node.value)


def commands_in(text: str, location: str = "") -> tuple[list[Printed], list[Printed]]:
    """Return the commands of make and of the program that a text names."""
    makes = [
        Printed(location, target, tuple(shlex.split(variables.rstrip(".,;:)"))))
        for target, variables in _MAKE.findall(text)
        if target in TARGETS or variables or target in program_commands()
    ]
    programs = [
        Printed(location, name, tuple(re.findall(r"'[^']*'|\"[^\"]*\"|\S+", arguments)))
        for name, arguments in _PROGRAM.findall(text)
        if name in program_commands() or "--" in arguments
    ]
    return makes, programs


@cache
def program_commands() -> dict[str, object]:
    return dict(get_command(app).commands)  # type: ignore[attr-defined]


@cache
def printed() -> tuple[list[Printed], list[Printed]]:
    """Return all commands in messages: make's, and the program's."""
    makes: list[Printed] = []
    programs: list[Printed] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, text in texts_of(path):
                makes_of_text, programs_of_text = commands_in(text, f"{path.relative_to(ROOT)}:{line}")
                makes += makes_of_text
                programs += programs_of_text
    return makes, programs


def parse_problem(name: str, arguments: tuple[str, ...]) -> str:
    """Return why the program refuses a command; empty when it accepts it. Words after its end are prose."""
    command = program_commands().get(name)
    if command is None:
        return f"no command '{name}'"
    problem = ""
    last_option = max((place for place, text in enumerate(arguments) if text.startswith("--")), default=-1)
    for end in range(len(arguments), last_option, -1):
        values = [argument.strip("'\"").rstrip(".,)") for argument in arguments[:end]]
        try:
            command.make_context(name, values)  # type: ignore[attr-defined]
        except _USAGE_ERROR as error:
            if type(error).__name__ == "MissingParameter":  # a text that another one completes
                return ""
            problem = problem or error.format_message()  # type: ignore[attr-defined]
        else:
            return ""
    return problem or parse_problem(name, ()) if last_option < 0 and arguments else problem


def expand(target: str, variables: tuple[str, ...], folder: Path) -> str:
    """Return the commands that make would run, with programs of a folder."""
    places = [f"{name}={folder}" for name in ("BIN", "VENV", "TRITON_VENV")]
    for name in (".ready", ".ready-run", ".ready-cluster", ".ready-catboost", ".ready-test"):
        (folder / name).touch()
    command = ["make", "--dry-run", target, *variables, *places, "UV=/bin/true"]
    dry_run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert dry_run.returncode == 0, dry_run.stderr
    return dry_run.stdout


def make_problem(target: str, variables: tuple[str, ...], folder: Path) -> str:
    """Return what is wrong with a command of make; empty when nothing is."""
    if target not in TARGETS:
        return f"no target '{target}'"
    if target in OF_A_SPEC and not any(variable.startswith("SPEC=") for variable in variables):
        return "it names no spec, and would act on the demo"
    recipe = expand(target, variables, folder)
    for variable in variables:
        if variable.partition("=")[0] in EXPORTED:
            continue
        name = variable.partition("=")[0]
        other_variables = tuple(other_variable for other_variable in variables if other_variable != variable)
        recipes = {expand(target, (*other_variables, *changed), folder) for changed in ((), (f"{name}=other",))}
        if recipes == {recipe}:
            return f"{name} changes nothing"
    for line in recipe.replace("\\\n", " ").splitlines():
        _, program, call = line.partition(f"{folder}/shortlist ")
        if program:
            name, *arguments = shlex.split(call.replace('"$SET"', "a.b=1"))
            if problem := parse_problem(name, tuple(arguments)):
                return problem
    return ""


def test_every_command_of_make_is_accepted_as_printed(tmp_path: Path) -> None:
    makes, _ = printed()
    assert len(makes) >= 40
    places: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for command in makes:
        places.setdefault((command.name, command.arguments), []).append(command.location)
    problems = {
        f"make {' '.join((target, *variables))}: {problem} ({', '.join(locations)})"
        for (target, variables), locations in places.items()
        if (problem := make_problem(target, variables, tmp_path))
    }
    assert problems == set()


def test_every_command_of_the_program_is_accepted_as_printed() -> None:
    _, programs = printed()
    assert len(programs) >= 5
    problems = {
        f"{command.location}: shortlist {' '.join((command.name, *command.arguments))}: {problem}"
        for command in programs
        if (problem := parse_problem(command.name, command.arguments))
    }
    assert problems == set()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("then make serve SPEC=demo", ""),
        ("then make promote", "it names no spec, and would act on the demo"),
        ("make tune SPEC=demo MODELS=xgboost.", "MODELS changes nothing"),
        ("make tuning SPEC=demo", "no target 'tuning'"),
        ("make run SPEC=demo FORCE=1", "FORCE changes nothing"),
        (".venv/bin/shortlist rollback demo --version 3 returns to it", ""),
        (".venv/bin/shortlist rollback demo --versoin 3", "No such option: --versoin"),
        ("`shortlist retire demo --reason x`", "no command 'retire'"),
        ("shortlist check demo.", ""),
    ],
)
def test_a_wrong_command_is_reported(tmp_path: Path, text: str, problem: str) -> None:
    makes, programs = commands_in(text)
    problems = [make_problem(command.name, command.arguments, tmp_path) for command in makes]
    problems += [parse_problem(command.name, command.arguments) for command in programs]
    assert len(problems) == 1
    assert problems[0].startswith(problem) and bool(problems[0]) == bool(problem)
