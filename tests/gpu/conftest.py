"""Tests that need an NVIDIA GPU: each is skipped, with the reason, where there is none that torch can use."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec

_FOLDER = Path(__file__).parent


@cache
def _missing() -> str:
    """Return why there is no GPU here; empty: there is one."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this folder's tests where they cannot run; a module that says `DEVICE = "cpu"` can."""
    gpu_tests = [item for item in items if item.path.is_relative_to(_FOLDER) and item.get_closest_marker("gpu")]
    gpu_tests = [item for item in gpu_tests if getattr(getattr(item, "module", None), "DEVICE", "cuda") == "cuda"]
    if gpu_tests and (reason := _missing()):
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def demo() -> Spec:
    """The shipped demo, with a tenth of its rows."""
    return load_spec(_FOLDER.parents[1] / "pipelines/specs/demo.yaml", ["data.source.rows=20000"])


@pytest.fixture(scope="session")
def log(demo: Spec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its valid log."""
    folder = tmp_path_factory.mktemp("demo")
    ingest(demo.data, "", folder / "raw", demo.runtime)
    validate(demo.data, folder / "raw", folder / "log", folder / "bad", demo.runtime, datetime.now(UTC), None)
    return folder / "log"
