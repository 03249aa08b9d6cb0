"""A finished run of a small demo, which more than one module looks at: a run costs most of a minute."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pipelines.submit import run_here
from shortlist.config.load import parse_spec

_DEMO = Path(__file__).parents[2] / "pipelines/specs/demo.yaml"


class Finished(NamedTuple):
    """The first run of a spec in a folder of its own."""

    spec: dict[str, Any]
    """As plain data; whoever changes it takes a copy."""
    runs: Path
    code: int
    artefacts: Path
    """What its tasks wrote, each task in a folder of its own; no later run changes it."""


@pytest.fixture(scope="session")
def small_spec() -> dict[str, Any]:
    """The shipped demo on few rows, with trees alone, and watched."""
    spec: dict[str, Any] = yaml.safe_load(_DEMO.read_text())
    spec["data"]["source"] |= {"rows": 24_000, "users": 800, "items": 300, "days": 8}
    spec["models"] = {"xgboost": spec["models"]["xgboost"] | {"rounds": 60, "learning_rate": 0.2}}
    loose = {"max_calibration_error": 0.1, "max_rate_error": 0.3}
    spec["gates"] = {"min_auc": 0.52, "min_test_rows": 500, "bootstrap_rounds": 60, "skew_rows": 100, **loose}
    spec["gates"] |= {"infra": {"seconds": 0.5}, "parity_rows": 1_000}
    spec["monitoring"] = {"window": {"min_rows": 500}, "pages": "bad"}
    spec["schedule"] = {"retrain": "0 4 * * *"}
    return spec


@pytest.fixture(scope="session")
def finished(small_spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run; its stores may be added to, as users of a champion do."""
    runs = tmp_path_factory.mktemp("finished") / "runs"
    code = run_here(parse_spec(yaml.safe_dump(small_spec)), None, runs)
    (artefacts,) = runs.glob("cache/artefacts/*")
    return Finished(copy.deepcopy(small_spec), runs, code, artefacts)
