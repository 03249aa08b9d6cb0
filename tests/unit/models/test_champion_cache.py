"""A run with nothing changed is not judged again; any other run has to beat the champion."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import yaml

from pipelines.compile import COMPILED
from shortlist.ranking.kind import DeclaredModel
from shortlist.storage.artefacts import write_json, write_manifest
from shortlist.tracking.lineage import Lineage, TrainingTrigger
from shortlist.tracking.run_context import RunContext
from shortlist.training.champion import version_to_beat
from shortlist.training.champion_cache import ChampionCacheKey, champion_cache_key
from shortlist.training.run_baseline import RunBaseline

DECLARED = ("data", "features", "serving", "gates", "code")
MODELS = tuple(DeclaredModel(name=name, section={"kind": "xgboost", "role": "candidate"}) for name in ("deep", "flat"))
Champion = Callable[[ChampionCacheKey], str]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    return RunContext(name="repeated", stores=f"{tmp_path_factory.mktemp('stores')}#1", input_digest="log")


@pytest.fixture(scope="module")
def promoted(origin: RunContext, tmp_path_factory: pytest.TempPathFactory) -> Champion:
    """Register another model as the outcome of a run, and let it serve."""
    numbers = count()

    def promote(standing: ChampionCacheKey) -> str:
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


def baseline_of(origin: RunContext) -> RunBaseline:
    return RunBaseline(version_to_beat(origin), models=MODELS, previous="")


def test_the_champions_own_run_gets_the_key_of_its_training(origin: RunContext, promoted: Champion) -> None:
    first = champion_cache_key(origin, baseline_of(origin)._replace(version=""), DECLARED)
    assert first.version == ""
    first_champion = promoted(first)
    assert champion_cache_key(origin, baseline_of(origin), DECLARED) == first
    changed_key = champion_cache_key(
        origin, baseline_of(origin), ("data", "features", "more canaries", "gates", "code")
    )
    assert changed_key.version == first_champion  # judged against it
    promoted(changed_key)
    assert (
        champion_cache_key(origin, baseline_of(origin), ("data", "features", "more canaries", "gates", "code"))
        == changed_key
    )


def test_another_champion_in_between_has_to_be_beaten(origin: RunContext, promoted: Champion) -> None:
    first = champion_cache_key(origin, baseline_of(origin), DECLARED)
    promoted(first)
    second_champion = promoted(champion_cache_key(origin, baseline_of(origin), ("other data", *DECLARED[1:])))
    assert champion_cache_key(origin, baseline_of(origin), DECLARED).version == second_champion


@pytest.mark.parametrize("changed", DECLARED)
def test_a_changed_section_or_code_has_to_beat_the_champion(
    origin: RunContext, promoted: Champion, changed: str
) -> None:
    champion = promoted(champion_cache_key(origin, baseline_of(origin), DECLARED))
    assert champion_cache_key(origin, baseline_of(origin), DECLARED).version != champion
    assert champion_cache_key(
        origin, baseline_of(origin), [f"{digest}!" if digest == changed else digest for digest in DECLARED]
    ).version == (champion)


CHANGES: dict[str, dict[str, Any]] = {
    "other rows": {"input_digest": "tomorrow's log"},
    "rows until another moment": {"cause": TrainingTrigger(until="2026-01-12T00:00:00+00:00")},
    "a decision to train again": {"cause": TrainingTrigger(trigger="drift", key="0" * 16)},
    "a log that the run reads itself": {"input_digest": ""},
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_rows_or_another_cause_have_to_beat_the_champion(
    origin: RunContext, promoted: Champion, change: str
) -> None:
    champion = promoted(champion_cache_key(origin, baseline_of(origin), DECLARED))
    assert (
        champion_cache_key(origin.model_copy(update=CHANGES[change]), baseline_of(origin), DECLARED).version == champion
    )


def test_a_log_of_unknown_content_is_never_the_same(origin: RunContext, promoted: Champion) -> None:
    unread = origin.model_copy(update={"input_digest": ""})
    champion = promoted(champion_cache_key(unread, baseline_of(origin), DECLARED))
    assert champion_cache_key(unread, baseline_of(origin), DECLARED).version == champion


@pytest.mark.parametrize(
    "changes",
    [
        {"models": (MODELS[0].model_copy(update={"previous_run": "another run"}), MODELS[1])},
        {"models": (MODELS[0], MODELS[1].model_copy(update={"previous_run": "another run"}))},
        {"models": (MODELS[0].model_copy(update={"section": {"kind": "xgboost", "max_depth": 2}}), MODELS[1])},
        {"models": MODELS[:1]},
        {"previous": "/other/features"},
    ],
)
def test_going_on_from_elsewhere_has_to_beat_the_champion(
    origin: RunContext, promoted: Champion, changes: dict[str, Any]
) -> None:
    champion = promoted(champion_cache_key(origin, baseline_of(origin), DECLARED))
    assert champion_cache_key(origin, baseline_of(origin)._replace(**changes), DECLARED).version == champion


def test_a_champion_from_before_there_were_such_tags_has_to_be_beaten(origin: RunContext, promoted: Champion) -> None:
    champion = promoted(ChampionCacheKey("", ""))
    assert champion_cache_key(origin, baseline_of(origin), DECLARED).version == champion


def test_scores_of_the_champion_hold_for_the_same_candidates() -> None:
    tasks = yaml.load((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader)["components"]["comp-exit-handler-1"]
    inputs = tasks["dag"]["tasks"]["score-champion"]["inputs"]["artifacts"]
    assert inputs["models"]["taskOutputArtifact"]["outputArtifactKey"] == "pipelinechannel--train-model"


def test_a_models_cluster_does_not_change_the_key(origin: RunContext, promoted: Champion) -> None:
    first = champion_cache_key(origin, baseline_of(origin), DECLARED)
    promoted(first)
    elsewhere = tuple(model.model_copy(update={"cluster": '{"namespace": "other"}'}) for model in MODELS)
    assert champion_cache_key(origin, baseline_of(origin)._replace(models=elsewhere), DECLARED) == first
