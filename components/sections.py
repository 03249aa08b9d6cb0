"""The step that stores the sections of a spec, where steps get references to them."""

from typing import NamedTuple

from kfp import dsl  # noqa: F401 - Kubeflow's executor imports it from the module of a step


def store_sections(
    stores: str,
    code: str,
    data: str = "",
    features: str = "",
    retrieval: str = "",
    filters: str = "",
    ordering: str = "",
    gates: str = "",
    serving: str = "",
    monitoring: str = "",
    runtime: str = "",
    cluster: str = "",
) -> NamedTuple(  # type: ignore[valid-type]
    "References",
    [
        ("data", str),
        ("features", str),
        ("retrieval", str),
        ("filters", str),
        ("ordering", str),
        ("gates", str),
        ("serving", str),
        ("monitoring", str),
        ("runtime", str),
        ("cluster", str),
    ],
):
    """Store each section under its digest in the object store; return its reference, or a short section itself."""
    from shortlist.storage.objects import open_object_store
    from shortlist.storage.section_references import store_section
    from shortlist.storage.storage_config import StorageConfig
    from shortlist.tracking.steps import step

    with step("store_sections"):
        objects = open_object_store(StorageConfig.parse(stores))
        sections = data, features, retrieval, filters, ordering, gates, serving, monitoring, runtime, cluster
        return tuple(store_section(section, objects) for section in sections)
