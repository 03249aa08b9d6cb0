"""The commands of serving: `shortlist serve|status|why|stop|deploy-canary|canary-status|promote|rollback|replay`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shortlist.cli.options import RunsOption, SpecArgument, find_spec
from shortlist.contracts import ShortlistError

if TYPE_CHECKING:
    from shortlist.deployment.deployer import Deployer
    from shortlist.deployment.local_deployer import LocalDeployer
    from shortlist.rollout.record import RolloutRecord
    from shortlist.spec.spec import Spec
    from shortlist.tracking.run_context import RunContext

TargetOption = Annotated[
    str | None,
    typer.Option("--target", help="stack (this machine), cluster (KServe) or another fleet; the spec's by default."),
]

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@commands.command()
def serve(
    spec: SpecArgument,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes the last one, or any free one.")] = 0,
    runs: RunsOption = Path("runs"),
) -> None:
    """Serve a spec's champion on this machine, its first blessed version or the one that was promoted last."""
    from shortlist.rollout.terminal import show_progress

    deployer = _deployer(spec, runs)
    with show_progress() as on_change:
        stack, rollout = deployer.serve(port, on_change)
    _write_runs_page(spec, runs)
    if rollout is not None:
        _print_verdict(deployer, rollout)
    _print_status(deployer)
    raise typer.Exit(0 if stack.record.route is not None else 1)


@commands.command()
def status(spec: SpecArgument, runs: RunsOption = Path("runs")) -> None:
    """Show what is served, to whom, and all problems; exit code 1 when there is one."""
    raise typer.Exit(_print_status(_deployer(spec, runs)))


@commands.command(name="why")
def explain_answer(
    spec: SpecArgument,
    request_id: Annotated[str, typer.Argument(help="The answer's id: x-request-id, or the protocol's own.")],
    runs: RunsOption = Path("runs"),
) -> None:
    """Explain a logged answer: what users saw and did with it, of a slate its stages; exit code 1 where they differ."""
    from shortlist.deployment.slate_explanation import ReplayDiffersError, explain

    deployer = _deployer(spec, runs)
    try:
        for line in explain(deployer.paths, request_id, deployer.context.feast):
            typer.echo(line)
    except ReplayDiffersError as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None


