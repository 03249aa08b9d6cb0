import os
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.local.lifecycle import stack_down_reason, stop_stack
from shortlist.rollout.local.record import StackRecord
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.local.version import shared_memory_of
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.errors import PortTakenError, StackError
from shortlist.serving.triton.triton_home import VARIABLE
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError, write_json

INFER = "/v2/models/demo/infer"


def mentions(paths: ServingPaths) -> list[psutil.Process]:
    """Return the processes whose command line or environment contains a path."""
    processes = []
    for process in psutil.process_iter():
        try:
            process_words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(paths.root) in process_word for process_word in process_words):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def test_before_the_first_version_every_request_gets_an_explanation(
    tmp_path: Path, bring_up: Callable[..., Stack], ask: Callable[..., Any]
) -> None:
    paths = ServingPaths.for_spec(tmp_path / "an %s odd; #1 [folder]", "demo")
    assert Stack.connect(paths) is None
    stack = bring_up(paths)
    for method, path in (("POST", INFER), ("GET", "/v2/health/ready"), ("GET", "/nothing")):
        status, headers, body = ask(stack, method, path)
        assert (status, headers["content-type"]) == (503, "application/json")
        assert body == {"error": "no version of the model is being served yet; deploy one, then ask again"}
    assert stack.status().problems == (
        "No version is routed: every request is answered with 503 until one is deployed.",
    )
    second_stack = bring_up(paths)
    assert second_stack.port == stack.port
    assert [process.pid for process in second_stack.status().gateway] == [
        process.pid for process in stack.status().gateway
    ]
    assert Stack.connect(paths).port == stack.port
    assert stack.stop() == ["envoy-a", "envoy-b", "log-committer", "supervisord"]
    assert stack.stop() == []
    assert not stack.record.sockets.exists()
    assert mentions(paths) == []
    assert Stack.connect(paths) is None
    assert stack_down_reason(paths) == "nothing is being served."
    assert bring_up(paths).port == stack.port  # kept


def test_a_port_in_use_is_reported_with_its_process_and_nothing_is_started(
    tmp_path: Path, bring_up: Callable[..., Stack]
) -> None:
    paths = ServingPaths.for_spec(tmp_path, "demo")
    with socket.create_server(("127.0.0.1", 0)) as other_socket:
        port = other_socket.getsockname()[1]
        with pytest.raises(PortTakenError, match=rf"port {port} of 127.0.0.1 is taken by .*pid {os.getpid()}"):
            bring_up(paths, port=port)
    assert mentions(paths) == []
    assert StackRecord.read(paths.record) is None


def test_a_stack_whose_record_is_broken_can_be_stopped(tmp_path: Path) -> None:
    paths = ServingPaths.for_spec(tmp_path, "demo")
    paths.root.mkdir(parents=True)
    write_json(paths.record, {"model": "demo"})
    with pytest.raises(IntegrityError, match="stop the stack, delete this file, and serve again"):
        StackRecord.read(paths.record)
    assert stop_stack(paths) == []


@pytest.mark.long
def test_a_configuration_that_envoy_refuses_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bring_up: Callable[..., Stack]
) -> None:
    paths = ServingPaths.for_spec(tmp_path, "demo")
    monkeypatch.setattr("shortlist.rollout.local.gateway.READY_SECONDS", 10.0)
    monkeypatch.setattr("shortlist.rollout.local.envoy.gateway.bootstrap", lambda *_: {"nonsense": True})
    with pytest.raises(StackError, match=r"(?s)envoy-a is not ready after 10 s.*nonsense"):
        bring_up(paths)
    assert mentions(paths) == []


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, bring_up: Callable[..., Stack], deployment: Callable[[int], Deployment]
) -> Stack:
    stack = bring_up(ServingPaths.for_spec(tmp_path_factory.mktemp("runs"), "demo"))
    stack.deploy(deployment(1), Serving())
    stack.wait_ready(1, 60)
    stack.route(Route(stable=1))
    return stack


def test_a_tampered_model_folder_is_not_deployed(stack: Stack, deployment: Callable[[int], Deployment]) -> None:
    tampered = deployment(2)
    (tampered.model_folder / "serving" / "model.onnx").write_bytes(b"another model")
    with pytest.raises(IntegrityError, match=r"model\.onnx: changed after it was written"):
        stack.deploy(tampered, Serving())
    with pytest.raises(IntegrityError, match="but 0000000000000000 was blessed"):
        stack.deploy(deployment(2).model_copy(update={"digest": "0" * 16}), Serving())
    assert list(stack.record.versions) == [1]
    assert not (stack.paths.versions / "v2").exists()


def test_a_version_never_changes_its_model(stack: Stack, deployment: Callable[[int], Deployment]) -> None:
    with pytest.raises(StackError, match="a registered version never changes"):
        stack.deploy(deployment(3).model_copy(update={"version": 1}), Serving())


