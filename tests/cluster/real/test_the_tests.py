"""The tests of `make test-cluster` run against a fake API server, and are skipped where no cluster is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
from bare_api import KUBERNETES, kubeconfig_of, running
from structural import definitions

pytestmark = pytest.mark.long

FILE = Path(__file__).with_name("test_real_cluster.py")


def test_they_pass_with_a_bare_api_server(tmp_path: Path) -> None:
    with running() as server:
        (tmp_path / "kubeconfig").write_text(kubeconfig_of(server.url))
        environment = {**os.environ, "SHORTLIST_TEST_KUBECONFIG": str(tmp_path / "kubeconfig")}
        environment.pop("PYTEST_ADDOPTS", None)
        # A killed controller takes its time, and test_rollout_on_kserve.py kills some.
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", "not killed"]
        command = [sys.executable, "-m", "pytest", str(FILE), *options]
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert completed.returncode == 0, completed.stdout[-8000:]
    assert "a bare API server: the tests play KServe's controller and the gateway" in completed.stdout
    assert "1 skipped" in completed.stdout  # what only KServe's own controller can say
    assert server.wrong == []
    assert "InferenceService demo-v1-01234567" in server.applied


def test_definitions_are_structural_schemas() -> None:
    for body in definitions().values():
        kubernetes_validate.validate(body, KUBERNETES, strict=True)
        schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert list(_unstructural(schema)) == [], body["metadata"]["name"]


def _unstructural(schema: dict[str, object], path: str = "") -> list[str]:
    """Return where a schema breaks the rules for structural schemas."""
    typed = {"type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"} & set(schema)
    problems = [] if typed else [f"{path}: no type"]
    if {"properties", "additionalProperties"} <= set(schema):
        problems.append(f"{path}: properties and additionalProperties")
    if schema.get("type") == "array" and "items" not in schema:
        problems.append(f"{path}: an array without items")
    inner = {**schema.get("properties", {})}  # type: ignore[dict-item]
    inner |= {name: schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)}
    for name, one in inner.items():
        problems += _unstructural(one, f"{path}.{name}")
    return problems


def test_without_a_cluster_they_are_skipped_with_the_reason(request: pytest.FixtureRequest) -> None:
    if os.environ.get("SHORTLIST_TEST_KUBECONFIG"):
        pytest.skip("a cluster is named")
    with pytest.raises(pytest.skip.Exception, match="no cluster is named: make test-cluster KUBECONFIG=path"):
        request.getfixturevalue("cluster")


@pytest.mark.parametrize("content", [None, "- no kubeconfig"])
def test_a_file_that_is_no_kubeconfig_ends_them_with_a_sentence(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    environment = {**os.environ, "SHORTLIST_TEST_KUBECONFIG": str(file)}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", str(FILE), "-q", "-n", "0", "-p", "no:cacheprovider"]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert completed.returncode == 2
    assert f"KUBECONFIG={file}: no kubeconfig" in completed.stdout + completed.stderr
    assert "Traceback" not in completed.stdout + completed.stderr
