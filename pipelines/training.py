"""The training graph: from a raw log to a blessed model in front of users."""

from typing import Any

from kfp import dsl

from components.features import build_table, fit_features, materialize_features
from components.gates import build_reference_profile, evaluate_gates, score_champion, validate_export
from components.release import build_release, record_gate_failures, register, roll_out
from components.report import report
from components.retrieval import build_retrieval, evaluate_slates
from components.training import finalize_run, find_champion, train, train_ensembles
from pipelines.graph import PipelineBuilder
from pipelines.graph_step import GraphStep
from pipelines.log_steps import LogArtefacts, add_log_steps
from shortlist.spec.spec import Spec

SLATE_PARAMETERS = ("retrieval", "filters", "ordering", "lists")
"""Parameters that only a spec with retrieval has."""

Artefacts = dict[str, Any]
"""Outputs of steps, by the name of the input that reads them."""


def training_parameters(spec: Spec) -> tuple[str, ...]:
    """Return the parameters of a spec's training graph."""
    return (
        *("name", "data", "features", "models"),
        *(SLATE_PARAMETERS if spec.retrieval else ()),
        *("gates", "gate_code", "export_limits", "serving", "monitoring", "runtime", "cluster", "log", "stores"),
        *("code", "cause", "with_rollout"),
    )


def build_training(graph: PipelineBuilder, name: str = "shortlist-training") -> Any:
    """Return the training graph.

    Each step gets only the sections that it reads, and a changed section re-runs only its readers. Cached steps get
    parts of a parameter from `find_champion`.

    Args:
        graph: Builder of the spec's graphs.
        name: Name of the pipeline.
    """

    @graph.pipeline(name, "From a raw log to a blessed model in front of users", training_parameters(graph.spec))
    def training() -> None:
        """Train every declared model, judge the candidates, and roll the blessed one out."""
        closing = graph.add(finalize_run, cached=False)
        with dsl.ExitHandler(closing.task):
            # Gets all inputs of the verdict. The others can change only the candidates' files, which are inputs of
            # score_champion.
            with graph.stage("start"):
                graph.store_sections()
                baseline = graph.add(find_champion, cached=False)
            with graph.stage("data"):
                log = add_log_steps(graph, baseline["collected"], baseline["now"], baseline["until"])
                made: Artefacts = {"valid_log": log.valid_log}
                made |= _add_feature_steps(graph, baseline, log)
                if graph.spec.retrieval:
                    made |= _add_retrieval_steps(graph, log)
            made |= _add_model_steps(graph, baseline, made)
            made |= _add_gate_steps(graph, baseline, made)
            _add_release_steps(graph, baseline, log, made)

    return training


def _add_feature_steps(graph: PipelineBuilder, baseline: GraphStep, log: LogArtefacts) -> Artefacts:
    declared: dict[str, Any] = {"slices": baseline["slices"], "valid_log": log.valid_log}
    with graph.stage("features"):
        fitted = graph.add(fit_features, previous=baseline["previous"], **declared)["fitted"]
        table = graph.add(build_table, fitted=fitted, **declared)["table"]
        stored = graph.add(
            materialize_features, skew_rows=baseline["skew_rows"], valid_log=log.valid_log, fitted=fitted, table=table
        )
    return {"fitted": fitted, "table": table, "skew": stored["skew"]}


def _add_retrieval_steps(graph: PipelineBuilder, log: LogArtefacts) -> Artefacts:
    with graph.stage("retrieval"):
        declared = graph.parameter("retrieval")
        sources = graph.add(build_retrieval, declared=declared, valid_log=log.valid_log)["retrieval"]
        release = graph.add(build_release, valid_log=log.valid_log, retrieval=sources)["release"]
    return {"retrieval": sources, "release": release}