@commands.command()
def stop(
    spec: Annotated[str | None, typer.Argument(help="Name or path of a spec; all served specs by default.")] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Stop serving; `serve` brings the same versions back."""
    from shortlist.rollout.local.lifecycle import stop_stack
    from shortlist.serving.paths import ServingPaths
    from shortlist.spec.load import load_spec

    served = [path.name for path in sorted((runs / "serving").glob("*")) if path.is_dir()]
    for name in served if spec is None else [load_spec(find_spec(spec, runs)).name]:
        paths = ServingPaths.for_spec(runs, name)
        stopped = stop_stack(paths) if paths.root.is_dir() else []
        typer.echo(f"{name}: stopped {', '.join(stopped)}" if stopped else f"{name}: nothing was running")


@commands.command(name="deploy-canary")
def deploy_canary(
    spec: SpecArgument,
    version: Annotated[int | None, typer.Option(help="Registered version; the newest blessed one by default.")] = None,
    target: TargetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Roll a blessed version out step by step; exit code 0 only when it was promoted."""
    from shortlist.rollout.terminal import show_progress

    _run_where_fleet_is_reached(
        spec, target, "deploy-canary", *([] if version is None else ["--version", str(version)])
    )
    deployer = _target_deployer(spec, target, runs)
    if version is None and deployer.rollouts.unfinished() is None:
        _print_held_run(deployer, runs)
    with show_progress() as on_change:
        rollout = deployer.canary(version, on_change)
    _write_runs_page(spec, runs)
    raise typer.Exit(_print_verdict(deployer, rollout))


@commands.command(name="canary-status")
def canary_status(spec: SpecArgument, target: TargetOption = None, runs: RunsOption = Path("runs")) -> None:
    """Show the current rollout, or the last one."""
    from shortlist.rollout.terminal import status_line

    _run_where_fleet_is_reached(spec, target, "canary-status")
    deployer = _target_deployer(spec, target, runs)
    latest = deployer.rollouts.latest()
    if latest is None:
        raise ShortlistError(f"spec '{deployer.name}' has had no rollout yet; make deploy-canary SPEC={deployer.name}")
    if latest.state.final:
        _print_verdict(deployer, latest)
        return
    typer.echo(status_line(latest))
    if not deployer.rollouts.is_locked():
        typer.echo(
            f"Its controller has stopped: make deploy-canary SPEC={deployer.name} resumes it, make rollback"
            f" SPEC={deployer.name} ends it."
        )


@commands.command()
def promote(spec: SpecArgument, target: TargetOption = None, runs: RunsOption = Path("runs")) -> None:
    """Make the version of the current rollout, or the newest blessed one, the champion without waiting for evidence."""
    from shortlist.rollout.terminal import show_progress

    _run_where_fleet_is_reached(spec, target, "promote")
    deployer = _target_deployer(spec, target, runs)
    with show_progress() as on_change:
        promotion = deployer.promote(on_change)
    _write_runs_page(spec, runs)
    if isinstance(promotion, int):
        typer.echo(f"{deployer.name}: version {promotion} is the champion")
        return
    raise typer.Exit(_print_verdict(deployer, promotion))


@commands.command()
def rollback(
    spec: SpecArgument,
    version: Annotated[int | None, typer.Option(help="Version to return to; the previous champion by default.")] = None,
    degraded: Annotated[
        bool, typer.Option("--degraded", help="Return to it although features of it are not published.")
    ] = False,
    target: TargetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """End the current rollout, or return to the previous champion; exit code 0 only when that was done."""
    from shortlist.rollout.terminal import show_progress

    options = [*([] if version is None else ["--version", str(version)]), *(["--degraded"] if degraded else [])]
    _run_where_fleet_is_reached(spec, target, "rollback", *options)
    deployer = _target_deployer(spec, target, runs)
    with show_progress() as on_change:
        rollout = deployer.rollback(version, degraded, on_change)
    _write_runs_page(spec, runs)
    _print_verdict(deployer, rollout)
    if rollout.is_rolled_back and version is None:
        typer.echo(deployer.describe_older_versions(rollout.state.stable))
    if not rollout.is_rolled_back:
        raise ShortlistError(
            f"spec '{deployer.name}': not rolled back; the rollout of version {rollout.state.candidate} was"
            f" {rollout.state.phase.value.replace('_', ' ')} ({rollout.state.reason}). Then make rollback"
            f" SPEC={deployer.name} again."
        )


@commands.command(name="retire-champion")
def retire_champion(
    spec: SpecArgument,
    reason: Annotated[str, typer.Option(help="Why it is no yardstick any more, for the page and MLflow.")],
    runs: RunsOption = Path("runs"),
) -> None:
    """Retire a spec's champion: the next run is compared with the baselines; it serves until another is promoted."""
    from shortlist.spec.load import load_spec
    from shortlist.training.champion import retire_champion

    loaded = load_spec(find_spec(spec, runs))
    version = retire_champion(_run_context(loaded, runs), reason, datetime.now(UTC))
    typer.echo(
        f"{loaded.name}: version {version} is retired: {reason}\nThe next run is compared with the baselines. A server"
        " of this version serves it until another one is promoted."
    )


@commands.command()
def replay(
    spec: SpecArgument,
    rate: Annotated[float | None, typer.Option(help="Requests per second; the spec's by default.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long; 30 without --rounds.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often the days are replayed whole, instead of --seconds.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, help="Newest days of the log; by default serving.traffic.days, else 1.")
    ] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Play the newest days of the log as users would, outcomes included; exit code 1 when a request got no answer.

    Rows that were collected from live traffic are not played.
    """
    from shortlist.serving.traffic.replay import describe, describe_end

    summary = _deployer(spec, runs).replay(30.0 if seconds is None and rounds is None else seconds, rate, rounds, days)
    typer.echo(describe(summary) + describe_end(summary), nl=False)
    raise typer.Exit(int(summary["answered"] < summary["sent"]))


@commands.command(name="export")
def export_(
    spec: SpecArgument,
    out: Annotated[Path, typer.Argument(help="Folder to write; a file for torchscript.")],
    form: Annotated[str, typer.Option(help="python, onnxruntime, fil or torchscript.")] = "onnxruntime",
    version: Annotated[int | None, typer.Option(help="Registered version; the champion by default.")] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Write a registered version as a model repository for a Triton of your own."""
    from shortlist.deployment.release import release, release_forms
    from shortlist.runs.runs_folder import open_runs_folder
    from shortlist.spec.load import load_spec
    from shortlist.tracking.run_context import RunContext

    if form not in release_forms():
        raise ShortlistError(f"--form: got '{form}'; wanted {', '.join(release_forms())}")
    loaded = load_spec(find_spec(spec, runs))
    run = RunContext(name=loaded.name, stores=open_runs_folder(runs, loaded.runtime).storage_parameter(loaded.runtime))
    typer.echo(f"{out}: version {release(run, version, form, loaded.serving, out)} ({form})")


def _deployer(spec: str, runs: Path) -> LocalDeployer:
    from shortlist.deployment.local_deployer import LocalDeployer
    from shortlist.spec.load import load_spec

    loaded = load_spec(find_spec(spec, runs))
    return LocalDeployer(_run_context(loaded, runs), loaded.serving, loaded.gates, loaded.runtime, loaded.data.labels)


def _run_where_fleet_is_reached(spec: str, target: str | None, command: str, *options: str) -> None:
    """End with the exit code of the command where the spec's fleet can be reached; return where that is here."""
    from pkgutil import resolve_name

    loaded = _target_spec(spec, target)
    if not loaded.runtime.target.command_runner:
        return
    from shortlist.system.kubernetes_api import is_inside_cluster

    if not is_inside_cluster():
        run_in_cluster = resolve_name(loaded.runtime.target.command_runner)
        text = find_spec(spec).read_text(encoding="utf-8")
        raise typer.Exit(run_in_cluster(loaded.runtime.cluster, loaded.name, text, [command, *options]))


def _target_deployer(spec: str, target: str | None, runs: Path) -> Deployer:
    """Return the deployer of the spec's fleet; refuse another target than the spec's."""
    from shortlist.deployment.deployer import Deployer

    loaded = _target_spec(spec, target, runs)
    return Deployer(_run_context(loaded, runs), loaded.serving, loaded.gates, loaded.runtime, loaded.data.labels)


def _target_spec(spec: str, target: str | None, runs: Path = Path("runs")) -> Spec:
    """Return the spec; refuse another target than the spec's."""
    from shortlist.deployment.fleets import FLEETS
    from shortlist.spec.load import load_spec

    kinds = {fleet.option or kind: kind for kind, fleet in FLEETS.complete().items()}
    if target is not None and target not in kinds:
        raise ShortlistError(f"--target: got '{target}'; wanted {' or '.join(kinds)}")
    loaded = load_spec(find_spec(spec, runs))
    declared = loaded.runtime.target.kind
    if target is not None and kinds[target] != declared:
        raise ShortlistError(
            f"--target: got '{target}', but spec '{loaded.name}' declares runtime.target: {declared}; its versions and"
            " rollouts are there. Declare the other one in the spec (runtime.profile: cluster for KServe)."
        )
    return loaded


def _run_context(spec: Spec, runs: Path) -> RunContext:
    from shortlist.runs.runs_folder import open_runs_folder
    from shortlist.tracking.run_context import RunContext

    return RunContext(name=spec.name, stores=open_runs_folder(runs, spec.runtime).storage_parameter(spec.runtime))


def _write_runs_page(spec: str, runs: Path) -> None:
    """Write the page of all runs after the champion may have changed; there is none where nothing ran here."""
    from shortlist.runs.runs_folder import RunsFolder
    from shortlist.runs.runs_page import write_runs_page
    from shortlist.spec.load import load_spec

    if not (runs / "stores").is_dir():
        return
    loaded = load_spec(find_spec(spec, runs))
    champion = _run_context(loaded, runs).tracker.registry.version_of("champion")
    write_runs_page(RunsFolder.open(runs), {} if champion is None else {loaded.name: champion})


def _print_held_run(deployer: Deployer, runs: Path) -> None:
    """Print which gates held the newest run, where the newest blessed version is therefore of an earlier one."""
    from shortlist.runs.next_steps import describe_held_run

    held_run = describe_held_run(runs, deployer.name)
    candidate = deployer.candidate_version() if held_run else None
    if candidate is not None:
        typer.echo(f"{held_run} The newest blessed version is {candidate}, of an earlier run.", err=True)
    elif held_run:
        typer.echo(held_run, err=True)


def _print_verdict(deployer: Deployer, rollout: RolloutRecord) -> int:
    """Print the verdict and the paths of page and evidence; return the exit code."""
    from rich.console import Console

    from shortlist.rollout.page import PAGE
    from shortlist.rollout.states.phases import Phase
    from shortlist.rollout.terminal import verdict_table
    from shortlist.rollout.verdict import EVIDENCE

    console = Console(highlight=False)
    console.print(verdict_table(rollout))
    page, evidence = deployer.rollouts.page(rollout.id, PAGE), deployer.rollouts.location(rollout.id, EVIDENCE)
    console.print(f"\nPage: {page}\nEvidence: {evidence}", soft_wrap=True)
    return 0 if rollout.state.phase is Phase.PROMOTED else 1


def _print_status(deployer: LocalDeployer) -> int:
    """Print what is served; return 0 when there is no problem."""
    from rich.console import Console

    from shortlist.cli.serving_view import status_table
    from shortlist.rollout.local.lifecycle import stack_down_reason
    from shortlist.rollout.local.reported_events import count_reported_events, describe_reported_events
    from shortlist.rollout.local.stack import Stack

    stack = Stack.connect(deployer.paths)
    if stack is None:
        raise ShortlistError(
            f"{deployer.name}: {stack_down_reason(deployer.paths)} make serve SPEC={deployer.name} serves it."
        )
    stack_status = stack.status()
    unfinished = deployer.rollouts.unfinished()
    console = Console(highlight=False)
    console.print(status_table(stack_status, unfinished, deployer.example(stack)), soft_wrap=True)
    for sentence in deployer.versions(stack):
        console.print(sentence, markup=False, soft_wrap=True)
    health_ports = (ports.health for version in stack.record.versions.values() for ports in version.replicas)
    event_counts = count_reported_events(health_ports)
    console.print(describe_reported_events(event_counts), markup=False, soft_wrap=True)
    return 1 if stack_status.problems else 0
