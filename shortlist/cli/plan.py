"""The command of capacity planning: `shortlist plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec
from shortlist.contracts import ShortlistError

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@commands.command()
def plan(
    spec: SpecArgument,
    gpu: Annotated[
        list[str] | None, typer.Option(help="H200, H100, A100-80, L4 or cpu; may be given several times.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Training rows of an epoch, to say how long it takes.")
    ] = None,
    cardinalities: Annotated[
        Path | None, typer.Option(help="JSON: column -> distinct values; by default <spec>.cardinalities.json.")
    ] = None,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
) -> None:
    """Print what training the networks of a spec costs: tables, bytes, operations, memory, speed, and devices."""
    from shortlist.cli.plan_view import fitted_sizes, print_plan, read_cardinalities
    from shortlist.planning.accelerators import find_accelerator
    from shortlist.ranking.registry import kind_of
    from shortlist.spec.load import load_spec

    devices = [find_accelerator(name) for name in gpu or ["H200"]]
    path = find_spec(spec, runs)
    loaded = load_spec(path, change or ())
    sizes = read_cardinalities(path, cardinalities), fitted_sizes(runs, loaded.features.names)
    shapes = {
        name: kind_of(model.kind).load("plan")(loaded, name, *sizes)
        for name, model in loaded.models.items() if kind_of(model.kind).plan
    }  # fmt: skip
    if not shapes:
        raise ShortlistError(f"{path}: declares no model with embedding tables")
    for name, shape in shapes.items():
        title = loaded.name if len(shapes) == 1 else f"{loaded.name}, {name}"
        print_plan(title, shape, devices, rows)
