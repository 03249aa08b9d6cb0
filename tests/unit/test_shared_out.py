"""How the tests are shared out among processes."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_what_stays_together_is_there(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    named = {place for places in conftest._TOGETHER.values() for place in places}
    assert [place for place in named if not (TESTS / place).exists()] == []


def test_tests_that_look_at_one_run_stay_together(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    others = (path for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    asking = [path for path in others if "finished: Any" in path.read_text()]
    assert len(asking) >= 3
    assert {conftest._group(path) for path in asking} == {"finished"}
    assert conftest._group(TESTS / "graphs/test_training.py") == "training"
    assert conftest._group(Path(__file__)) == ""


def test_the_process_that_shares_tests_out_sees_their_groups(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs all tests: there is nothing to share out")
    own = Path(__file__).relative_to(TESTS).as_posix()
    assert request.node.nodeid.endswith(f"@{own}")  # what --dist loadgroup reads
