"""Makes a cluster's recurring runs what a spec declares: retraining, watching and refreshing by the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from croniter import croniter

from shortlist.contracts import ShortlistError
from shortlist.kubeflow.cluster_compile import CompiledGraphs, GraphName
from shortlist.kubeflow.server import Kubeflow
from shortlist.kubeflow.training_runs import digest_of, remote_location, storage_config, uploaded
from shortlist.runs.monitoring_runs import monitoring_arguments
from shortlist.runs.refresh_runs import refresh_arguments
from shortlist.spec.spec import Spec

SCHEDULE_SWITCH_SECONDS: Final = 30
"""A recurring run is not replaced so shortly before or after its moment: its controller looks every few seconds."""
_PAUSED: Final = " paused"
"""Ends the description of a recurring run that replaced a paused one, and so was made to stay off."""


class Clock:
    """The time, and waiting."""

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def wait_for_idle_window(self, crons: list[str]) -> None:
        """Wait until no expression of six fields has a moment within `HANDOVER_SECONDS`, for at most twice as long.

        One that has a moment every minute or two never is quiet; it is not waited for.
        """
        for cron in crons:
            now = self.now()
            after = croniter(cron, now, second_at_beginning=True).get_next(datetime)
            before = croniter(cron, now + timedelta(seconds=1), second_at_beginning=True).get_prev(datetime)
            near, margin = (
                min((before, after), key=lambda moment: abs(moment - now)),
                timedelta(seconds=SCHEDULE_SWITCH_SECONDS),
            )
            if abs(near - now) < margin and after - before > 4 * margin:
                self.sleep((near + margin - now).total_seconds())


@dataclass(frozen=True)
class RecurringRun:
    """A recurring run as a spec wants it."""

    graph: GraphName
    cron: str
    """Five fields, UTC."""
    parameters: dict[str, Any]
    digest: str
    """Of all that it says and starts."""
    owner: str
    """Cluster and spec: what tells ours from other people's."""

    @property
    def mark(self) -> str:
        """The description it is known by: Kubeflow never changes a recurring run, so equal marks do equal things."""
        return f"{self.owner} {self.graph} {self.digest}"

    def __str__(self) -> str:
        return f"{self.graph} at '{self.cron}' UTC"


def wanted(spec: Spec, data: str, compiled: CompiledGraphs) -> list[RecurringRun]:
    """Return the recurring runs that a spec declares.

    Args:
        spec: The declaration, for a cluster.
        data: As for `prepare`; it is read by each run when its time has come.
        compiled: The spec's graphs.

    Raises:
        ShortlistError: The spec is not one for a cluster, or Kubeflow cannot say its cron expression.
    """
    location, stores = remote_location(spec, data), str(storage_config(spec.runtime))
    watching = monitoring_arguments(spec, location, stores, read_later=True)
    # Each run claims its moment in the monitoring store, and trains where none is running.
    retraining = watching | {"cron": spec.schedule.retrain or ""}
    declared: list[tuple[GraphName, str | None, dict[str, Any]]] = [
        ("scheduled-retraining", spec.schedule.retrain, retraining),
        ("monitoring", spec.schedule.watch, watching),
        ("refresh", spec.schedule.refresh, refresh_arguments(spec, location, stores, read_later=True)),
    ]
    made = []
    for graph, cron, parameters in declared:
        if cron is not None:
            digest = digest_of(compiled.digest, {"cron": six_fields(cron), **parameters})
            made.append(RecurringRun(graph, cron, parameters, digest, owner_of(spec)))
    return made


def owner_of(spec: Spec) -> str:
    """Return the words with which the descriptions of a spec's recurring runs begin."""
    return f"shortlist {spec.runtime.cluster.name}/{spec.name}"


def apply(
    spec: Spec, declared: list[RecurringRun], compiled: CompiledGraphs, kubeflow: Kubeflow, clock: Clock | None = None
) -> list[str]:
    """Make the recurring runs what is declared; return what was done, a line each.

    Equal ones are left alone, and a paused one stays paused. In place of a changed one, a new one is made that is still
    off; then the old one goes off and the new one on, far enough from any start that none is missed and none happens
    twice. What was killed in between is finished by the next call.

    Args:
        spec: The declaration.
        declared: What `wanted` returned.
        compiled: The spec's graphs.
        kubeflow: The cluster's Kubeflow Pipelines.
        clock: Tells the time and waits.

    Raises:
        KubeflowError: Kubeflow cannot be reached, or refuses.
    """
    experiment = kubeflow.experiment(spec.runtime.cluster.kfp_experiment)
    steps = plan(spec, declared, kubeflow)
    busy = kubeflow.in_progress(experiment)
    for step in steps:
        if step.one is not None and not step.unchanged:
            body = _body(step.one, spec, experiment, uploaded(compiled, step.one.graph, kubeflow))
            _replace(body, step, kubeflow, clock or Clock())
        for old in step.old:
            kubeflow.disable(old.recurring_run_id)
            # Kubernetes would take a run in progress away with its owner; a later call deletes it.
            if old.recurring_run_id not in busy:
                kubeflow.delete(old.recurring_run_id)
    return change_lines(steps)


