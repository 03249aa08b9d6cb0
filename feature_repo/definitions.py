"""Feast definitions: one entity per key column, one view per file of statistics, one service per spec.

Feast imports this file as a top-level module and takes what it finds among its names, so it must stay one file.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
from feast.types import Array, FeastType, Float32, Float64, Int64, String

from shortlist.features.feast.feast_environment import ADDRESS_VARIABLE, PROJECT_VARIABLE, USER_VARIABLE, VIEWS_VARIABLE
from shortlist.features.feast.store import is_online_view
from shortlist.features.stored_views.view_index import StoredView, ViewColumn, ViewIndex

_TYPES: dict[str, FeastType] = {
    "Int64": Int64,
    "Float64": Float64,
    "String": String,
    "List(Int64)": Array(Int64),
    "List(String)": Array(String),
    "List(Float32)": Array(Float32),
}
_KEY_TYPES = {"Int64": ValueType.INT64, "String": ValueType.STRING}


def _entity(key: ViewColumn) -> Entity:
    return Entity(name=key.name, join_keys=[key.name], value_type=_KEY_TYPES[key.dtype])


def _published(view: StoredView) -> dict[str, str]:
    """Return the tag with the published address; `path` is a local copy, since DuckDB reads no object store offline."""
    address = os.environ.get(ADDRESS_VARIABLE, "")
    return {"published": f"{address}/{view.path}"} if address else {}


def _view(view: StoredView, index: ViewIndex, entities: dict[str, Entity], user: str | None) -> FeatureView:
    return FeatureView(
        name=view.name,
        entities=[entities[name] for name in view.key_names],
        schema=[Field(name=column.name, dtype=_TYPES[column.dtype]) for column in (*view.keys, *view.features)],
        source=FileSource(
            name=view.name, path=str(index.path(view)), timestamp_field="event_timestamp", tags=_published(view)
        ),
        ttl=timedelta(0),  # zero is for ever: a count stays true until the next one
        online=is_online_view(view, user),
        tags={"static": str(view.static).lower(), "newest_keys": str(view.newest_keys)},
    )


_INDEX = ViewIndex.read(Path(os.environ[VIEWS_VARIABLE]))
_ENTITIES = {key.name: _entity(key) for view in _INDEX.views for key in view.keys}
_VIEWS = {view.name: _view(view, _INDEX, _ENTITIES, os.environ.get(USER_VARIABLE) or None) for view in _INDEX.views}

globals().update({f"entity_{name}": entity for name, entity in _ENTITIES.items()})
globals().update({f"view_{name}": view for name, view in _VIEWS.items()})
if _VIEWS:
    service = FeatureService(name=os.environ[PROJECT_VARIABLE], features=list(_VIEWS.values()))