def test_without_triton_nothing_is_deployed(
    stack: Stack, deployment: Callable[[int], Deployment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(StackError, match="run `make setup` once"):
        stack.deploy(deployment(3), Serving())
    assert list(stack.record.versions) == [1]


def test_only_this_users_processes_reach_a_triton_and_others_see_only_its_metrics(stack: Stack) -> None:
    triton = stack.health(1).triton.pid
    listening = {
        connection.laddr.port
        for connection in psutil.Process(triton).net_connections("inet")
        if connection.status == "LISTEN"
    }
    assert listening == {stack.record.versions[1].ports.triton_metrics}
    socket_file = stack.record.triton_socket(1)
    assert (socket_file.is_socket(), stat.S_IMODE(socket_file.parent.stat().st_mode)) == (True, 0o700)


def test_a_record_of_a_version_before_replicas_is_read(tmp_path: Path, stack: Stack) -> None:
    record = stack.record.model_dump(mode="json")
    (ports,) = record["versions"]["1"].pop("replicas")
    health = ports.pop("health")
    record["versions"]["1"]["ports"] = ports | {"triton_http": health, "triton_grpc": 2}
    write_json(tmp_path / "stack.json", record)
    assert StackRecord.read(tmp_path / "stack.json") == stack.record


def test_deploying_again_has_no_effect(stack: Stack, deployment: Callable[[int], Deployment]) -> None:
    old_health = stack.health(1)
    stack.deploy(stack.record.versions[1].deployment, Serving())
    new_health = stack.health(1)
    assert (old_health.server.pid, old_health.triton.pid) == (new_health.server.pid, new_health.triton.pid)


def test_a_changed_repository_is_not_started_until_it_is_redeployed(
    stack: Stack, deployment: Callable[[int], Deployment]
) -> None:
    graph = stack.paths.versions / "v1" / "repository" / "demo" / "1" / "model.onnx"
    graph.write_bytes(graph.read_bytes() + b"\0")
    os.kill(stack.health(1).triton.pid, 9)
    with pytest.raises(StackError, match=r"(?s)version 1 does not start.*model\.onnx: changed after it was written"):
        stack.wait_ready(1, 30)
    assert any("triton-v1 is not ready" in problem for problem in stack.status().problems)
    stack.deploy(stack.record.versions[1].deployment, Serving())
    stack.wait_ready(1, 30)


@pytest.mark.long
def test_a_version_that_crashes_on_load_is_retired(
    stack: Stack, deployment: Callable[[int], Deployment], ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    broken = deployment(4)
    serving = broken.model_folder / "serving"
    (serving / "model.onnx").write_bytes(b"no graph")
    from shortlist.storage.artefacts import folder_digest, write_manifest

    write_manifest(broken.model_folder)
    stack.deploy(broken.model_copy(update={"digest": folder_digest(broken.model_folder)}), Serving())
    with pytest.raises(StackError, match=r"(?s)version 4 does not start: triton-v4 ended 2 times"):
        stack.wait_ready(4, 60)
    stack.retire(4)
    stack.retire(4)
    assert (stack.paths.versions / "v4").is_dir()
    until(lambda: not any("/v4/" in " ".join(process.cmdline()) for process in mentions(stack.paths)))
    with pytest.raises(StackError, match=r"version 4 is not deployed; deployed: \[1\]"):
        stack.health(4)
    assert ask(stack, "POST", INFER, b"{}")[0] == 200


def test_a_version_with_traffic_is_not_retired_and_an_undeployed_one_gets_none(stack: Stack) -> None:
    with pytest.raises(StackError, match="version 1 is routed; route its users elsewhere"):
        stack.retire(1)
    with pytest.raises(StackError, match="version 9 is not deployed; deploy it before"):
        stack.route(Route(stable=9))
    assert stack.record.route == Route(stable=1)


def test_a_killed_supervisor_is_reported_and_its_processes_are_adopted(stack: Stack, ask: Callable[..., Any]) -> None:
    old_health, envoys = stack.health(1), [process.pid for process in stack.status().gateway]
    os.kill(int((stack.paths.programs / "supervisord.pid").read_text()), 9)
    assert ask(stack, "POST", INFER, b"{}")[0] == 200  # nobody notices yet
    assert Stack.connect(stack.paths) is None
    assert stack_down_reason(stack.paths).startswith(
        "the supervisor was killed; still running: envoy-a, envoy-b, log-committer, server-v1, triton-v1."
    )
    second_stack = Stack.up(stack.paths, "demo", Serving(), SQLiteOnline(), server=stack.record.server)
    assert second_stack.port == stack.port
    new_health = second_stack.wait_ready(1, 30)
    assert (new_health.server.pid, new_health.triton.pid) == (old_health.server.pid, old_health.triton.pid)
    assert [process.pid for process in second_stack.status().gateway] == envoys
    status, _, body = ask(second_stack, "POST", INFER, b"{}")
    assert (status, body["version"]) == (200, 1)


@pytest.mark.long
def test_an_adopted_program_is_supervised(stack: Stack, ask: Callable[..., Any], until: Callable[..., None]) -> None:
    second_stack = Stack.connect(stack.paths)
    assert second_stack is not None
    old_health = second_stack.health(1)
    os.kill(old_health.server.pid, 9)
    until(lambda: second_stack.health(1).ready and second_stack.health(1).server.pid != old_health.server.pid, 60)
    assert second_stack.health(1).triton.pid == old_health.triton.pid
    assert ask(second_stack, "POST", INFER, b"{}")[0] == 200


@pytest.mark.long
def test_only_unresponsive_programs_are_restarted(
    stack: Stack, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shortlist.rollout.local.lifecycle.BUSY_SECONDS", 2.0)
    old_health = stack.health(1)
    os.kill(int((stack.paths.programs / "supervisord.pid").read_text()), 9)
    os.kill(old_health.server.pid, signal.SIGSTOP)
    second_stack = Stack.up(stack.paths, "demo", Serving(), SQLiteOnline(), server=stack.record.server)
    new_health = second_stack.wait_ready(1, 60)
    assert (new_health.triton.pid, new_health.server.pid != old_health.server.pid) == (old_health.triton.pid, True)
    assert ask(second_stack, "POST", INFER, b"{}")[0] == 200


@pytest.mark.long
def test_a_killed_supervisor_is_started_again_by_who_asks_for_the_health_of_a_version(stack: Stack) -> None:
    second_stack = Stack.connect(stack.paths)
    assert second_stack is not None
    old_health = second_stack.health(1)
    os.kill(int((stack.paths.programs / "supervisord.pid").read_text()), 9)
    new_health = second_stack.health(1)
    assert (new_health.ready, new_health.restarts) == (True, old_health.restarts)
    assert [program.pid for program in new_health.programs] == [program.pid for program in old_health.programs]
    assert Stack.connect(stack.paths) is not None


@pytest.mark.long
def test_a_stack_that_was_stopped_stays_stopped_and_takes_routes_for_its_next_start(
    stack: Stack, deployment: Callable[[int], Deployment], ask: Callable[..., Any]
) -> None:
    stack.deploy(deployment(5), Serving())
    stack.wait_ready(5, 60)
    stack.route(Route(stable=1, canary=5, percent=50, rollout="r1", step=0))
    stack.stop()
    with pytest.raises(StackError, match="the stack was stopped; make serve SPEC="):
        stack.health(5)
    stack.route(Route(stable=1))  # as the controller of a rollout does
    stack.retire(5)
    assert mentions(stack.paths) == []
    second_stack = Stack.up(stack.paths, "demo", Serving(), SQLiteOnline(), server=stack.record.server)
    second_stack.wait_ready(1, 60)
    assert list(second_stack.record.versions) == [1]
    assert ask(second_stack, "POST", INFER, b"{}")[2]["version"] == 1


@pytest.mark.long
def test_a_version_whose_served_model_was_changed_is_written_again_before_it_serves(stack: Stack) -> None:
    graph = stack.paths.versions / "v1" / "model" / "serving" / "model.onnx"
    graph_bytes = graph.read_bytes()
    graph.write_bytes(b"another model")
    Stack.up(stack.paths, "demo", Serving(), SQLiteOnline(), server=stack.record.server)
    assert graph.read_bytes() == graph_bytes
    graph.write_bytes(b"another model")
    source = stack.record.versions[1].deployment.model_folder
    source.rename(source.with_name("away"))
    try:
        with pytest.raises(IntegrityError, match="no such folder"):
            Stack.up(stack.paths, "demo", Serving(), SQLiteOnline(), server=stack.record.server)
    finally:
        source.with_name("away").rename(source)
        graph.write_bytes(graph_bytes)


def test_logs_secrets_and_shared_memory_are_read_by_this_user_alone(stack: Stack, until: Callable[..., None]) -> None:
    assert stat.S_IMODE(stack.paths.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(stack.paths.secrets.stat().st_mode) == 0o600
    regions = list(Path("/dev/shm").glob(f"{shared_memory_of(stack.paths)}*"))  # noqa: S108
    assert regions != []
    until(lambda: not [path for path in regions if stat.S_IMODE(path.stat().st_mode) & 0o077])


@pytest.mark.long
def test_stopping_after_the_supervisor_was_killed_leaves_no_process(stack: Stack) -> None:
    os.kill(int((stack.paths.programs / "supervisord.pid").read_text()), 9)
    assert stop_stack(stack.paths) == ["envoy-a", "envoy-b", "log-committer", "server-v1", "triton-v1"]
    assert mentions(stack.paths) == []
    assert not list(Path("/dev/shm").glob(f"{shared_memory_of(stack.paths)}*"))  # noqa: S108
