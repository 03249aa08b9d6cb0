"""The drill and the loop from the command line, with the errors of `shortlist`: `make drill`, `make loop`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shortlist.cli import main
from shortlist.cli.commands import app
from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec


@app.command()
def drill(spec: SpecArgument = "drill", runs: RunsOption = Path("runs/drill")) -> None:
    """Inject faults and drift into generated traffic, and check that monitoring and retraining recover.

    The exit code is 0 only when every check passes.
    """
    from shortlist.spec.load import load_spec
    from tests.simulation.drill.drill import run_drill

    raise typer.Exit(0 if run_drill(load_spec(find_spec(spec, runs)), runs).passed else 1)


@app.command()
def loop(
    spec: SpecArgument = "loop",
    slates_per_day: Annotated[int, typer.Option(min=10, help="Expected slates of a day.")] = 5_000,
    change: SetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Show a release to the users of a generated world day by day, train on what they click, and compare the reward."""
    from shortlist.spec.load import load_spec
    from tests.simulation.loop.loop import run_loop

    run_loop(load_spec(find_spec(spec), change or ()), runs, slates_per_day)


if __name__ == "__main__":
    main()
