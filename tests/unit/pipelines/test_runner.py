"""Events of a run's child process about tasks that kfp.local found in its cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import dsl

from shortlist.contracts import Files
from shortlist.ranking.kind import DeclaredModel
from shortlist.runs.runner import CacheHits, depends_on_moment, roles_of
from shortlist.system.progress import EVENTS_VARIABLE, emit

TITLES = {"ingest": "ingest", "train": "train", "validate_export": "validate_export"}
ROLES = {"trees": "candidate", "network": "candidate", "popularity": "baseline"}


@pytest.fixture
def hit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """hit(task) lets kfp.local say so, and returns every step that was told as cached until then."""
    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_VARIABLE, str(events))
    handler = CacheHits(TITLES, ROLES)

    def say(task: str) -> list[str]:
        text = f"Task {task} cache hit (key=0123456789ab); skipping execution."
        handler.emit(logging.LogRecord("root", logging.INFO, __file__, 1, text, None, None))
        arguments = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        return [event["step"] for event in arguments if event["event"] == "cached"]

    return say


def test_a_cached_step_of_a_model_has_the_name_of_the_model(hit: Callable[[str], list[str]]) -> None:
    assert hit("ingest") == ["ingest"]
    assert hit("train") == ["ingest", "train_trees"]
    assert hit("validate_export") == ["ingest", "train_trees", "validate_export_trees"]
    emit({"event": "step", "step": "train_network", "paths": {}})  # trained anew
    emit({"event": "done", "name": "train_network"})
    assert hit("validate_export")[3:] == ["validate_export_network"]
    assert hit("train")[4:] == ["train_popularity"]


def test_the_validation_of_a_baseline_has_no_event(hit: Callable[[str], list[str]]) -> None:
    for name in ("train_trees", "train_network", "train_popularity"):
        emit({"event": "step", "step": name, "paths": {}})
    assert hit("validate_export") == []


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
