"""The image's `shortlist`, in a pod of the tests' cluster: `pod_program.py FOLDER URL COMMAND...`.

What a pod has and this machine has not is played: the API server's address and token, the bucket (a folder), the
registry (a folder) and the version's servers, whose name is printed when it is asked for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from kserve_world import Script, World  # noqa: E402
from kubernetes import client  # noqa: E402

from shortlist.cli import main, serving  # noqa: E402
from shortlist.rollout.deployment import Deployment  # noqa: E402
from shortlist.rollout.fleet_connection import FleetContext  # noqa: E402
from shortlist.rollout.kserve import connection  # noqa: E402
from shortlist.rollout.kserve.connection import KServeConnection  # noqa: E402
from shortlist.storage.storage_config import StorageConfig  # noqa: E402
from shortlist.tracking.run_context import RunContext  # noqa: E402


def load_failures(self: KServeConnection, deployment: Deployment) -> list[str]:
    sys.stdout.write(f"load test of {self._host(deployment)}\n")
    return []


def run(folder: Path, url: str, arguments: list[str]) -> None:
    os.environ["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
    configuration = client.Configuration(host=url)
    configuration.api_key = {"authorization": "Bearer shortlist-rollout"}
    world = World(folder, url)
    stores = StorageConfig(folder=folder / "stores", cluster="eu-1", objects="s3://b/p", log_in_objects=True)
    connection.connect = lambda: client.ApiClient(configuration)
    connection.open_object_store = lambda _: world.objects
    FleetContext.served_store = None  # type: ignore[assignment]
    FleetContext.answer_failures = lambda *_: []  # type: ignore[method-assign,assignment]
    KServeConnection.poll_seconds = 0.01
    KServeConnection.load_failures = load_failures  # type: ignore[method-assign]
    KServeConnection.observe = lambda *_: Script()  # type: ignore[method-assign,assignment,return-value]
    RunContext.tracker = SimpleNamespace(registry=world.models)  # type: ignore[assignment]
    serving._run_context = lambda spec, runs: RunContext(name=spec.name, stores=str(stores))
    sys.argv = ["shortlist", *arguments]
    main()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
