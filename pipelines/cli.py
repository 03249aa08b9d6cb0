"""The command line: `shortlist check|schema|run|compile|ui`, and the commands of serving and of monitoring."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli_options import (
    ObjectsOption,
    ProfileOption,
    RunsOption,
    SetOption,
    SpecArgument,
    changes_of,
    find_spec,
)
from pipelines.cluster_cli import commands as cluster
from pipelines.diagnose_cli import commands as diagnosing
from pipelines.plan_cli import commands as planning
from pipelines.serving_cli import commands as serving
from pipelines.watching_cli import commands as watching
from shortlist.contracts import ShortlistError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The whole production life of a ranking model, declared in one YAML file.",
)


@app.command()
def check(spec: SpecArgument) -> None:
    """Say whether a spec is valid, and what is wrong with it."""
    from shortlist.config.load import load_spec

    loaded = load_spec(find_spec(spec))
    typer.echo(f"{find_spec(spec)}: valid; {len(loaded.data.by_name)} columns, {len(loaded.features.names)} features")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from shortlist.config.spec import Spec

    typer.echo(json.dumps(Spec.model_json_schema(), indent=2))


@app.command()
def run(
    spec: SpecArgument,
    data: Annotated[Path | None, typer.Option(help="File or folder that holds the log and its side tables.")] = None,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
    profile: ProfileOption = "",
    objects: ObjectsOption = "",
) -> None:
    """Run a spec's whole pipeline on this machine."""
    from pipelines.submit import run_here
    from shortlist.config.load import load_spec

    raise typer.Exit(run_here(load_spec(find_spec(spec), changes_of(profile, objects, change)), data, runs))


@app.command(name="compile")
def compile_(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail when a file is out of date.")] = False,
) -> None:
    """Write the compiled pipelines that a cluster gets."""
    from pipelines.compile import compile_all, out_of_date

    if not check:
        for path in compile_all():
            typer.echo(path)
    elif stale := out_of_date():
        raise ShortlistError(
            f"out of date: {', '.join(path.name for path in stale)}. Run make compile and commit the result."
        )


@app.command()
def ui(runs: RunsOption = Path("runs"), port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 5000) -> None:
    """Open MLflow on the runs made here."""
    from pipelines.ui import serve

    serve(runs, port)


app.registered_commands += cluster.registered_commands
app.registered_commands += (
    diagnosing.registered_commands
    + planning.registered_commands
    + serving.registered_commands
    + watching.registered_commands
)


def main() -> None:
    """Run the command line; a user's mistake is one message and exit code 2."""
    try:
        app()
    except ShortlistError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