def plan(spec: Spec, declared: list[RecurringRun], kubeflow: Kubeflow) -> list[RecurringRunChange]:
    """Return what `apply` would do, without doing any of it.

    Raises:
        KubeflowError: Kubeflow cannot be reached, or refuses.
    """
    experiment = kubeflow.find_experiment(spec.runtime.cluster.kfp_experiment)
    return changes(declared, kubeflow.recurring_runs(experiment) if experiment else [], owner_of(spec))


def change_lines(steps: list[RecurringRunChange]) -> list[str]:
    """Return a line for each change."""
    return [str(step) for step in steps] or ["nothing is scheduled"]


@dataclass(frozen=True)
class RecurringRunChange:
    """What becomes of the recurring runs of one graph."""

    one: RecurringRun | None
    """The declared one; None when none is."""
    same: Any
    """The one on the cluster that does just that; None when there is none."""
    old: list[Any]
    """Others on the cluster that start the same graph."""

    @property
    def unchanged(self) -> bool:
        """Whether the declared one is there and, unless a person paused it, on."""
        return self.same is not None and (_is_on(self.same) or _is_paused(self.same) or not self.old)

    @property
    def paused(self) -> bool:
        """Whether a person paused what is to be replaced."""
        return bool(self.old) and self.same is None and not any(_is_on(old) for old in self.old)

    def __str__(self) -> str:
        if self.one is None:
            return f"no longer declared: {_graph_of(self.old[0])} at '{self.old[0].trigger.cron_schedule.cron}'"
        if self.unchanged:
            return f"unchanged: {self.one}{'' if _is_on(self.same) else '; it is paused'}"
        return f"{'changed' if self.old else 'new'}: {self.one}{'; it stays paused' if self.paused else ''}"


def changes(declared: list[RecurringRun], there: list[Any], owner: str) -> list[RecurringRunChange]:
    """Return what becomes of each graph's recurring runs.

    Args:
        declared: What the spec wants.
        there: Every recurring run of the experiment, the oldest first.
        owner: See `owner_of`; what does not begin with it belongs to somebody else.
    """
    ours = [one for one in there if str(one.description or "").startswith(f"{owner} ")]
    made = []
    for one in declared:
        of_graph = [old for old in ours if _graph_of(old) == one.graph]
        same = next((old for old in of_graph if str(old.description).removesuffix(_PAUSED) == one.mark), None)
        made.append(RecurringRunChange(one, same, [old for old in of_graph if old is not same]))
    undeclared = sorted({_graph_of(old) for old in ours} - {one.graph for one in declared})
    return made + [
        RecurringRunChange(None, None, [old for old in ours if _graph_of(old) == graph]) for graph in undeclared
    ]


def _replace(body: dict[str, Any], step: RecurringRunChange, kubeflow: Kubeflow, clock: Clock) -> None:
    if not step.old:
        kubeflow.recur(body | {"mode": "ENABLE"})
        return
    if step.paused:
        kubeflow.recur(body | {"description": body["description"] + _PAUSED})
        return
    if step.same is not None and any(_is_on(old) for old in step.old):
        # Left by a killed call. Turned on, it would repeat what the old one has started since.
        kubeflow.delete(step.same.recurring_run_id)
    clock.wait_for_idle_window([str(old.trigger.cron_schedule.cron) for old in step.old if _is_on(old)])
    new = kubeflow.recur(body)
    for old in step.old:
        kubeflow.disable(old.recurring_run_id)
    kubeflow.enable(new.recurring_run_id)


def _body(one: RecurringRun, spec: Spec, experiment: str, version: dict[str, str]) -> dict[str, Any]:
    return {
        "display_name": f"{spec.name}-{one.graph}",
        "description": one.mark,
        "experiment_id": experiment,
        "pipeline_version_reference": version,
        "runtime_config": {"parameters": one.parameters},
        "trigger": {"cron_schedule": {"cron": six_fields(one.cron)}},
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

    Values are written out, because the two dialects disagree about names, steps and Sunday (7 is none of Kubeflow's).
    Times are UTC here and, unless its controller is told otherwise, there.

    Raises:
        ShortlistError: Kubeflow's dialect has no word for it (last day of a month, nth weekday).

    >>> six_fields("30 2 * * 1-5")
    '0 30 2 * * 1,2,3,4,5'
    >>> six_fields("*/15 * * * 7")
    '0 0,15,30,45 * * * 0'
    """
    fields, nth = croniter.expand(expression)[:2]
    if nth or any(not isinstance(value, int) and value != "*" for field in fields for value in field):
        raise ShortlistError(
            f"schedule: '{expression}' names a last day or an nth weekday, which Kubeflow's cron cannot say; name days"
        )
    weekdays = sorted({value % 7 if isinstance(value, int) else value for value in fields[4]}, key=str)
    written = [*fields[:4], weekdays]
    return " ".join(["0", *(",".join(map(str, field)) for field in written)])
