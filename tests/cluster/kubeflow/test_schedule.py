"""Recurring runs on a cluster are as the spec declares, and no scheduled start is missed or happens twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from croniter import croniter
from kfp_schema import check_cron
from kfp_server import Fault, KubeflowServer

from shortlist.contracts import ShortlistError
from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.cluster_compile import CompiledGraphs
from shortlist.kubeflow.kubeflow_requests import KubeflowError
from shortlist.kubeflow.schedule import (
    Clock,
    apply_schedule,
    change_lines,
    declared_recurring_runs,
    plan_schedule,
    six_fields,
)
from shortlist.kubeflow.training_runs import remote_location, storage_config
from shortlist.runs.local_training import graph_arguments
from shortlist.spec.spec import Spec

BOTH_CRONS = {"retrain": "0 3 * * *", "watch": "*/15 * * * *"}
NOON = datetime(2026, 11, 21, 12, 4, tzinfo=UTC)


class ServerClock(Clock):
    """The server's own time: what waits lets recurring runs start."""

    def __init__(self, server: KubeflowServer) -> None:
        self.server = server
        self.started: list[tuple[datetime, str]] = []

    def now(self) -> datetime:
        return self.server.now

    def sleep(self, seconds: float) -> None:
        self.started += self.server.pass_time(self.server.now + timedelta(seconds=seconds))


@pytest.fixture
def clock(server: KubeflowServer) -> ServerClock:
    server.now = NOON
    return ServerClock(server)


Apply = Callable[..., list[str]]


@pytest.fixture
def schedule(
    server: KubeflowServer,
    clock: ServerClock,
    make_spec: Callable[..., Spec],
    compile_spec: Callable[[Spec], CompiledGraphs],
) -> Apply:
    """Return `make schedule`."""

    def make(schedule: dict[str, str], *, dry_run: bool = False, **cluster: Any) -> list[str]:
        spec = make_spec(schedule=schedule, **cluster)
        compiled = compile_spec(spec)
        kubeflow = KubeflowClient(server.url, "team-a", pause=0.001)
        declared = declared_recurring_runs(spec, "", compiled)
        return (
            change_lines(plan_schedule(spec, declared, kubeflow))
            if dry_run
            else apply_schedule(spec, declared, compiled, kubeflow, clock)
        )

    return make


def recurring_runs(server: KubeflowServer) -> dict[str, dict[str, Any]]:
    """Return the recurring runs by name, each of which there is one of."""
    stored = server.stored["recurring_runs"]
    assert len({recurring_run["display_name"] for recurring_run in stored}) == len(stored)
    return {recurring_run["display_name"]: recurring_run for recurring_run in stored}


def test_declared_recurring_runs_are_created(server: KubeflowServer, schedule: Apply) -> None:
    assert schedule(BOTH_CRONS) == [
        "new: scheduled-retraining at '0 3 * * *' UTC",
        "new: monitoring at '*/15 * * * *' UTC",
    ]
    recurring_run_by_name = recurring_runs(server)
    assert set(recurring_run_by_name) == {"demo-scheduled-retraining", "demo-monitoring"}
    assert recurring_run_by_name["demo-scheduled-retraining"]["trigger"] == {"cron_schedule": {"cron": "0 0 3 * * *"}}
    assert recurring_run_by_name["demo-monitoring"]["trigger"] == {"cron_schedule": {"cron": "0 0,15,30,45 * * * *"}}
    for recurring_run in recurring_run_by_name.values():
        assert (recurring_run["no_catchup"], recurring_run["max_concurrency"], recurring_run["status"]) == (
            True,
            "1",
            "ENABLED",
        )
        assert recurring_run["service_account"] == "shortlist-pipeline"
        parameters = recurring_run["runtime_config"]["parameters"]
        assert parameters["log"] == {"location": "", "digest": ""}
    # It claims the moment that started it in the store of all retrainings: that takes the expression.
    parameters = recurring_run_by_name["demo-scheduled-retraining"]["runtime_config"]["parameters"]
    assert parameters["cron"] == "0 3 * * *"
    assert "cause" not in parameters


def test_a_declared_refresh_has_its_own_recurring_run(
    server: KubeflowServer, schedule: Apply, make_spec: Callable[..., Spec]
) -> None:
    declared = {"refresh": "20 * * * *"}
    assert schedule(declared) == ["new: refresh at '20 * * * *' UTC"]
    recurring_run_by_name = recurring_runs(server)
    assert set(recurring_run_by_name) == {"demo-refresh"}
    assert recurring_run_by_name["demo-refresh"]["trigger"] == {"cron_schedule": {"cron": "0 20 * * * *"}}
    spec = make_spec(schedule=declared)
    stores = str(storage_config(spec.runtime))
    parameters = recurring_run_by_name["demo-refresh"]["runtime_config"]["parameters"]
    # Data and settings as declared; each run reads the log when its time has come. Nothing of a training is in it.
    values = graph_arguments(spec, remote_location(spec, ""), stores, read_later=True)
    assert parameters == {name: values[name] for name in parameters}
    assert not {"models", "gates", "cause", "cron"} & set(parameters)
    assert schedule({})[0] == "no longer declared: refresh at '0 20 * * * *'"
    assert recurring_runs(server) == {}


