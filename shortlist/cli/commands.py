"""The command line: `shortlist check|schema|run|compile|ui|compare`, and the commands of serving and of monitoring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shortlist.cli.cluster import commands as cluster
from shortlist.cli.compare import commands as comparing
from shortlist.cli.compare_orderings import commands as ordering
from shortlist.cli.init import commands as initialising
from shortlist.cli.monitoring import commands as watching
from shortlist.cli.options import (
    ObjectsOption,
    ProfileOption,
    RunsOption,
    SetOption,
    SpecArgument,
    find_spec,
    spec_changes,
)
from shortlist.cli.plan import commands as planning
from shortlist.cli.serving import commands as serving
from shortlist.cli.text_vectors import commands as text_vectors
from shortlist.cli.tune import commands as tuning
from shortlist.contracts import ShortlistError

if TYPE_CHECKING:
    from shortlist.data.sample_check import SampleReport
    from shortlist.spec.data import Data

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train, validate, deploy and monitor ranking models that one YAML file declares.",
)


@app.command()
def check(
    spec: SpecArgument,
    data: Annotated[Path | None, typer.Option(help="File or folder with the log: check its first rows too.")] = None,
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the log to check.")] = 100_000,
    change: SetOption = None,
) -> None:
    """Validate a spec and list every problem; with --data, also the problems of the log's first rows."""
    from shortlist.features.declared.plan import plan
    from shortlist.ranking.registry import require_packages
    from shortlist.spec.load import load_spec

    path = find_spec(spec)
    loaded = load_spec(path, change or [])
    errors = []
    try:
        plan(loaded.data, loaded.features, loaded.gates)
        typer.echo(f"{path}: valid; {len(loaded.data.by_name)} columns, {len(loaded.features.names)} features")
    except ShortlistError as error:  # the log is checked all the same
        errors.append(f"{path}: {error}")
    try:
        require_packages({name: section.kind for name, section in loaded.models.items()})
    except ShortlistError as error:
        typer.echo(f"Not here: {error}")  # the spec may be valid, and trained elsewhere
    for notice in loaded.notices:
        typer.echo(notice)
    if data is not None:
        try:
            conditions = [slice_limits.where for slice_limits in loaded.gates.conditions]
            typer.echo(_check_log(loaded.data, data, rows, conditions))
        except ShortlistError as error:
            errors.append(str(error))
    if errors:
        raise ShortlistError("\n".join(errors))


def _check_log(declared: Data, location: Path, rows: int, conditions: Sequence[str]) -> str:
    """Return which rows of a log were checked, and how many of them do not match the spec, few enough to be left out.

    Raises:
        ShortlistError: More rows do not match; the message names every problem.
    """
    from shortlist.data.sample_check import check_sample
    from shortlist.spec.data import LogFiles

    if not isinstance(declared.source, LogFiles):
        raise ShortlistError("data.source: a generated log has no files to check; leave --data out")
    check = check_sample(declared, location, rows, conditions)
    for notice in check.notices:
        typer.echo(notice)
    if check.problems:
        numbered_problems = "".join(f"\n  {place}. {problem}" for place, problem in enumerate(check.problems, 1))
        raise ShortlistError(f"{location}: {len(check.problems)} problem(s){numbered_problems}")
    exceptions = f", but for {check.quarantined_rows:,} to be quarantined" if check.quarantined_rows else ""
    return f"{location}: {_checked_rows(check)} match the spec{exceptions}"


def _checked_rows(check: SampleReport) -> str:
    if check.is_complete:
        return f"all {check.rows:,} rows"
    days = f", and the days of all {check.facts.raw_rows:,} rows," if check.facts is not None else ""
    return f"the first rows of every file, {check.rows:,} in all{days}"


@app.command()
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a page with every key instead.")] = False,
) -> None:
    """Print the JSON Schema of a spec, for editors."""
    from shortlist.spec.reference_page import reference_page
    from shortlist.spec.spec import Spec

    if markdown:
        typer.echo(reference_page(), nl=False)
        return
    typer.echo(json.dumps(Spec.model_json_schema(), indent=2))


@app.command(name="run")
def run_(
    spec: SpecArgument,
    data: Annotated[Path | None, typer.Option(help="File or folder that holds the log and its side tables.")] = None,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
    profile: ProfileOption = "",
    objects: ObjectsOption = "",
    with_rollout: Annotated[
        bool, typer.Option("--rollout/--no-rollout", help="Roll a blessed version out where the spec is served.")
    ] = True,
) -> None:
    """Run a spec's whole pipeline on this machine; where the spec is served, roll its blessed version out."""
    from shortlist.ranking.registry import require_packages
    from shortlist.runs.local_training import run_locally
    from shortlist.runs.runs_folder import RunsFolder
    from shortlist.spec.load import load_spec

    path = find_spec(spec, runs)
    declared = load_spec(path, spec_changes(profile, objects, change))
    for notice in declared.notices:
        typer.echo(notice)
    require_packages({name: section.kind for name, section in declared.models.items()})
    RunsFolder.open(runs).remember_spec(declared.name, path)
    raise typer.Exit(run_locally(declared, data, runs, spec_argument=spec, with_rollout=with_rollout))


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
            f"out of date: {', '.join(path.name for path in stale)}. Next: .venv/bin/shortlist compile, then commit."
        )


@app.command()
def ui(runs: RunsOption = Path("runs"), port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 5000) -> None:
    """Open MLflow on the runs made here."""
    from shortlist.runs.ui import serve

    serve(runs, port)


app.registered_commands += cluster.registered_commands
app.registered_commands += (
    comparing.registered_commands
    + initialising.registered_commands
    + ordering.registered_commands
    + planning.registered_commands
    + serving.registered_commands
    + text_vectors.registered_commands
    + tuning.registered_commands
    + watching.registered_commands
)


def run() -> None:
    """Run the command that the arguments name."""
    app()
