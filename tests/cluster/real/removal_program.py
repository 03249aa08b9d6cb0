"""Removes what specs have left in the stores of a cluster; run in a pod with the texts of the specs.

MLflow keeps a deleted experiment until `mlflow gc`. Texts of sections, which specs share, and the marker of the cluster
stay in the bucket.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from sqlalchemy import delete

from shortlist.features.feast.feast_environment import environment_variables, silence_feast, temporary_environment
from shortlist.features.feast.feast_store_location import SECOND_SLOT, spec_feast_store_location
from shortlist.features.feast.store import _open
from shortlist.kubeflow.training_runs import storage_config
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.objects import open_object_store
from shortlist.storage.records.postgres_server import server_at
from shortlist.storage.records.postgres_table import RECORDS
from shortlist.tracking.run_context import RunContext


def remove(spec: Spec) -> None:
    """Remove features, models, records and files of a spec."""
    stores = storage_config(spec.runtime)
    remove_features(spec)
    tracker = RunContext(name=spec.name, stores=str(stores)).tracker
    if tracker._client.search_registered_models(f"name = '{tracker.registry.name}'"):
        tracker._client.delete_registered_model(tracker.registry.name)
    tracker._client.delete_experiment(tracker._experiment)
    assert stores.database_uri is not None
    of_spec = delete(RECORDS).where(RECORDS.c.cluster == stores.cluster, RECORDS.c.spec == spec.name)
    server_at(stores.database_uri).transact(lambda connection: connection.execute(of_spec))
    objects = open_object_store(stores)
    if keys := [key for key in objects.keys("") if spec.name in key.split("/")]:
        objects._client.delete(keys)


def remove_features(spec: Spec) -> None:
    """Remove the projects of a spec from Feast's registry, and their keys from the online store."""
    location, online = spec_feast_store_location(storage_config(spec.runtime), spec.name), spec.runtime.online_store
    for slot in ("", SECOND_SLOT):
        variables = environment_variables(Path(), replace(location, slot=slot), spec.name, online)
        with temporary_environment(variables), silence_feast():
            feast = _open()
            if feast.project in {project.name for project in feast.registry.list_projects()}:
                feast._get_provider().teardown_infra(feast.project, feast.list_feature_views(), feast.list_entities())
                feast.registry.delete_project(feast.project)


if __name__ == "__main__":
    for text in sys.argv[1:]:
        remove(parse_spec(text))
