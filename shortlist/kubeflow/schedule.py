"""Creates, replaces and deletes recurring runs as a spec declares: retraining, monitoring and refreshing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from croniter import croniter

from shortlist.contracts import ShortlistError
from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.cluster_compile import CompiledGraphs, GraphName
from shortlist.kubeflow.training_runs import ensure_pipeline_version, remote_location, storage_config, submission_digest
from shortlist.runs.local_training import graph_arguments
from shortlist.spec.spec import Spec

SCHEDULE_SWITCH_SECONDS: Final = 30
"""A recurring run is not replaced this shortly before or after its start: its controller checks every few seconds."""
_PAUSED: Final = " paused"
"""End of the description of a recurring run that replaced a paused one and was therefore created disabled."""


class Clock:
    """The current time, and waiting."""

    def now(self) -> datetime:
        """Return the current time, UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def wait_for_idle_window(self, crons: list[str]) -> None:
        """Wait until no six-field cron expression starts within `SCHEDULE_SWITCH_SECONDS`; wait at most twice as long.

        Expressions that start every minute or two have no idle window and are not waited for.
        """
        for cron in crons:
            now = self.now()
            next_start = croniter(cron, now, second_at_beginning=True).get_next(datetime)
            previous_start = croniter(cron, now + timedelta(seconds=1), second_at_beginning=True).get_prev(datetime)
            near, margin = (
                min((previous_start, next_start), key=lambda moment: abs(moment - now)),
                timedelta(seconds=SCHEDULE_SWITCH_SECONDS),
            )
            if abs(near - now) < margin and next_start - previous_start > 4 * margin:
                self.sleep((near + margin - now).total_seconds())


@dataclass(frozen=True)
class RecurringRun:
    """A recurring run that a spec declares."""

    graph: GraphName
    cron: str
    """Cron expression of five fields, UTC."""
    parameters: dict[str, Any]
    digest: str
    """Digest of its graph, cron expression and parameters."""
    owner: str
    """Cluster and spec; see `owner_prefix`."""

    @property
    def mark(self) -> str:
        """Its description. Kubeflow never changes a recurring run, so those with equal descriptions are equal."""
        return f"{self.owner} {self.graph} {self.digest}"

    def __str__(self) -> str:
        return f"{self.graph} at '{self.cron}' UTC"


def declared_recurring_runs(spec: Spec, data: str, compiled: CompiledGraphs) -> list[RecurringRun]:
    """Return the recurring runs that a spec declares.

    Args:
        spec: The spec, with the profile of a cluster.
        data: `s3://...` or `gs://...` with the user's files, which each run reads when it starts.
        compiled: The spec's graphs.

    Raises:
        ShortlistError: The spec is not one for a cluster, or Kubeflow has no equivalent of its cron expression.
    """
    location, stores = remote_location(spec, data), str(storage_config(spec.runtime))
    values = graph_arguments(spec, location, stores, read_later=True)
    # Each run claims its scheduled time in the monitoring store, and trains only if no other training is running.
    declared: list[tuple[GraphName, str | None]] = [
        ("scheduled-retraining", spec.schedule.retrain),
        ("monitoring", spec.schedule.watch),
        ("refresh", spec.schedule.refresh),
    ]
    recurring_runs = []
    for graph, cron in declared:
        if cron is not None:
            parameters = compiled.arguments(graph, values)
            digest = submission_digest(compiled.digest, {"cron": six_fields(cron), **parameters})
            recurring_runs.append(RecurringRun(graph, cron, parameters, digest, owner_prefix(spec)))
    return recurring_runs


def owner_prefix(spec: Spec) -> str:
    """Return the prefix of the descriptions of a spec's recurring runs."""
    return f"shortlist {spec.runtime.cluster.name}/{spec.name}"


def apply_schedule(
    spec: Spec,
    declared: list[RecurringRun],
    compiled: CompiledGraphs,
    kubeflow: KubeflowClient,
    clock: Clock | None = None,
) -> list[str]:
    """Create, replace and delete recurring runs until they are as declared; return what was done, a line each.

    Unchanged ones are left alone, and a paused one stays paused. For a changed one, the new recurring run is created
    disabled; then the old one is disabled and the new one enabled, far enough from any start that none is missed and
    none happens twice. A call that was killed in between is completed by the next one.

    Args:
        spec: The spec.
        declared: Result of `declared_recurring_runs`.
        compiled: The spec's graphs.
        kubeflow: Client of the cluster's Kubeflow Pipelines.
        clock: Source of the time; None: the system's.

    Raises:
        KubeflowError: Kubeflow cannot be reached, or refuses.
    """
    experiment = kubeflow.ensure_experiment(spec.runtime.cluster.kfp_experiment)
    steps = plan_schedule(spec, declared, kubeflow)
    busy = kubeflow.recurring_runs_in_progress(experiment)
    for step in steps:
        if step.declared is not None and not step.unchanged:
            body = _request_body(
                step.declared, spec, experiment, ensure_pipeline_version(compiled, step.declared.graph, kubeflow)
            )
            _replace_recurring_run(body, step, kubeflow, clock or Clock())
        for old in step.outdated:
            kubeflow.disable(old.recurring_run_id)
            # Kubernetes deletes a run in progress together with its owner; a later call deletes both.
            if old.recurring_run_id not in busy:
                kubeflow.delete(old.recurring_run_id)
    return change_lines(steps)


def plan_schedule(spec: Spec, declared: list[RecurringRun], kubeflow: KubeflowClient) -> list[RecurringRunChange]:
    """Return what `apply_schedule` would do, without doing it.

    Raises:
        KubeflowError: Kubeflow cannot be reached, or refuses.
    """
    experiment = kubeflow.find_experiment(spec.runtime.cluster.kfp_experiment)
    return compare_recurring_runs(
        declared, kubeflow.recurring_runs(experiment) if experiment else [], owner_prefix(spec)
    )


