"""A run with nothing changed is not judged again; any other run has to beat the champion."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import yaml

from models.champion import serving_version
from models.foundations import Foundations
from models.repeating import Standing, standing_of
from models.training import Origin
from pipelines.compile import COMPILED
from shortlist.artefacts import write_json, write_manifest
from shortlist.tracking.lineage import Cause, Lineage

DECLARED = ("data", "features", "xgboost", "gates", "code")
Champion = Callable[[Standing], str]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    return Origin(name="repeated", stores=f"{tmp_path_factory.mktemp('stores')}#1", input_digest="log")


@pytest.fixture(scope="module")
def promoted(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Champion:
    """Register another model as the outcome of a run, and let it serve."""
    numbers = count()

    def promote(standing: Standing) -> str:
        number = next(numbers)
        folder = tmp_path_factory.mktemp("model")
        write_json(folder / "model.json", {"number": number})
        write_manifest(folder)
        lineage = Lineage(spec_digest="s", data_digest=str(number), days={}, code_version="c")
        run = origin.tracker.log_training(folder, "xgboost", {}, [], lineage)
        version = origin.tracker.registry.register(run, {**standing.tags(), "blessed": "true"})
        origin.tracker.registry.set_alias("champion", version)
        return str(version)

    return promote


def found(origin: Origin) -> Foundations:
    return Foundations(serving_version(origin), xgboost="", dlrm="", previous="")


def test_the_run_that_made_the_champion_is_told_what_it_was_told_then(origin: Origin, promoted: Champion) -> None:
    first = standing_of(origin, found(origin)._replace(version=""), DECLARED)
    assert first.version == ""
    one = promoted(first)
    assert standing_of(origin, found(origin), DECLARED) == first
    other = standing_of(origin, found(origin), ("data", "features", "deeper trees", "gates", "code"))
    assert other.version == one  # judged against it
    promoted(other)
    assert standing_of(origin, found(origin), ("data", "features", "deeper trees", "gates", "code")) == other


def test_another_champion_in_between_has_to_be_beaten(origin: Origin, promoted: Champion) -> None:
    first = standing_of(origin, found(origin), DECLARED)
    promoted(first)
    between = promoted(standing_of(origin, found(origin), ("other data", *DECLARED[1:])))
    assert standing_of(origin, found(origin), DECLARED).version == between


@pytest.mark.parametrize("changed", DECLARED)
def test_a_changed_section_or_code_has_to_beat_the_champion(origin: Origin, promoted: Champion, changed: str) -> None:
    champion = promoted(standing_of(origin, found(origin), DECLARED))
    assert standing_of(origin, found(origin), DECLARED).version != champion
    assert standing_of(origin, found(origin), [f"{one}!" if one == changed else one for one in DECLARED]).version == (
        champion
    )


CHANGES: dict[str, dict[str, Any]] = {
    "other rows": {"input_digest": "tomorrow's log"},
    "rows until another moment": {"cause": Cause(until="2026-01-12T00:00:00+00:00")},
    "a decision to train again": {"cause": Cause(trigger="drift", key="0" * 16)},
    "a log that the run reads itself": {"input_digest": ""},
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_rows_or_another_cause_have_to_beat_the_champion(origin: Origin, promoted: Champion, change: str) -> None:
    champion = promoted(standing_of(origin, found(origin), DECLARED))
    assert standing_of(origin.model_copy(update=CHANGES[change]), found(origin), DECLARED).version == champion


def test_a_log_of_unknown_content_is_never_the_same(origin: Origin, promoted: Champion) -> None:
    unread = origin.model_copy(update={"input_digest": ""})
    champion = promoted(standing_of(unread, found(origin), DECLARED))
    assert standing_of(unread, found(origin), DECLARED).version == champion


@pytest.mark.parametrize(
    "begun", [{"xgboost": "another run"}, {"dlrm": "another run"}, {"previous": "/other/features"}]
)
def test_going_on_from_elsewhere_has_to_beat_the_champion(
    origin: Origin, promoted: Champion, begun: dict[str, str]
) -> None:
    champion = promoted(standing_of(origin, found(origin), DECLARED))
    assert standing_of(origin, found(origin)._replace(**begun), DECLARED).version == champion


def test_a_champion_from_before_there_were_such_tags_has_to_be_beaten(origin: Origin, promoted: Champion) -> None:
    champion = promoted(Standing("", ""))
    assert standing_of(origin, found(origin), DECLARED).version == champion


@pytest.mark.parametrize("name", ["training", "training_wide"])
def test_what_was_scored_before_is_good_for_the_same_candidates_only(name: str) -> None:
    tasks = yaml.load((COMPILED / f"{name}.yaml").read_text(), yaml.CSafeLoader)["components"]["comp-exit-handler-1"]
    inputs = tasks["dag"]["tasks"]["score-champion"]["inputs"]["artifacts"]
    assert {inputs[kind]["taskOutputArtifact"]["outputArtifactKey"] for kind in ("xgboost", "dlrm")} == {"model"}
    assert len({inputs[kind]["taskOutputArtifact"]["producerTask"] for kind in ("xgboost", "dlrm")}) == 2
