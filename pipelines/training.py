"""The training graph: from a raw log to a blessed model in front of users."""

from typing import Any

from kfp import dsl

from components.build_reference_profile import build_reference_profile
from components.build_release import build_release
from components.build_retrieval import build_retrieval
from components.evaluate_gates import evaluate_gates
from components.evaluate_slates import evaluate_slates
from components.finalize_run import finalize_run
from components.find_champion import find_champion
from components.materialize_features import materialize_features
from components.record_gate_failures import record_gate_failures
from components.register import register
from components.report import report
from components.roll_out import roll_out
from components.score_champion import score_champion
from components.train import train
from components.train_ensembles import train_ensembles
from components.validate_export import validate_export
from pipelines.feature_steps import add_feature_steps
from pipelines.log_steps import add_log_steps
from pipelines.parameters import describe_parameters
from pipelines.steps import add_step


@dsl.pipeline(name="shortlist-training", description="From a raw log to a blessed model in front of users")
@describe_parameters
def training(
    name: str,
    data: str,
    features: str,
    models: list,
    retrieval: str,
    filters: str,
    ordering: str,
    lists: str,
    gates: str,
    serving: str,
    monitoring: str,
    runtime: str,
    cluster: str,
    log: dict,
    stores: str,
    code: str,
    cause: dict = {},  # noqa: B006 - Kubeflow reads the default, nobody changes it
) -> None:
    """Run every step; each gets only the sections that it reads, and a changed section re-runs only its readers.

    Cached steps get parts of a parameter from `find_champion`.
    """
    closing = add_step(finalize_run, cached=False, name=name, stores=stores, cause=cause)
    with dsl.ExitHandler(closing):
        # Gets all inputs of the verdict. The others can change only the candidates' files, which are inputs of
        # score_champion.
        baseline = add_step(
            find_champion,
            cached=False,
            name=name,
            data=data,
            features=features,
            models=models,
            gates=gates,
            serving=serving,
            runtime=runtime,
            code=code,
            log=log,
            stores=stores,
            cause=cause,
        )
        common: dict[str, Any] = {"data": data, "runtime": runtime, "code": code}
        collected = baseline.outputs["collected"]
        moments = {"now": baseline.outputs["now"], "until": baseline.outputs["until"]}
        made_log = add_log_steps(common, log, collected, moments)
        declared: dict[str, Any] = {**common, "features": features, "slices": baseline.outputs["slices"]}
        feature_artefacts = add_feature_steps(
            declared, previous=baseline.outputs["previous"], valid_log=made_log.valid_log
        )
        features_of: dict[str, Any] = {"valid_log": made_log.valid_log, "fitted": feature_artefacts.fitted}

        candidates = add_step(
            build_retrieval, declared=retrieval, data=data, runtime=runtime, code=code, valid_log=made_log.valid_log
        )
        released = add_step(
            build_release,
            filters=filters,
            ordering=ordering,
            lists=lists,
            data=data,
            log=log,
            code=code,
            valid_log=made_log.valid_log,
            retrieval=candidates.outputs["retrieval"],
        )
        skew = add_step(
            materialize_features,
            name=name,
            runtime=runtime,
            skew_rows=baseline.outputs["skew_rows"],
            stores=stores,
            code=code,
            table=feature_artefacts.table,
            **features_of,
        )
        # Sequential on one machine; parallel on a cluster (`shortlist.kubeflow.cluster_graph`).
        with dsl.ParallelFor(items=baseline.outputs["Output"], name="models", parallelism=1) as declared_model:
            trained = add_step(
                train,
                declared=declared_model,
                name=name,
                runtime=runtime,
                log=log,
                stores=stores,
                cause=cause,
                code=code,
                fitted=feature_artefacts.fitted,
                table=feature_artefacts.table,
            )
            validated = add_step(
                validate_export,
                gates=gates,
                serving=serving,
                runtime=runtime,
                code=code,
                **features_of,
                model=trained.outputs["model"],
                scores=trained.outputs["scores"],
            )
        # Kubeflow modifies its arguments: every reader gets lists of its own.
        per_model = {"models": trained.outputs["model"], "scores": trained.outputs["scores"]}
        per_model["validations"] = validated.outputs["export_validation"]

        def all_of(*names: str) -> dict[str, Any]:
            return {name: dsl.Collected(per_model[name]) for name in names}

        combined = add_step(
            train_ensembles,
            declared=models,
            name=name,
            gates=gates,
            serving=serving,
            runtime=runtime,
            log=log,
            stores=stores,
            cause=cause,
            code=code,
            **features_of,
            table=feature_artefacts.table,
            **all_of("models", "scores"),
        )
        ensembles = combined.outputs["ensembles"]
        champion = add_step(
            score_champion,
            version=baseline.outputs["version"],
            name=name,
            stores=stores,
            retrieval=retrieval,
            **declared,
            **features_of,
            **all_of("models"),
            ensembles=ensembles,
        )
        slates = add_step(
            evaluate_slates,
            data=data,
            runtime=runtime,
            code=code,
            **features_of,
            release=released.outputs["release"],
            **all_of("models"),
            ensembles=ensembles,
        )
        judged = add_step(
            evaluate_gates,
            gates=gates,
            runtime=runtime,
            code=code,
            valid_log=made_log.valid_log,
            skew=skew.outputs["skew"],
            champion=champion.outputs["champion"],
            retrieval=candidates.outputs["retrieval"],
            slates=slates.outputs["slates"],
            **all_of("models", "scores", "validations"),
            ensembles=ensembles,
        )
        profile = add_step(
            build_reference_profile,
            name=name,
            data=data,
            features=features,
            monitoring=monitoring,
            code=code,
            **features_of,
            **all_of("scores"),
            ensembles=ensembles,
        )
        registration = {"name": name, "stores": stores, "code": code, "verdict": judged.outputs["verdict"]}
        registration["ensembles"] = combined.outputs["Output"]
        with dsl.If(judged.outputs["Output"] != "none", name="blessed"):
            champion_inputs = {
                "version_to_beat": baseline.outputs["version"],
                "made_from": baseline.outputs["made_from"],
            }
            # Kubeflow cannot resolve a OneOf whose producers are all cached, which start no launcher.
            registered = add_step(
                register,
                cached=False,
                **registration,
                **champion_inputs,
                trained=dsl.Collected(trained.outputs["Output"]),
                reference=profile.outputs["reference"],
                release=released.outputs["release"],
            )
        with dsl.Else(name="held"):
            unregistered = add_step(
                record_gate_failures,
                cached=False,
                **registration,
                trained=dsl.Collected(trained.outputs["Output"]),
            )
        version = dsl.OneOf(registered.outputs["version"], unregistered.outputs["version"])
        page = add_step(
            report,
            cached=False,
            name=name,
            gates=gates,
            runtime=runtime,
            stores=stores,
            log=log,
            cause=cause,
            code=code,
            version=version,
            started=baseline.outputs["started"],
            baseline_step=baseline.outputs["step"],
            registered=dsl.OneOf(registered.outputs["step"], unregistered.outputs["step"]),
            raw_log=made_log.raw_log,
            valid_log=made_log.valid_log,
            quarantine=made_log.quarantine,
            fitted=feature_artefacts.fitted,
            table=feature_artefacts.table,
            skew=skew.outputs["skew"],
            retrieval=candidates.outputs["retrieval"],
            release=released.outputs["release"],
            champion=champion.outputs["champion"],
            slates=slates.outputs["slates"],
            verdict=judged.outputs["verdict"],
            **all_of("models", "scores", "validations"),
            ensembles=ensembles,
        )
        rolled = add_step(
            roll_out,
            cached=False,
            version=version,
            name=name,
            data=data,
            serving=serving,
            gates=gates,
            runtime=runtime,
            cluster=cluster,
            stores=stores,
            cause=cause,
            code=code,
        )
        rolled.after(page)