def change_lines(steps: list[RecurringRunChange]) -> list[str]:
    """Return a line for each change."""
    return [str(step) for step in steps] or ["nothing is scheduled"]


@dataclass(frozen=True)
class RecurringRunChange:
    """Change to the recurring runs of one graph."""

    declared: RecurringRun | None
    """The declared recurring run; None when the spec declares none."""
    existing: Any
    """The recurring run on the cluster that equals the declared one; None when there is none."""
    outdated: list[Any]
    """Other recurring runs on the cluster that start the same graph."""

    @property
    def unchanged(self) -> bool:
        """Whether the declared one exists and is enabled, unless a person paused it."""
        return self.existing is not None and (_is_on(self.existing) or _is_paused(self.existing) or not self.outdated)

    @property
    def paused(self) -> bool:
        """Whether a person paused the one to be replaced."""
        return bool(self.outdated) and self.existing is None and not any(_is_on(old) for old in self.outdated)

    def __str__(self) -> str:
        if self.declared is None:
            return (
                f"no longer declared: {_graph_of(self.outdated[0])} at '{self.outdated[0].trigger.cron_schedule.cron}'"
            )
        if self.unchanged:
            return f"unchanged: {self.declared}{'' if _is_on(self.existing) else '; it is paused'}"
        return f"{'changed' if self.outdated else 'new'}: {self.declared}{'; it stays paused' if self.paused else ''}"


def compare_recurring_runs(declared: list[RecurringRun], existing: list[Any], owner: str) -> list[RecurringRunChange]:
    """Return the change to each graph's recurring runs.

    Args:
        declared: Recurring runs that the spec declares.
        existing: Every recurring run of the experiment, the oldest first.
        owner: See `owner_prefix`; recurring runs with another prefix belong to other specs.
    """
    runs_of_spec = [
        recurring_run for recurring_run in existing if str(recurring_run.description or "").startswith(f"{owner} ")
    ]
    graph_changes = []
    for recurring_run in declared:
        of_graph = [old for old in runs_of_spec if _graph_of(old) == recurring_run.graph]
        same = next((old for old in of_graph if str(old.description).removesuffix(_PAUSED) == recurring_run.mark), None)
        graph_changes.append(RecurringRunChange(recurring_run, same, [old for old in of_graph if old is not same]))
    undeclared = sorted({_graph_of(old) for old in runs_of_spec} - {recurring_run.graph for recurring_run in declared})
    return graph_changes + [
        RecurringRunChange(None, None, [old for old in runs_of_spec if _graph_of(old) == graph]) for graph in undeclared
    ]


def _replace_recurring_run(
    body: dict[str, Any], step: RecurringRunChange, kubeflow: KubeflowClient, clock: Clock
) -> None:
    if not step.outdated:
        kubeflow.create_recurring_run(body | {"mode": "ENABLE"})
        return
    if step.paused:
        kubeflow.create_recurring_run(body | {"description": body["description"] + _PAUSED})
        return
    if step.existing is not None and any(_is_on(old) for old in step.outdated):
        # Left by a killed call. If enabled, it would repeat runs that the old one has started since.
        kubeflow.delete(step.existing.recurring_run_id)
    clock.wait_for_idle_window([str(old.trigger.cron_schedule.cron) for old in step.outdated if _is_on(old)])
    new = kubeflow.create_recurring_run(body)
    for old in step.outdated:
        kubeflow.disable(old.recurring_run_id)
    kubeflow.enable(new.recurring_run_id)


def _request_body(recurring_run: RecurringRun, spec: Spec, experiment: str, version: dict[str, str]) -> dict[str, Any]:
    return {
        "display_name": f"{spec.name}-{recurring_run.graph}",
        "description": recurring_run.mark,
        "experiment_id": experiment,
        "pipeline_version_reference": version,
        "runtime_config": {"parameters": recurring_run.parameters},
        "trigger": {"cron_schedule": {"cron": six_fields(recurring_run.cron)}},
        "mode": "DISABLE",
        "no_catchup": True,
        "max_concurrency": "1",
        "service_account": spec.runtime.cluster.service_account,
    }


def _graph_of(recurring_run: Any) -> str:
    return str(recurring_run.description).split()[2]


def _is_on(recurring_run: Any) -> bool:
    return str(recurring_run.status) == "ENABLED"


def _is_paused(recurring_run: Any) -> bool:
    return str(recurring_run.description).endswith(_PAUSED)


def six_fields(expression: str) -> str:
    """Return five fields of cron (minute hour day month weekday) as Kubeflow's six, which begin with the second.

    Values are written out, because the dialects differ in names, steps and Sunday (Kubeflow's has no weekday 7). Times
    are UTC, also in Kubeflow unless its controller is configured otherwise.

    Raises:
        ShortlistError: Kubeflow's dialect has no equivalent (last day of a month, nth weekday).

    >>> six_fields("30 2 * * 1-5")
    '0 30 2 * * 1,2,3,4,5'
    >>> six_fields("*/15 * * * 7")
    '0 0,15,30,45 * * * 0'
    """
    fields, nth = croniter.expand(expression)[:2]
    if nth or any(not isinstance(value, int) and value != "*" for field in fields for value in field):
        raise ShortlistError(
            f"schedule: '{expression}' names a last day or an nth weekday, which Kubeflow's cron has not; name days"
        )
    weekdays = sorted({value % 7 if isinstance(value, int) else value for value in fields[4]}, key=str)
    written = [*fields[:4], weekdays]
    return " ".join(["0", *(",".join(map(str, field)) for field in written)])
