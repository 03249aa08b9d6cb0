"""A stand-in for Kubeflow Pipelines' server, and a spec with a cluster profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kfp_server import KubeflowServer, running

from shortlist.kubeflow.cluster_compile import CompiledGraphs
from shortlist.spec.load import canonical_json, load_spec
from shortlist.spec.spec import Spec

ROOT = Path(__file__).parents[3]
IMAGE = "registry.example/shortlist-pipeline@sha256:" + "0123456789abcdef" * 4
VARIABLES = {"SHORTLIST_REDIS": "redis", "MLFLOW_TRACKING_URI": "mlflow", "SHORTLIST_DATABASE": "postgres"}
CLUSTER: dict[str, Any] = {
    "namespace": "team-a",
    "images": {"pipeline": IMAGE, "gpu": IMAGE},
    "tasks": {"train_dlrm": {"gpus": 1, "cpu": "8", "memory": "32Gi"}},
    "secrets": [{"name": "shortlist-stores", "variables": VARIABLES}],
}

MakeSpec = Callable[..., Spec]


@pytest.fixture(scope="session")
def changes() -> Callable[..., list[str]]:
    """Return what makes of a shipped spec one for a cluster, as `--set` says it."""

    def spec_changes(schedule: dict[str, str] | None = None, **cluster: Any) -> list[str]:
        bucket = {"kind": "bucket", "url": "s3://models/shortlist"}
        runtime = {"profile": "cluster", "objects": bucket, "cluster": {**CLUSTER, **cluster}}
        # Servers there score candidates that clients bring.
        return [f"runtime={json.dumps(runtime)}", f"schedule={json.dumps(schedule or {})}"]

    return spec_changes


@pytest.fixture(scope="session")
def make_spec(changes: Callable[..., list[str]]) -> MakeSpec:
    def make(shipped: str = "demo", /, schedule: dict[str, str] | None = None, **cluster: Any) -> Spec:
        return load_spec(ROOT / f"pipelines/specs/{shipped}.yaml", changes(schedule, **cluster))

    return make


@pytest.fixture(scope="session")
def compile_spec(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Spec], CompiledGraphs]:
    """Return the compiled graphs of a spec; each is compiled once, which takes a second or two."""
    folder = tmp_path_factory.mktemp("compiled")

    @cache
    def compiled(cluster: str) -> CompiledGraphs:
        spec = load_spec(ROOT / "pipelines/specs/demo.yaml", [f"runtime={cluster}"])
        return CompiledGraphs.compile(spec, folder)

    return lambda spec: compiled(canonical_json(spec.runtime))


@pytest.fixture
def server() -> Iterator[KubeflowServer]:
    with running() as kubeflow:
        yield kubeflow


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SHORTLIST_IMAGE", "SHORTLIST_GPU_IMAGE", "SHORTLIST_TRITON_IMAGE", "SHORTLIST_KFP_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("KF_PIPELINES_ENDPOINT", "KF_PIPELINES_SA_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