def test_nothing_that_the_clock_starts_is_answered_from_a_cache(server: KubeflowServer, schedule: Apply) -> None:
    schedule(BOTH_CRONS)
    for version in server.stored["pipeline_versions"]:
        components = version["pipeline_spec"]["components"]
        tasks = [task for group in components.values() for task in group.get("dag", {}).get("tasks", {}).values()]
        steps = [task for task in tasks if "executorLabel" in components[task["componentRef"]["name"]]]
        assert steps
        assert not any(task.get("cachingOptions", {}).get("enableCache") for task in steps)


def test_what_is_unchanged_is_left_alone(server: KubeflowServer, schedule: Apply) -> None:
    schedule(BOTH_CRONS)
    runs_before = {name: recurring_run["recurring_run_id"] for name, recurring_run in recurring_runs(server).items()}
    server.requested.clear()
    assert [line.partition(":")[0] for line in schedule(BOTH_CRONS)] == ["unchanged", "unchanged"]
    assert not server.changes
    assert {
        name: recurring_run["recurring_run_id"] for name, recurring_run in recurring_runs(server).items()
    } == runs_before


def test_what_changes_is_replaced_and_the_rest_is_not(server: KubeflowServer, schedule: Apply) -> None:
    schedule(BOTH_CRONS)
    runs_before = recurring_runs(server)
    lines = schedule({**BOTH_CRONS, "retrain": "30 4 * * 7"})
    assert lines == ["changed: scheduled-retraining at '30 4 * * 7' UTC", "unchanged: monitoring at '*/15 * * * *' UTC"]
    runs_after = recurring_runs(server)
    assert runs_after["demo-scheduled-retraining"]["trigger"]["cron_schedule"]["cron"] == "0 30 4 * * 0"
    assert runs_after["demo-scheduled-retraining"]["status"] == "ENABLED"
    assert runs_after["demo-monitoring"] == runs_before["demo-monitoring"]


def test_new_code_or_settings_replace_a_recurring_run(server: KubeflowServer, schedule: Apply) -> None:
    schedule(BOTH_CRONS)
    runs_before = {recurring_run["recurring_run_id"] for recurring_run in recurring_runs(server).values()}
    schedule(BOTH_CRONS, ttl_hours=1)
    assert not runs_before & {recurring_run["recurring_run_id"] for recurring_run in recurring_runs(server).values()}


def test_what_is_no_longer_declared_goes(server: KubeflowServer, schedule: Apply) -> None:
    schedule(BOTH_CRONS)
    assert schedule({"watch": BOTH_CRONS["watch"]})[1] == "no longer declared: scheduled-retraining at '0 0 3 * * *'"
    assert set(recurring_runs(server)) == {"demo-monitoring"}
    schedule({})
    assert recurring_runs(server) == {}
    assert schedule({}) == ["nothing is scheduled"]


def test_what_belongs_to_others_is_never_touched(server: KubeflowServer, schedule: Apply) -> None:
    schedule(BOTH_CRONS)
    schedule(BOTH_CRONS, name="blue")  # another cluster's, in the same Kubeflow
    server._add("recurring_runs", {**server.stored["recurring_runs"][0], "description": "nightly report of somebody"})
    assert len(server.stored["recurring_runs"]) == 5
    schedule({})
    descriptions = [recurring_run["description"] for recurring_run in server.stored["recurring_runs"]]
    assert len(descriptions) == 3
    assert not any(line.startswith("shortlist default/demo ") for line in descriptions)


def test_a_dry_run_makes_no_change(server: KubeflowServer, schedule: Apply) -> None:
    assert schedule(BOTH_CRONS, dry_run=True)[0] == "new: scheduled-retraining at '0 3 * * *' UTC"
    assert not server.changes


def test_what_a_person_paused_stays_paused(server: KubeflowServer, schedule: Apply) -> None:
    schedule(BOTH_CRONS)
    server._change("recurring_runs", "disable", recurring_runs(server)["demo-scheduled-retraining"]["recurring_run_id"])
    assert schedule(BOTH_CRONS)[0] == "unchanged: scheduled-retraining at '0 3 * * *' UTC; it is paused"
    changed = {**BOTH_CRONS, "retrain": "0 5 * * *"}
    assert schedule(changed)[0] == "changed: scheduled-retraining at '0 5 * * *' UTC; it stays paused"
    assert schedule(changed)[0] == "unchanged: scheduled-retraining at '0 5 * * *' UTC; it is paused"
    assert recurring_runs(server)["demo-scheduled-retraining"]["status"] == "DISABLED"


