"""Kubeflow wrapper of shortlist.training.run_baseline: the champion and cached results that a run builds on."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def find_champion(
    name: str,
    data: str,
    features: str,
    models: list,
    gates: str,
    serving: str,
    runtime: str,
    code: str,
    now: str,
    location: str,
    input_digest: str,
    stores: str,
    trigger: str,
    reasons: list,
    key: str,
    until: str,
    previous: str,
) -> NamedTuple(  # type: ignore[valid-type]
    "Found",
    [
        ("Output", list),
        ("version", str),
        ("made_from", str),
        ("previous", str),
        ("collected", str),
        ("started", str),
        ("step", str),
    ],
):
    """Return the models with what each goes on from, the version to beat, what this is made from; and when it began.

    What it is made from includes the rows that were collected until now.

    The models are named Output because kfp.local loops over no other name.
    """
    from datetime import UTC, datetime

    from models.base import DeclaredModel
    from shortlist.data.collected import CollectedRows
    from shortlist.spec.data import Data
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.steps import step
    from shortlist.training.champion_cache import champion_cache_key
    from shortlist.training.run_baseline import find_run_baseline
    from shortlist.training.training import RunContext

    began = datetime.now(UTC)
    started = began.isoformat(timespec="milliseconds")
    with step("find_champion") as this:
        cause = TrainingTrigger.parse(trigger, key, reasons, until)
        origin = RunContext(name=name, stores=stores, input_digest=input_digest, code=code, cause=cause)
        found = find_run_baseline(origin, [DeclaredModel.read(model) for model in models], previous, began)
        collected = CollectedRows.newest(Data.model_validate_json(data), stores, name)
        declared = [data, features, gates, serving, runtime, code, now, location, collected]
        standing = champion_cache_key(origin, found, declared)
    # Models that are made of others are trained afterwards, by `train_ensembles`.
    first = [model.text for model in found.models if not model.members]
    return (first, *standing, found.previous, collected, started, this.json)
