"""Roles of a run's models, and outputs that no later run reuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kfp import dsl

from shortlist.contracts import Files
from shortlist.ranking.kind import DeclaredModel
from shortlist.runs.local_training import thread_variables
from shortlist.runs.runner import depends_on_moment, roles_of
from shortlist.spec.runtime import Runtime

ROLES = {"trees": "candidate", "network": "candidate", "popularity": "baseline"}


def test_the_roles_are_those_of_the_graphs_arguments() -> None:
    models = [DeclaredModel(name=name, section={"kind": "xgboost", "role": role}).text for name, role in ROLES.items()]
    assert list(roles_of({"models": models}).items()) == list(ROLES.items())
    assert roles_of({}) == {}


@pytest.mark.parametrize("folder", ["", "blend/export_validation"])  # of a model, and of an ensemble
@pytest.mark.parametrize("of_the_moment", [True, False])
def test_an_output_with_a_verdict_of_the_moment_is_recognised(
    tmp_path: Path, folder: str, *, of_the_moment: bool
) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / Files.EXPORT_VALIDATION).write_text(json.dumps({"depends_on_moment": of_the_moment}))
    assert depends_on_moment(dsl.Dataset(uri=str(tmp_path))) == of_the_moment
    assert not depends_on_moment("a parameter")


@pytest.mark.parametrize(("cores", "steps", "threads"), [(8, 2, "4"), (2, 2, "1"), (1, 2, "1")])
def test_steps_that_share_the_cores_have_a_part_of_the_threads(
    monkeypatch: pytest.MonkeyPatch, cores: int, steps: int, threads: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert thread_variables(Runtime(steps_at_once=steps, share_cores=True))["OMP_NUM_THREADS"] == threads
    assert "OMP_NUM_THREADS" not in thread_variables(Runtime(steps_at_once=steps))
