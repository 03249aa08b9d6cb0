"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SPECS = Path(__file__).parent / "specs"
SpecArgument = Annotated[
    str, typer.Argument(help="Name of a shipped spec (demo, kuairand, criteo) or path of a YAML file.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Use this value instead of the spec's: key.of.section=value.")
]
RunsOption = Annotated[Path, typer.Option(help="Folder for runs, models and stores.")]


def find_spec(name: str) -> Path:
    """Return the path of a spec given by name or by path."""
    return Path(name) if name.endswith((".yaml", ".yml")) or "/" in name else SPECS / f"{name}.yaml"
