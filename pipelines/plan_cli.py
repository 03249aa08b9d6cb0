"""The command of capacity planning: `shortlist plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli_options import RunsOption, SetOption, SpecArgument, find_spec

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
    torchrec: Annotated[bool, typer.Option("--torchrec", help="Also ask TorchRec's planner where tables go.")] = False,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
) -> None:
    """Say what a spec's DLRM costs: tables, bytes, operations, memory, speed at most, and the devices it needs."""
    from models.accelerators import accelerator
    from models.plan_inputs import shape_of
    from pipelines.plan_sizes import fitted_sizes, given_cardinalities
    from pipelines.plan_view import show
    from shortlist.config.load import load_spec

    devices = [accelerator(name) for name in gpu or ["H200"]]
    path = find_spec(spec)
    loaded = load_spec(path, change or ())
    shape = shape_of(loaded, given_cardinalities(path, cardinalities), fitted_sizes(runs, loaded.features.names))
    show(loaded.name, shape, devices, rows, torchrec=torchrec)
