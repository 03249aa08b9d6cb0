"""Steps that begin a training, train models, and end it."""

from typing import List, NamedTuple  # noqa: UP035 - Kubeflow reads this spelling of List alone

from kfp import dsl


def claim_training(
    name: str,
    cause: dict,
    stores: str,
    code: str,
) -> NamedTuple("Claimed", [("Output", bool), ("cause", dict), ("reason", str)]):  # type: ignore[valid-type]
    """Record the start of a person's training; return whether this run trains, and its cause with the record's key.

    A training that a decision starts is recorded before. The output is named Output because kfp.local resolves no other
    name in a condition.
    """
    import sys
    from datetime import UTC, datetime

    from monitoring.retraining.training_starts import begin_submitted_training
    from monitoring.store.monitoring_store import open_monitoring_store
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.steps import note, step

    with step("claim_training"):
        trigger = TrainingTrigger.parse(cause)
        may_train, key, reason = True, trigger.key, ""
        if trigger.trigger == "manual":
            moment = datetime.fromisoformat(trigger.until) if trigger.until else None
            may_train, decision = begin_submitted_training(
                open_monitoring_store(stores, name), trigger.key, moment, datetime.now(UTC)
            )
            key = decision.key if may_train and decision is not None else ""
            if not may_train and decision is not None:
                reason = f"Nothing is trained: {decision.reasons[0]}."
                note(reason)
                sys.stdout.write(f"{reason}\n")
    return (may_train, {**cause, "key": key}, reason)


def find_champion(
    name: str,
    data: str,
    features: str,
    models: list,
    gates: str,
    gate_code: str,
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
        run = {"name": name, "stores": stores, "input_digest": log["digest"], "code": code, "gate_code": gate_code}
        context = RunContext(**run, cause=TrainingTrigger.parse(cause))
        baseline = find_run_baseline(context, [DeclaredModel.read(model) for model in models], began)
        rows, limits = Data.model_validate_json(data), Gates.model_validate_json(gates)
        collected, now = CollectedRows.describe_newest(rows, stores, name), freshness_moment(rows, began)
        read = [data, features, gates, gate_code, serving, runtime, code, now, log["location"], collected]
        cache_key = champion_cache_key(context, baseline, read)
    models_to_train = [model.text for model in baseline.models if not model.members]
    section_parts = (context.cause.until, now, list(limits.kept_columns(rows)), limits.skew_rows)
    start = began.isoformat(timespec="milliseconds")
    return (models_to_train, *cache_key, baseline.previous, collected, *section_parts, start, running_step.json)


def train(
    declared: str,
    name: str,
    runtime: str,
    log: dict,
    stores: str,
    cause: dict,
    code: str,
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    scores: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
) -> str:
    """Train one model, log it to MLflow, and score the validation and test days.

    Returns its name, kind, role and MLflow run, as JSON. The artefacts' metadata have the same values.
    """
    import json
    from pathlib import Path

    from shortlist.ranking.kind import DeclaredModel
    from shortlist.report.kubeflow_artefacts import show_metrics, training_numbers
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.training import train_and_track

    declared_model = DeclaredModel.read(declared)
    with step(f"train_{declared_model.name}") as running_step:
        inputs = Path(fitted.path), Path(table.path)
        outputs = Path(model.path), Path(scores.path)
        trigger = TrainingTrigger.parse(cause)
        context = RunContext(name=name, stores=stores, input_digest=log["digest"], code=code, cause=trigger)
        training = train_and_track(declared_model, Runtime.model_validate_json(runtime), context, *inputs, *outputs)
    declaration = {"model": declared_model.name, "kind": declared_model.kind, "role": declared_model.role}
    trained = {**declaration, "mlflow_run": training.run}
    write_metadata(model, **trained, begun=training.continued_from, step=running_step.record)
    write_metadata(scores, **trained)
    show_metrics(metrics, training_numbers(Path(model.path)))
    return json.dumps(trained)


def train_ensembles(
    declared: list,
    name: str,
    data: str,
    export_limits: str,
    serving: str,
    runtime: str,
    log: dict,
    stores: str,
    cause: dict,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    models: dsl.Input[List[dsl.Model]],  # noqa: UP006
    scores: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    ensembles: dsl.Output[dsl.Model],
    release: dsl.Input[dsl.Dataset] = None,
) -> list:
    """Train every ensemble, log it to MLflow, score its rows, validate its export, and make slates with it.

    Returns the name, kind, role and MLflow run of each, as JSON.
    """
    from pathlib import Path

    from shortlist.ranking.ranker import MemberFiles
    from shortlist.tracking.artefact_metadata import read_metadata, write_metadata
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import EnsembleSections, FeatureFolders, train_ensembles

    with step("train_ensembles") as running_step:
        scored = {read_metadata(artefact, "model"): Path(artefact.path) for artefact in scores}
        trained = {read_metadata(artefact, "model"): Path(artefact.path) for artefact in models}
        members = {model: MemberFiles(folder, scored[model]) for model, folder in trained.items()}
        sections = EnsembleSections.parse(data, export_limits, serving, runtime)
        trigger = TrainingTrigger.parse(cause)
        context = RunContext(name=name, stores=stores, input_digest=log["digest"], code=code, cause=trigger)
        stages = Path(release.path) if release else None
        folders = FeatureFolders(Path(valid_log.path), Path(fitted.path), Path(table.path), members, stages)
        trained_ensembles = train_ensembles(declared, folders, sections, context, Path(ensembles.path))
    write_metadata(ensembles, step=running_step.record)
    return trained_ensembles


def finalize_run(
    name: str, monitoring: str, stores: str, cause: dict, status: dsl.PipelineTaskFinalStatus
) -> None:  # fmt: skip
    """Mark what a failed pipeline left open as failed; report the end of a decision's training (page and alert)."""
    from shortlist.tracking.steps import failure_of_run, step

    with step("finalize_run"):
        if status.state != "SUCCEEDED":
            from monitoring.store.monitoring_store import open_monitoring_store
            from shortlist.tracking.run_context import RunContext

            reason = failure_of_run(status.error_message)
            RunContext(name=name, stores=stores).tracker.fail_pipeline(reason)
            if cause.get("key"):
                open_monitoring_store(stores, name).mark_failed(cause["key"], reason)
        if cause.get("key"):
            from monitoring.monitoring_job import report_ended_training
            from shortlist.spec.monitoring import Monitoring

            report_ended_training(name, stores, Monitoring.model_validate_json(monitoring))
