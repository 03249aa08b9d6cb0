"""Kubeflow wrapper of shortlist.tracking.registry: the serving version; the first task of a run."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def find_champion(name: str, stores: str) -> NamedTuple("Found", [("version", str), ("started", str), ("step", str)]):  # type: ignore[valid-type]
    """Return the registered version that serves now (empty: none yet), and the moment the run began."""
    from datetime import UTC, datetime

    from models.training import Origin
    from shortlist.tracking.steps import step

    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    with step("find_champion") as this:
        version = Origin(name=name, stores=stores).tracker.registry.version_of("champion")
    return (str(version or ""), started, this.json)
