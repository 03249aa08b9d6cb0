"""The commands of a cluster: `shortlist submit|schedule|doctor|images`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec, require_cluster_packages
from shortlist.contracts import ShortlistError, did_you_mean

if TYPE_CHECKING:
    from shortlist.spec.spec import Spec

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

HostOption = Annotated[
    str, typer.Option(envvar="KF_PIPELINES_ENDPOINT", help="Address of the Kubeflow Pipelines API: http(s)://host.")
]
DataOption = Annotated[str, typer.Option(help="s3://... or gs://... with the log and its side tables.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would be done.")]


@commands.command()
def submit(
    spec: SpecArgument,
    host: HostOption = "",
    data: DataOption = "",
    change: SetOption = None,
    unread: Annotated[
        bool,
        typer.Option("--unread", help="This machine cannot read the data: only the run does, and caches nothing."),
    ] = False,
    attempt: Annotated[
        int, typer.Option("--again", min=1, help="2 starts a second run of the same spec, code and data.")
    ] = 1,
    dry_run: DryRunOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Start a spec's training on a cluster; a repeated call starts no second run."""
    require_cluster_packages()
    from shortlist.kubeflow.client import KubeflowClient
    from shortlist.kubeflow.training_runs import prepare_training, submit_run

    loaded = _load(spec, change)
    submission = prepare_training(loaded, data, runs / "compiled", read_later=unread, attempt=attempt)
    if dry_run:
        typer.echo(f"would start {submission}")
    else:
        typer.echo(
            submit_run(submission, loaded, KubeflowClient(_require_host(host), loaded.runtime.cluster.namespace))
        )
    for notice in loaded.notices:
        typer.echo(notice)


@commands.command()
def schedule(
    spec: SpecArgument,
    host: HostOption = "",
    data: DataOption = "",
    change: SetOption = None,
    dry_run: DryRunOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Create or update a cluster's recurring runs, retraining and monitoring, as the spec's schedule declares."""
    require_cluster_packages()
    from shortlist.kubeflow.client import KubeflowClient
    from shortlist.kubeflow.cluster_compile import CompiledGraphs
    from shortlist.kubeflow.schedule import apply_schedule, change_lines, declared_recurring_runs, plan_schedule

    loaded = _load(spec, change)
    compiled = CompiledGraphs.compile(loaded, runs / "compiled")
    declared = declared_recurring_runs(loaded, data, compiled)
    kubeflow = KubeflowClient(_require_host(host), loaded.runtime.cluster.namespace)
    for line in (
        change_lines(plan_schedule(loaded, declared, kubeflow))
        if dry_run
        else apply_schedule(loaded, declared, compiled, kubeflow)
    ):
        typer.echo(line)


@commands.command()
def doctor(
    spec: SpecArgument,
    host: HostOption = "",
    change: SetOption = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Check the cluster of kubectl's current context.")] = False,
) -> None:
    """List what a spec needs of its cluster and what is missing; change nothing; exit code 1 when something is."""
    if not cluster:
        raise ShortlistError("doctor: got nothing to check; wanted --cluster, the cluster of kubectl's current context")
    require_cluster_packages()
    from shortlist.kubeflow.cluster_check import ClusterCheck
    from shortlist.system.kubernetes_api import KubernetesAPI, connect

    loaded = _load(spec, change)
    # Nothing is waited for: a refusal is an answer here.
    api = KubernetesAPI(connect(), loaded.runtime.cluster.namespace, patience_seconds=10, settling_seconds=0)
    states = []
    for finding in ClusterCheck(loaded, api, host).run():
        typer.echo(str(finding))
        states.append(finding.state)
    typer.echo(f"{states.count('ok')} ok, {states.count('missing')} missing, {states.count('not checked')} not checked")
    raise typer.Exit(int("missing" in states))


@commands.command()
def images(
    chosen_kinds: Annotated[
        list[str] | None, typer.Option("--only", help="pipeline, gpu or triton; all by default.")
    ] = None,
    registry: Annotated[
        str, typer.Option(help="Push there, e.g. registry.example/team; nothing is pushed otherwise.")
    ] = "",
    torch_index: Annotated[
        str, typer.Option(help="Package index with the build of torch for CPUs; torch's own by default.")
    ] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Build the container images, where docker, podman or buildah works."""
    from components.image import VARIABLES
    from shortlist.kubeflow.images import build_images, digest_lines, plan_build

    kinds = chosen_kinds or list(VARIABLES)
    for kind in kinds:
        if kind not in VARIABLES:
            raise ShortlistError(f"--only: got '{kind}', wanted {', '.join(VARIABLES)}{did_you_mean(kind, VARIABLES)}")
    if dry_run:
        typer.echo("\n".join(plan_build(kinds, registry)))
    else:
        typer.echo(digest_lines(build_images(kinds, registry, torch_index)))


@commands.command("lock-images")
def lock_images(dry_run: DryRunOption = False) -> None:
    """Ask the registries for the digests of the base images, and write them into bases.env."""
    from shortlist.kubeflow.base_images import lock_base_images

    for line in lock_base_images(write=not dry_run):
        typer.echo(line)


def _load(spec: str, change: list[str] | None) -> Spec:
    from shortlist.spec.load import load_spec

    return load_spec(find_spec(spec), change or ())


def _require_host(host: str) -> str:
    if not host:
        raise ShortlistError(
            "HOST: name the address of Kubeflow Pipelines, e.g. HOST=http://127.0.0.1:8888 after a port-forward"
        )
    return host
