"""What holds for every test, and a finished run that several folders look at."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import HealthCheck, settings

from shortlist.system.project import use_project

use_project()  # for processes that tests start in other folders

# Idle OpenMP threads of several test processes, and of servers, otherwise spin on the cores that others need: half of
# the processor time of tests that train networks. Read when torch, XGBoost and others are first imported.
os.environ |= {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}

# How long an example takes says something about the machine, not about the code.
_EXAMPLES: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", max_examples=50, **_EXAMPLES)
settings.register_profile("thorough", max_examples=1_000, **_EXAMPLES)  # pytest --hypothesis-profile=thorough
settings.load_profile("suite")

_HERE = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(_HERE / "kubeflow_backend"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
"""Processes that run graphs then hand to steps what Kubeflow's backend hands to them."""
FEWER_STATISTICS = ("creator_rate", "tags_rate", "country_tags_rate", "age_tags_rate", "surface_device_rate")
"""Features of the demo that small runs do without: others are of the same kind, and each has a view of its own in
Feast, which takes time to fill (4.0 instead of 5.5 processor seconds a run)."""
_DEMO = _HERE.parent / "pipelines/specs/demo.yaml"
_TOGETHER = {
    "training": ("graphs/test_training.py",),
    "unseen logs": ("graphs/test_unseen_logs.py",),
    "rollouts": ("serving/rollouts",),
    "drill": ("serving/test_drill.py",),
    "loop": ("graphs/test_loop.py",),
    "every kind": ("graphs/test_every_kind.py",),
    "tutorial": ("graphs/test_tutorial.py",),
    "installed": ("graphs/test_installed.py",),
    "sequences": ("graphs/test_sequences.py",),
    "hours and slates": ("graphs/test_hours_and_slates.py",),
    "text vectors": ("graphs/test_text_vectors.py",),
    "finished": ("graphs", "cluster/test_profile_run.py"),
    "validation": ("unit/serving/validation",),
    "server": ("unit/serving/server",),
    "export": ("unit/serving/export",),
}
"""Where several processes share the tests: whose tests one of them runs, because they look at one expensive thing.

The longest come first, so that none is left running alone at the end. All other files come after them, one by one.
"""
_LEFT_OUT: dict[str, list[str]] = {"gpu": [], "long": []}
"""Files of the tests that are left out, one name per test, by marker."""
_REASONS = {
    "gpu": "tests that need a GPU were left out (make test-gpu runs them)",
    "long": "long tests were left out (make test-long runs them)",
}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Share out whole groups, the longest first, and the other tests file by file, as `--dist loadgroup` reads it."""
    if hasattr(config, "workerinput"):  # one of several processes
        order = [*_TOGETHER, ""]
        items.sort(key=lambda item: order.index(_group(item.path)))
        for item in items:
            group = _group(item.path) or item.path.relative_to(_HERE).as_posix()
            item.add_marker(pytest.mark.xdist_group(group))


def _group(path: Path) -> str:
    return next((name for name, places in _TOGETHER.items() if _is_below(path, places)), "")


def _is_below(path: Path, places: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(_HERE / place) for place in places)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remember which tests are left out by their marker."""
    for marker, names in _LEFT_OUT.items():
        names.extend(item.path.name for item in items if item.get_closest_marker(marker))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that shows the summary what was left out in this one."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = _LEFT_OUT


@pytest.hookimpl(tryfirst=True)  # before pytest's cache remembers what failed
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take the group off a test's id, which pytest-xdist adds: `--last-failed` knows no test by such an id.

    It would run every test once more then.
    """
    if hasattr(report, "node"):  # in the process that shares out the tests
        report.nodeid = report.nodeid.rpartition("@")[0]


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    """Take what a process left out; all of them collect the same tests."""
    _LEFT_OUT.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say by name what was left out, so that nobody takes silence for a pass."""
    for marker, names in _LEFT_OUT.items():
        if f"not {marker}" in config.option.markexpr and names:
            terminalreporter.write_line(f"{len(names)} {_REASONS[marker]}: {', '.join(sorted(set(names)))}")


class Finished(NamedTuple):
    """The first run of a spec in a folder of its own."""

    spec: dict[str, Any]
    """As plain data; whoever changes it takes a copy."""
    runs: Path
    code: int
    artefacts: Path
    """What its tasks wrote, each task in a folder of its own; no later run changes it."""
    summary: dict[str, Any]


@pytest.fixture(scope="session")
def small_spec() -> dict[str, Any]:
    """The shipped demo on few rows and with fewer statistics, watched; clients bring their candidates.

    Its only candidate is trees; the baseline searches no settings.
    """
    spec: dict[str, Any] = yaml.safe_load(_DEMO.read_text())
    for stage in ("retrieval", "filters", "ordering"):
        del spec[stage]
    spec["data"]["source"] |= {"rows": 24_000, "users": 800, "items": 300, "days": 8}
    columns = spec["features"]["columns"]
    spec["features"]["columns"] = [one for one in columns if one.get("name") not in FEWER_STATISTICS]
    line = {"kind": "logistic", "role": "baseline", "features": ["*"], "bins": [0], "l2": [1e-5], "refit": False}
    trees = spec["models"]["xgboost"] | {"rounds": 60, "learning_rate": 0.2}
    trees["features"] = [name for name in trees["features"] if name not in FEWER_STATISTICS]
    spec["models"] = {"xgboost": trees, "logistic": line | {"epochs": 3}}
    loose = {"max_calibration_error": 0.1, "max_rate_error": 0.3}
    spec["gates"] = {"min_auc": 0.52, "min_test_rows": 500, "bootstrap_rounds": 60, "skew_rows": 100, **loose}
    spec["gates"] |= {"infra": {"seconds": 0.5}, "parity_rows": 1_000}
    spec["monitoring"] = {"window": {"min_rows": 500}, "pages": "bad"}
    spec["schedule"] = {"retrain": "0 4 * * *"}
    return spec


@pytest.fixture(scope="session")
def finished(small_spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run, which costs most of a minute; its stores may be added to, as users of a champion do."""
    from shortlist.runs.local_training import run_locally
    from shortlist.spec.load import parse_spec

    runs = tmp_path_factory.mktemp("finished") / "runs"
    code = run_locally(parse_spec(yaml.safe_dump(small_spec)), None, runs)
    (artefacts,) = runs.glob("cache/artefacts/*")
    summary = json.loads((runs / "latest/summary.json").read_text())
    return Finished(copy.deepcopy(small_spec), runs, code, artefacts, summary)


@pytest.fixture
def full_disk() -> Iterator[Callable[[Path], Any]]:
    """Return a context manager under which a folder lies on a disk without any room."""

    @contextmanager
    def full(folder: Path) -> Iterator[None]:
        folder.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "shortlist-test", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a full disk needs a file system of its own, which cannot be mounted: {done.stderr.strip()}")
        try:
            with (folder / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
                while filler.write(bytes(4096)):
                    pass
            yield
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S607

    yield full
