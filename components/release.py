"""Steps that assemble a release, register its model, and roll it out."""

from typing import NamedTuple

from kfp import dsl


def build_release(
    filters: str,
    ordering: str,
    lists: str,
    data: str,
    log: dict,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    retrieval: dsl.Input[dsl.Dataset],
    release: dsl.Output[dsl.Dataset],
) -> bool:
    """Write the files that a server needs besides the model; return whether there are any.

    Where no sources are declared the folder stays empty, and requests name their candidates.
    """
    from pathlib import Path

    from shortlist.slates.retrieval.step import RELEASE

    out, sources = Path(release.path), Path(retrieval.path) / RELEASE
    if not sources.is_dir():
        out.mkdir(parents=True, exist_ok=True)
        return False

    from shortlist.slates.step import build_release
    from shortlist.spec.data import Data
    from shortlist.spec.filters import Filters
    from shortlist.spec.ordering import Ordering
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("build_release") as running_step:
        sections = Filters.model_validate_json(filters or "{}"), Ordering.model_validate_json(ordering or "{}")
        build_release(sources, Data.model_validate_json(data), *sections, Path(valid_log.path), log["location"], out)
    write_metadata(release, step=running_step.record)
    return True


def register(
    name: str,
    stores: str,
    code: str,
    gate_code: str,
    version_to_beat: str,
    made_from: str,
    collected: str,
    verdict: dsl.Input[dsl.Dataset],
    trained: list,
    reference: dsl.Input[dsl.Dataset],
    ensembles: list = [],  # noqa: B006 - Kubeflow reads the default, nobody changes it
    release: dsl.Input[dsl.Dataset] = None,
) -> NamedTuple("Registered", [("version", str), ("step", str)]):  # type: ignore[valid-type]
    """Verify the blessing, register the blessed model as candidate, and return its version."""
    import json
    from pathlib import Path

    from shortlist.deployment.registration import register_blessed
    from shortlist.slates.step import RELEASE
    from shortlist.tracking.lineage import GATE_CODE
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.champion_cache import ChampionCacheKey
    from shortlist.training.withdrawn_batches import collected_tags

    with step("register") as running_step:
        runs = {model["model"]: model["mlflow_run"] for model in map(json.loads, trained + ensembles)}
        inputs = Path(verdict.path), runs, Path(reference.path)
        tags, stages = ChampionCacheKey(version_to_beat, made_from).tags() | collected_tags(collected), None
        tags |= {GATE_CODE: gate_code}
        if release and (Path(release.path) / RELEASE).is_dir():
            stages = Path(release.path) / RELEASE
        version = register_blessed(RunContext(name=name, stores=stores), *inputs, tags, stages)
    return (version, running_step.json)


def record_gate_failures(
    name: str,
    stores: str,
    code: str,
    verdict: dsl.Input[dsl.Dataset],
    trained: list,
    ensembles: list = [],  # noqa: B006 - Kubeflow reads the default, nobody changes it
) -> NamedTuple("Held", [("version", str), ("step", str)]):  # type: ignore[valid-type]
    """Write the gates' reasons to the candidates' MLflow runs; there is no version."""
    import json
    from pathlib import Path

    from shortlist.deployment.registration import record_verdict
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step

    with step("register") as running_step:
        runs = {model["model"]: model["mlflow_run"] for model in map(json.loads, trained + ensembles)}
        record_verdict(RunContext(name=name, stores=stores), Path(verdict.path), runs)
    return ("", running_step.json)


def refresh_releases(
    name: str,
    data: str,
    runtime: str,
    log: dict,
    stores: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    releases: dsl.Output[dsl.Dataset],
) -> int:
    """Update the released sources, lists and users' columns; return the number of items that can be recommended."""
    from pathlib import Path

    from shortlist.deployment.refreshed_releases import refresh_releases
    from shortlist.spec.data import Data
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step

    with step("refresh_releases") as running_step:
        context, inputs = RunContext(name=name, stores=stores), (Data.model_validate_json(data), Path(valid_log.path))
        out, seed = Path(releases.path), load_runtime(runtime).seed
        running_step.rows = refresh_releases(context, *inputs, log["location"], out, seed)
    write_metadata(releases, step=running_step.record)
    return running_step.rows


def roll_out(
    version: str,
    name: str,
    data: str,
    serving: str,
    gates: str,
    runtime: str,
    cluster: str,
    stores: str,
    cause: dict,
    code: str,
    with_rollout: bool,
) -> str:
    """Roll the version out as a canary; return the verdict or, without a version or a stack, what is missing."""
    from monitoring.store.monitoring_store import open_monitoring_store
    from shortlist.deployment.deployer import Deployer
    from shortlist.spec.cluster import Cluster
    from shortlist.spec.data import Data
    from shortlist.spec.gates import Gates
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import note, step

    with step("roll_out") as running_step:
        runtime_section = Runtime.model_validate_json(runtime).model_copy(
            update={"cluster": Cluster.model_validate_json(cluster)}
        )
        sections = Serving.model_validate_json(serving), Gates.model_validate_json(gates)
        labels = Data.model_validate_json(data).labels
        context = RunContext(name=name, stores=stores)
        ending = Deployer(context, *sections, runtime_section, labels).after_training(version, with_rollout)
        running_step.champion = context.tracker.registry.version_of("champion")
        note(ending.sentence)
        if cause.get("key"):  # a decision started this training, and waits to hear of it
            open_monitoring_store(stores, name).finish(cause["key"], ending.state, ending.version, ending.sentence)
    return ending.sentence
