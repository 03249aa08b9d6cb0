"""Kubeflow wrapper of shortlist.deployment.registration: a blessed model becomes a version."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def register(
    name: str,
    stores: str,
    code: str,
    version_to_beat: str,
    made_from: str,
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
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.champion_cache import ChampionCacheKey

    with step("register") as running_step:
        runs = {model["model"]: model["mlflow_run"] for model in map(json.loads, trained + ensembles)}
        inputs = Path(verdict.path), runs, Path(reference.path)
        tags, stages = ChampionCacheKey(version_to_beat, made_from).tags(), None
        if release and (Path(release.path) / RELEASE).is_dir():
            stages = Path(release.path) / RELEASE
        version = register_blessed(RunContext(name=name, stores=stores), *inputs, tags, stages)
    return (version, running_step.json)
