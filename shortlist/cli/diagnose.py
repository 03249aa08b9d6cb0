"""The command that finds a training's bottleneck: `shortlist diagnose`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec
from shortlist.contracts import Files, ShortlistError, did_you_mean
from shortlist.ranking.registry import kind_of, known_kinds

if TYPE_CHECKING:
    from shortlist.spec.spec import Spec
    from shortlist.storage.tables import DayTable

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@commands.command()
def diagnose(
    spec: SpecArgument,
    steps: Annotated[int, typer.Option(min=3, help="Training steps per test.")] = 30,
    model: Annotated[str | None, typer.Option(help="Name of the model; the first that can be diagnosed.")] = None,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
) -> None:
    """Measure what limits the training speed of a spec's model, such as loader or network; print what to change."""
    from shortlist.spec.load import load_spec

    loaded = load_spec(find_spec(spec, runs), change or ())
    name, function = choose_diagnosis(loaded, model)
    table = newest_table(runs, loaded.features.names, spec)
    for line in function(table, loaded.models[name], loaded.runtime, steps).lines:
        typer.echo(line)


def choose_diagnosis(spec: Spec, name: str | None) -> tuple[str, Any]:
    """Return the name of the model to diagnose, and the diagnosing function of its kind.

    Args:
        spec: The spec.
        name: Name of a model; None: the first that can be diagnosed.

    Raises:
        ShortlistError: There is no such model, or its kind has no diagnosis.
    """
    if name is not None and name not in spec.models:
        raise ShortlistError(f"--model: no model is called '{name}'{did_you_mean(name, spec.models)}")
    able = [
        model for model, section in spec.models.items() if name in (None, model) and kind_of(section.kind).diagnosis
    ]  # fmt: skip
    if not able:
        kinds = ", ".join(kind for kind in known_kinds() if kind_of(kind).diagnosis)
        subject = f"models.{name} cannot" if name else "no declared model can"
        raise ShortlistError(f"spec '{spec.name}': {subject} be diagnosed; there is a diagnosis for kind {kinds}")
    return able[0], kind_of(spec.models[able[0]].kind).load("diagnosis")


def newest_table(runs: Path, names: tuple[str, ...], spec: str) -> DayTable:
    """Return the newest feature table below the folder of runs with exactly these features.

    Raises:
        ShortlistError: There is none.
    """
    from shortlist.ranking.inputs import features_of
    from shortlist.storage.tables import DayTable

    for path in sorted((runs / "cache").rglob(Files.TABLE), key=lambda path: path.stat().st_mtime, reverse=True):
        table = DayTable.open(path.parent, Files.TABLE)
        if tuple(feature.name for feature in features_of(table)) == tuple(names):
            return table
    raise ShortlistError(
        f"{runs}: no run of '{spec}' wrote a feature table here with the features that it declares now."
        f" Run it first: make run SPEC={spec} RUNS={shlex.quote(str(runs))}"
    )
