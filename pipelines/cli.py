"""The command line: `shortlist check|schema|run|promote|compile|ui`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from shortlist.contracts import ShortlistError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The whole production life of a ranking model, declared in one YAML file.",
)

SPECS = Path(__file__).parent / "specs"
SpecArgument = Annotated[
    str, typer.Argument(help="Name of a shipped spec (demo, kuairand, criteo) or path of a YAML file.")
]
RunsOption = Annotated[Path, typer.Option(help="Folder for runs, models and stores.")]


def find_spec(name: str) -> Path:
    """Return the path of a spec given by name or by path."""
    return Path(name) if name.endswith((".yaml", ".yml")) or "/" in name else SPECS / f"{name}.yaml"


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
) -> None:
    """Run a spec's whole pipeline on this machine."""
    from pipelines.submit import run_here
    from shortlist.config.load import load_spec

    raise typer.Exit(run_here(load_spec(find_spec(spec)), data, runs))


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
def promote(spec: SpecArgument, runs: RunsOption = Path("runs")) -> None:
    """Make the newest blessed candidate of a spec the champion, with which the next ones are compared."""
    from models.registry import promote as make_champion
    from models.training import Origin
    from pipelines.state import existing
    from shortlist.config.load import load_spec

    name = load_spec(find_spec(spec)).name
    version = make_champion(Origin(name=name, stores=str(existing(runs).stores)))
    typer.echo(f"{name}: version {version} is the champion")


@app.command()
def ui(runs: RunsOption = Path("runs"), port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 5000) -> None:
    """Open MLflow on the runs made here."""
    from pipelines.ui import serve

    serve(runs, port)


def main() -> None:
    """Run the command line; a user's mistake is one message and exit code 2."""
    try:
        app()
    except ShortlistError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
