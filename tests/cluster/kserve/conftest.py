"""A fake cluster for the tests of the rollout on KServe, and a spec with two blessed versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kserve_world import World
from kube_server import KubeServer, running


@pytest.fixture
def kube() -> Iterator[KubeServer]:
    """A Kubernetes API server."""
    with running() as server:
        yield server


@pytest.fixture
def world(kube: KubeServer, tmp_path: Path) -> World:
    """Version 1 serves everybody, version 2 is the blessed candidate."""
    kserve_world = World(tmp_path, kube.url)
    kserve_world.serve(1)
    return kserve_world


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.rollout.rollouts.write_page", lambda record, out: None)