def _add_model_steps(graph: PipelineBuilder, baseline: GraphStep, made: Artefacts) -> Artefacts:
    """Add the steps of every model; ensembles are trained afterwards, in one step."""
    features: Artefacts = {name: made[name] for name in ("valid_log", "fitted")}
    models = baseline["Output"].channel
    parallelism = None if graph.target.is_parallel else 1
    with dsl.ParallelFor(items=models, name="models", parallelism=parallelism) as declared, graph.stage("model"):
        trained = graph.add(train, declared=declared, fitted=made["fitted"], table=made["table"])
        validated = graph.add(validate_export, **features, model=trained["model"], scores=trained["scores"])
        if "release" in made:
            evaluated = graph.add(evaluate_slates, **features, release=made["release"], model=trained["model"])
    outputs: Artefacts = {
        "models": trained["model"].collected,
        "scores": trained["scores"].collected,
        "validations": validated["export_validation"].collected,
        "trained": trained["Output"].collected,
    }
    if "release" in made:
        outputs["slates"] = evaluated["slates"].collected
    if any(model.members for model in graph.spec.models.values()):
        members: Artefacts = {name: outputs[name] for name in ("models", "scores")}
        members |= {"table": made["table"], "release": made.get("release")}
        combined = graph.add(train_ensembles, declared=graph.parameter("models"), **features, **members)
        outputs |= {"ensembles": combined["ensembles"], "trained_ensembles": combined["Output"]}
    return outputs


def _add_gate_steps(graph: PipelineBuilder, baseline: GraphStep, made: Artefacts) -> Artefacts:
    features: Artefacts = {name: made[name] for name in ("valid_log", "fitted")}
    candidates: Artefacts = {"models": made["models"], "ensembles": made.get("ensembles")}
    measures: Artefacts = {name: made[name] for name in ("scores", "validations", "skew")}
    with graph.stage("gates"):
        champion = graph.add(
            score_champion,
            version=baseline["version"],
            slices=baseline["slices"],
            until=baseline["until"],
            slates=graph.spec.retrieval is not None,
            **features,
            **candidates,
        )
        judged = graph.add(
            evaluate_gates,
            valid_log=made["valid_log"],
            champion=champion["champion"],
            retrieval=made.get("retrieval"),
            slates=made.get("slates"),
            **measures,
            **candidates,
        )
        profile = graph.add(
            build_reference_profile, **features, scores=made["scores"], release=made.get("release"), **candidates
        )
    judgement = {"champion": champion["champion"], "verdict": judged["verdict"], "blessed": judged["Output"]}
    return judgement | {"reference": profile["reference"]}


def _add_release_steps(graph: PipelineBuilder, baseline: GraphStep, log: LogArtefacts, made: Artefacts) -> None:
    verdict: Artefacts = {"verdict": made["verdict"], "ensembles": made.get("trained_ensembles")}
    with dsl.If(made["blessed"].channel != "none", name="blessed"):
        # Kubeflow cannot resolve a OneOf whose producers are all cached, which start no launcher.
        registered = graph.add(
            register,
            cached=False,
            version_to_beat=baseline["version"],
            made_from=baseline["made_from"],
            collected=baseline["collected"],
            trained=made["trained"],
            reference=made["reference"],
            release=made.get("release"),
            **verdict,
        )
    with dsl.Else(name="held"):
        unregistered = graph.add(record_gate_failures, cached=False, trained=made["trained"], **verdict)
    version = dsl.OneOf(registered["version"].channel, unregistered["version"].channel)
    shown = ("valid_log", "fitted", "table", "skew", "champion", "verdict", "models", "scores", "validations")
    optional = ("retrieval", "release", "slates", "ensembles")
    artefacts: Artefacts = {name: made[name] for name in shown} | {name: made.get(name) for name in optional}
    page = graph.add(
        report,
        cached=False,
        version=version,
        started=baseline["started"],
        baseline_step=baseline["step"],
        registered=dsl.OneOf(registered["step"].channel, unregistered["step"].channel),
        raw_log=log.raw_log,
        quarantine=log.quarantine,
        **artefacts,
    )
    graph.add(roll_out, cached=False, version=version, after=[page])
