"""The webhook rows of the acceptance: the shipped receiver by exec in a pod, with PostgreSQL and Kubeflow's API."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import acceptance
import pytest
import yaml
from acceptance import Acceptance, RowFailedError, RowSkippedError
from acceptance_pipelines import KubeflowPipelines
from acceptance_receiver import PROGRAM, SELECTOR, ReceiverPod
from aiohttp import web
from kfp_server import Fault, KubeflowServer
from kubernetes import client

from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.retraining_starter import HOST_VARIABLE
from shortlist.spec.load import load_spec

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[3]
PODS = "/api/v1/namespaces/team-a/pods"


class PodAPI:
    """Kubernetes' API of one pod of the receiver: commands in it are processes of this machine."""

    def __init__(self) -> None:
        self.pods = [{"metadata": {"name": "shortlist-trigger-7d9f"}}]

    async def list_pods(self, request: web.Request) -> web.Response:
        """Answer a list of pods."""
        assert dict(request.query) == {"labelSelector": SELECTOR, "fieldSelector": "status.phase=Running"}
        return web.json_response({"kind": "PodList", "items": self.pods})

    async def run_command(self, request: web.Request) -> web.WebSocketResponse:
        """Run a command as the kubelet does: output on channels 1 and 2, the exit code on 3."""
        answer = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await answer.prepare(request)
        program, *arguments = request.query.getall("command")
        assert program == "python"
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        output, errors = await process.communicate()
        cause = {"reason": "ExitCode", "message": str(process.returncode)}
        status = {"status": "Failure", "details": {"causes": [cause]}} if process.returncode else {"status": "Success"}
        for channel, content in ((1, output), (2, errors), (3, json.dumps(status).encode())):
            await answer.send_bytes(bytes([channel]) + content)
        await answer.close()
        return answer


@pytest.fixture
def pod_api() -> Iterator[tuple[PodAPI, str]]:
    """The pod, and the address of its API."""
    api, loop = PodAPI(), asyncio.new_event_loop()
    application = web.Application()
    application.add_routes([web.get(PODS, api.list_pods), web.get(f"{PODS}/{{name}}/exec", api.run_command)])
    runner = web.AppRunner(application)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield api, asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


@pytest.fixture
def cluster(
    pod_api: tuple[PodAPI, str], server: KubeflowServer, postgres: str, changes: Callable[..., list[str]],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> tuple[Acceptance, ReceiverPod]:  # fmt: skip
    """A cluster of which the webhook rows are tried, and its receiver."""
    monkeypatch.setenv("SHORTLIST_DATABASE", postgres)
    monkeypatch.setenv(HOST_VARIABLE, server.url)
    spec: dict[str, Any] = yaml.safe_load((ROOT / "pipelines/specs/demo.yaml").read_text())
    for change in changes():
        section, _, content = change.partition("=")
        spec[section] = json.loads(content)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    receiver = ReceiverPod(client.Configuration(host=pod_api[1]), "team-a", yaml.safe_dump(spec | {"name": "alerted"}))
    pipelines = KubeflowPipelines(
        KubeflowClient(server.url, "ml"), lambda _: load_spec(tmp_path / "spec.yaml"), tmp_path
    )
    unused: Any = cast("Any", None)
    tried = Acceptance(
        api=unused, owner=unused, request=unused, command=unused, pipelines=pipelines,
        post_alert=receiver.post_alert, wait_seconds=0.2, look_seconds=0.05,
    )  # fmt: skip
    return tried, receiver


def test_a_forged_alert_is_refused_and_a_true_one_starts_a_run(
    cluster: tuple[Acceptance, ReceiverPod], server: KubeflowServer
) -> None:
    assert acceptance.a_forged_webhook_is_refused(cluster[0]) == "401"
    assert server.stored["runs"] == []
    assert acceptance.a_true_webhook_starts_a_run(cluster[0]) == "a run started"
    (run,) = server.stored["runs"]
    assert run["runtime_config"]["parameters"]["cause"]["trigger"] == "drift"
    assert cluster[0].pipelines is not None
    cast("KubeflowPipelines", cluster[0].pipelines).clean_up()
    assert server.stored["runs"] == []


def test_a_receiver_that_takes_every_token_fails_the_check(cluster: tuple[Acceptance, ReceiverPod]) -> None:
    fault = "from monitoring.receiver.bearer import BearerTokens\nBearerTokens.is_authorized = lambda *_: True\n"
    cluster[1].program = PROGRAM.replace("import secrets\n", f"import secrets\n{fault}", 1)
    with pytest.raises(RowFailedError, match="a forged alert got 200, wanted 401"):
        acceptance.a_forged_webhook_is_refused(cluster[0])


def test_a_receiver_that_may_not_start_runs_fails_the_check(
    cluster: tuple[Acceptance, ReceiverPod], server: KubeflowServer
) -> None:
    """As with a token of another audience, or without the Role in Kubeflow's API group."""
    server.faults.append(Fault("run_service_create_run", status=403, message="namespace is not yours"))
    with pytest.raises(RowFailedError, match="the alert got 503, wanted 200"):
        acceptance.a_true_webhook_starts_a_run(cluster[0])


def test_a_receiver_that_does_not_run_or_start_is_named(
    cluster: tuple[Acceptance, ReceiverPod], pod_api: tuple[PodAPI, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HOST_VARIABLE)
    with pytest.raises(RowFailedError, match="the receiver in shortlist-trigger-7d9f ended: the receiver does not"):
        acceptance.a_forged_webhook_is_refused(cluster[0])
    pod_api[0].pods = []
    with pytest.raises(RowSkippedError, match=r"no pod of the receiver .* runs in the namespace team-a"):
        acceptance.a_forged_webhook_is_refused(cluster[0])
