"""The command that finds a training's bottleneck: `shortlist diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli_options import RunsOption, SetOption, SpecArgument, find_spec
from shortlist.contracts import Files, ShortlistError

if TYPE_CHECKING:
    from models.diagnosis import Diagnosis
    from shortlist.tables import DayTable

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@commands.command()
def diagnose(
    spec: SpecArgument,
    steps: Annotated[int, typer.Option(min=3, help="Training steps per test.")] = 30,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
) -> None:
    """Say what bounds the training of a spec's DLRM: loader, embeddings or network, and what to change first."""
    from shortlist.config.load import load_spec

    loaded = load_spec(find_spec(spec), change or ())
    if loaded.models.dlrm is None:
        raise ShortlistError(f"{find_spec(spec)}: declares no models.dlrm; diagnose looks at its training alone")
    table = newest_table(runs, loaded.features.names, spec)
    from models.diagnosis import diagnose_table

    for line in told(diagnose_table(table, loaded.models.dlrm, loaded.runtime, steps)):
        typer.echo(line)


def newest_table(runs: Path, names: tuple[str, ...], spec: str) -> DayTable:
    """Return the newest feature table below the folder of runs that has just these features.

    Raises:
        ShortlistError: There is none.
    """
    from models.inputs import features_of
    from shortlist.tables import DayTable

    for path in sorted((runs / "cache").rglob(Files.TABLE), key=lambda path: path.stat().st_mtime, reverse=True):
        table = DayTable.open(path.parent, Files.TABLE)
        if tuple(one.name for one in features_of(table)) == tuple(names):
            return table
    raise ShortlistError(
        f"{runs}: no run of '{spec}' left a feature table here with the features it declares now."
        f" Run it first: make run SPEC={spec} RUNS={runs}"
    )


def told(found: Diagnosis) -> list[str]:
    """Return the lines that the user gets."""
    return [
        f"step                       {found.step_ms:8.1f} ms",
        f"waiting for the loader     {found.wait_ms:8.1f} ms  ({found.loader_share:.0%} of the time)",
        f"same rows again            {found.constant_ms:8.1f} ms",
        f"embeddings only            {found.embeddings_ms:8.1f} ms",
        f"network only               {found.network_ms:8.1f} ms",
        found.advice,
    ]
