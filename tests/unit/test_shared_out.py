"""Groups of tests that run in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_paths_of_test_groups_exist(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    grouped_paths = {place for places in conftest._TOGETHER.values() for place in places}
    assert [place for place in grouped_paths if not (TESTS / place).exists()] == []


def test_tests_of_one_finished_run_are_in_one_group(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    other_files = (path for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    files_with_finished = [path for path in other_files if "finished: Any" in path.read_text()]
    assert len(files_with_finished) >= 3
    assert {conftest._group(path) for path in files_with_finished} == {"finished"}
    assert conftest._group(TESTS / "graphs/test_training.py") == "training"
    assert conftest._group(Path(__file__)) == ""


def test_node_ids_carry_the_group_for_xdist(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs all tests: there is nothing to share out")
    relative_path = Path(__file__).relative_to(TESTS).as_posix()
    assert request.node.nodeid.endswith(f"@{relative_path}")  # what --dist loadgroup reads


def test_failures_are_remembered_without_the_group(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    report = pytest.TestReport("test_a.py::test_b[x@y]@group", ("", 0, ""), {}, "failed", None, "call")
    conftest.pytest_runtest_logreport(report)
    assert report.nodeid == "test_a.py::test_b[x@y]@group"  # one process runs all tests
    report.node = object()
    conftest.pytest_runtest_logreport(report)
    assert report.nodeid == "test_a.py::test_b[x@y]"
