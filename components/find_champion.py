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
    log: dict,
    stores: str,
    cause: dict,
) -> NamedTuple(  # type: ignore[valid-type]
    "Found",
    [
        ("Output", list),
        ("version", str),
        ("made_from", str),
        ("previous", str),
        ("collected", str),
        ("until", str),
        ("now", str),
        ("slices", list),
        ("skew_rows", int),
        ("started", str),
        ("step", str),
    ],
):
    """Return the models with the earlier models that they continue, the version to beat, and the time of the start.

    `made_from` is a digest of the run's inputs, among them the rows collected until now.

    The parts of `cause` and `gates` that cached steps read are outputs of their own, so that changes of the other parts
    do not re-run these steps. A training that a decision starts does not recount days of the newest features.

    The models are named Output because kfp.local loops over no other name. Ensembles are left out: `train_ensembles`
    trains them afterwards.
    """
    from datetime import UTC, datetime

    from shortlist.data.collected import CollectedRows
    from shortlist.data.until import freshness_moment
    from shortlist.ranking.kind import DeclaredModel
    from shortlist.spec.data import Data
    from shortlist.spec.gates import Gates
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.champion_cache import champion_cache_key
    from shortlist.training.run_baseline import find_run_baseline

    began = datetime.now(UTC)
    with step("find_champion") as running_step:
        run = {"name": name, "stores": stores, "input_digest": log["digest"], "code": code}
        context = RunContext(**run, cause=TrainingTrigger.parse(cause))
        baseline = find_run_baseline(context, [DeclaredModel.read(model) for model in models], began)
        rows, limits = Data.model_validate_json(data), Gates.model_validate_json(gates)
        collected, now = CollectedRows.describe_newest(rows, stores, name), freshness_moment(rows, began)
        read = [data, features, gates, serving, runtime, code, now, log["location"], collected]
        cache_key = champion_cache_key(context, baseline, read)
    models_to_train = [model.text for model in baseline.models if not model.members]
    section_parts = (context.cause.until, now, list(limits.slices), limits.skew_rows)
    start = began.isoformat(timespec="milliseconds")
    return (models_to_train, *cache_key, baseline.previous, collected, *section_parts, start, running_step.json)
