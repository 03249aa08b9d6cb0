"""The commands of monitoring: `shortlist watch|alerts|collect|refresh|backfill|drill|loop`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec, require_cluster_packages
from shortlist.contracts import ShortlistError

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@commands.command()
def watch(
    spec: SpecArgument,
    data: Annotated[Path | None, typer.Option(help="The log, for a training that the monitoring run starts.")] = None,
    interval: Annotated[str | None, typer.Option("--every", help="Run periodically: every 30s, 15m, 1h, 1d.")] = None,
    metrics_port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1 for Prometheus, with --every; 0 for any free one.")
    ] = 9_109,
    runs: RunsOption = Path("runs"),
) -> None:
    """Monitor live traffic: evaluate new windows, alert, train again where that is decided; exit code 1 for a page."""
    from shortlist.runs.monitoring_runs import run_monitoring_locally, run_monitoring_periodically
    from shortlist.spec.load import load_spec

    loaded = load_spec(find_spec(spec, runs))
    if interval is None:
        raise typer.Exit(run_monitoring_locally(loaded, data, runs))
    run_monitoring_periodically(loaded, data, runs, parse_seconds(interval), metrics_port)


@commands.command()
def alerts(
    spec: SpecArgument,
    test: Annotated[bool, typer.Option("--test", help="Send a test alert to every declared destination.")] = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Show the newest alerts and which wait for a destination; with --test, exit code 1 when one does not accept."""
    from monitoring.alerts.alert_records import AlertRecords
    from monitoring.alerts.alerts import send_test_alert
    from monitoring.alerts.destinations import open_destinations
    from monitoring.store.monitoring_store import open_monitoring_store
    from shortlist.runs.runs_folder import open_runs_folder
    from shortlist.spec.load import load_spec

    loaded = load_spec(find_spec(spec, runs))
    destinations = open_destinations(loaded.monitoring.alerts)
    if not destinations:
        raise ShortlistError(
            "monitoring.alerts.urls: no destination is declared; add an address, such as https://host/path or"
            " mailtos://user:${SMTP_PASSWORD}@example.org?to=team@example.org"
        )
    if test:
        answers = send_test_alert(loaded.name, destinations, datetime.now(UTC))
        typer.echo(
            "\n".join(f"accepted  {name}" if not said else f"refused   {said}" for name, said in answers.items())
        )
        raise typer.Exit(1 if any(answers.values()) else 0)
    stores = open_runs_folder(runs, loaded.runtime).storage_parameter(loaded.runtime)
    for record in AlertRecords(open_monitoring_store(stores, loaded.name).records).read().values():
        typer.echo(record.alert.line)
        for url_digest, problem in record.waiting.items():
            typer.echo(
                f"  waiting  {problem or destinations.get(url_digest, 'for a destination of another declaration')}"
            )


@commands.command()
def collect(
    spec: SpecArgument,
    withdraw: Annotated[
        int | None, typer.Option(metavar="BATCH", help="Withdraw a batch: later runs are as if it had not been.")
    ] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Add served rows to the log with their outcomes, once these are due; exit code 1 when a part cannot be read."""
    from shortlist.runs.monitoring_runs import collect_locally, withdraw_locally
    from shortlist.spec.load import load_spec

    loaded = load_spec(find_spec(spec, runs))
    if withdraw is not None:
        typer.echo("\n".join(withdraw_locally(loaded, runs, withdraw)))
        return
    collected = collect_locally(loaded, runs)
    typer.echo("\n".join(collected.lines))
    raise typer.Exit(1 if collected.problems else 0)


@commands.command()
def refresh(
    spec: SpecArgument,
    data: Annotated[Path | None, typer.Option(help="The log, grown since the last training or refresh.")] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Count new days of the log and serve them: newer features and candidates of the champion, without a training."""
    from shortlist.runs.refresh_runs import run_refresh_locally
    from shortlist.spec.load import load_spec

    raise typer.Exit(run_refresh_locally(load_spec(find_spec(spec, runs)), data, runs))


@commands.command()
def backfill(
    spec: SpecArgument,
    first: Annotated[str, typer.Argument(metavar="FROM", help="First corrected day, such as 2026-03-02.")],
    last: Annotated[str, typer.Argument(metavar="TO", help="Last corrected day.")],
    data: Annotated[str, typer.Option(help="The corrected log; with --host s3://... or gs://...")] = "",
    publish: Annotated[
        bool, typer.Option("--publish", help="Serve the result; otherwise only print what changes.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="Run it on the cluster of this Kubeflow Pipelines API: http(s)://host.")
    ] = "",
    change: SetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Recount corrected days of the log, and print what changes for servers; with --publish, serve the result."""
    from shortlist.features.fits.backfill import parse_range
    from shortlist.spec.load import load_spec

    loaded, corrected = load_spec(find_spec(spec, runs), change or ()), parse_range(first, last)
    if host:
        require_cluster_packages()
        from shortlist.kubeflow.client import KubeflowClient
        from shortlist.kubeflow.training_runs import prepare_backfill, submit_run

        submission = prepare_backfill(loaded, data, runs / "compiled", corrected, publish=publish)
        typer.echo(submit_run(submission, loaded, KubeflowClient(host, loaded.runtime.cluster.namespace)))
        return
    from shortlist.runs.refresh_runs import run_backfill_locally

    location = Path(data) if data else None
    raise typer.Exit(run_backfill_locally(loaded, location, runs, corrected, publish=publish))


@commands.command()
def drill(
    spec: SpecArgument = "drill",
    runs: RunsOption = Path("runs/drill"),
) -> None:
    """Inject faults and drift into generated traffic, and check that monitoring and retraining recover.

    The exit code is 0 only when every check passes.
    """
    from shortlist.drill.drill import run_drill
    from shortlist.spec.load import load_spec

    raise typer.Exit(0 if run_drill(load_spec(find_spec(spec, runs)), runs).passed else 1)


@commands.command()
def loop(
    spec: SpecArgument = "loop",
    slates_per_day: Annotated[int, typer.Option(min=10, help="Expected slates of a day.")] = 5_000,
    change: SetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Show a release to the users of a generated world day by day, train on what they click, and compare the reward."""
    from shortlist.loop.loop import run_loop
    from shortlist.spec.load import load_spec

    run_loop(load_spec(find_spec(spec), change or ()), runs, slates_per_day)


def parse_seconds(text: str) -> int:
    """Return the seconds of a duration such as 15m.

    Raises:
        ShortlistError: The text is no duration.

    >>> parse_seconds("15m")
    900
    """
    match = re.fullmatch(r"([1-9][0-9]*)([smhd])", text)
    if match is None:
        raise ShortlistError(f"--every: got '{text}'; wanted a number and a unit, such as 30s, 15m, 1h or 1d")
    return int(match[1]) * _UNITS[match[2]]
