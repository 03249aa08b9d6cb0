"""Kubeflow wrapper of shortlist.slates.step: sources, filters, ordering and lists as one release."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
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