def test_one_with_a_run_in_progress_is_kept_until_that_ends(server: KubeflowServer, schedule: Apply) -> None:
    schedule(BOTH_CRONS)
    old = recurring_runs(server)["demo-scheduled-retraining"]
    run = {"experiment_id": old["experiment_id"], "recurring_run_id": old["recurring_run_id"], "display_name": "r"}
    server._add("runs", {**run, "state": "RUNNING"})
    changed = {**BOTH_CRONS, "retrain": "0 5 * * *"}
    schedule(changed)
    assert old in server.stored["recurring_runs"]
    assert old["status"] == "DISABLED"
    server.stored["runs"][0]["state"] = "SUCCEEDED"
    schedule(changed)
    assert old not in server.stored["recurring_runs"]
    assert recurring_runs(server)["demo-scheduled-retraining"]["status"] == "ENABLED"


STEPS = ["recurring_run_service_create_recurring_run", "recurring_run_service_disable_recurring_run"]
STEPS += ["recurring_run_service_enable_recurring_run", "recurring_run_service_delete_recurring_run"]


@pytest.mark.parametrize("step", [None, *STEPS])
@pytest.mark.parametrize("seconds", [-1, 1, *(pytest.param(far, marks=pytest.mark.long) for far in (-8, 40))])
def test_no_moment_is_missed_and_none_happens_twice(
    server: KubeflowServer, schedule: Apply, clock: ServerClock, step: str | None, seconds: int
) -> None:
    """Replaced shortly before or after its moment, at once or killed at any step and asked again after the moment."""
    schedule({"watch": "0,30 * * * *"})
    clock.started = server.pass_time(NOON.replace(minute=30) + timedelta(seconds=seconds))
    if step is not None:
        server.faults.append(Fault(step, times=99))
        with pytest.raises(KubeflowError):
            schedule({"watch": "0,30 * * * *"}, ttl_hours=1)
        server.faults.clear()
    schedule({"watch": "0,30 * * * *"}, ttl_hours=1)
    clock.started += server.pass_time(NOON.replace(hour=14, minute=10))
    moments = [moment.strftime("%H:%M") for moment, _ in clock.started]
    assert moments == ["12:30", "13:00", "13:30", "14:00"]
    assert len(server.stored["recurring_runs"]) == 1


def test_a_killed_call_is_completed_by_the_next(server: KubeflowServer, schedule: Apply, clock: ServerClock) -> None:
    """With the old one off and the new one not yet on, the moment that passes meanwhile is made up for."""
    schedule({"watch": "0,30 * * * *"})
    server.faults.append(Fault(STEPS[2], times=99))
    with pytest.raises(KubeflowError):
        schedule({"watch": "0,30 * * * *"}, ttl_hours=1)
    server.faults.clear()
    assert server.pass_time(NOON.replace(minute=45)) == []
    assert schedule({"watch": "0,30 * * * *"}, ttl_hours=1)[0].startswith("changed")
    started = server.pass_time(NOON.replace(hour=13, minute=10))
    assert [moment.strftime("%H:%M") for moment, _ in started] == ["12:30", "13:00"]


def test_one_that_runs_every_minute_is_not_waited_for(clock: ServerClock) -> None:
    time_before = clock.now()
    clock.wait_for_idle_window(["0 * * * * *"])
    assert clock.now() == time_before


@pytest.mark.parametrize(
    "expression",
    ["30 2 * * 1-5", "*/15 * * * 7", "0 0 1 jan *", "5 4 * * sun", "7 */6 1-10,20 * *", "0 0 */2 * 1", "@daily"],
)
def test_kubeflow_reads_the_same_moments(expression: str) -> None:
    written = six_fields(expression)
    check_cron(written)
    five_fields, six_fields_times = croniter(expression, NOON), croniter(written, NOON, second_at_beginning=True)
    assert [five_fields.get_next(datetime) for _ in range(50)] == [
        six_fields_times.get_next(datetime) for _ in range(50)
    ]


@pytest.mark.parametrize("expression", ["0 0 L * *", "0 0 * * 5#2", "0 0 * * L5"])
def test_cron_expressions_without_an_equivalent_are_refused(expression: str) -> None:
    with pytest.raises(ShortlistError, match=r"names a last day or an nth weekday, which Kubeflow's cron has not"):
        six_fields(expression)


@pytest.mark.parametrize("expression", ["0 3 * * *", "0 0 3 * * 7", "0 60 * * * *"])
def test_the_stand_in_refuses_the_same_requests_as_kubeflow(expression: str) -> None:
    with pytest.raises(Exception, match="not a supported format"):
        check_cron(expression)
