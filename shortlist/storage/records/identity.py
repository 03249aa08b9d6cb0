"""Whose stores they are: a bucket or a database of another cluster is refused before anything is mixed."""

from __future__ import annotations

import json
import uuid
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.storage.objects import open_object_store
from shortlist.storage.records.opening import record_store_at
from shortlist.storage.records.store import RecordStore
from shortlist.storage.storage_config import StorageConfig

MARKER: Final = "cluster.json"
"""In the bucket, and a record in every database: the cluster's name, the bucket, and an identity made once."""

Marker = dict[str, str]


def claim(stores: StorageConfig) -> str:
    """Return the identity of stores on servers; the first who asks gives them one, in the cluster's name.

    Nothing is marked when any of them is another cluster's.

    Returns:
        The bucket's identity; empty where files are in a folder.

    Raises:
        ShortlistError: A store belongs to another cluster or to another bucket, or cannot be reached.
    """
    objects = open_object_store(stores) if stores.objects else None
    wanted = {"cluster": stores.cluster, "objects": stores.objects, "identity": uuid.uuid4().hex}
    databases = [record_store_at(address, "", "identity", "") for address in _addresses(stores)]
    # Before the bucket, which is marked before they are: whoever claims at the same moment is no stranger.
    marked = [_parsed(database.read(MARKER)) for database in databases]
    before = _parsed(objects.read(MARKER)) if objects is not None else None
    if before is not None:
        _check_same_cluster(before, wanted, f"runtime.objects: {stores.objects}")
        wanted["identity"] = before["identity"]
    for database, found in zip(databases, marked, strict=True):
        _check_same_marker(database, found, wanted, is_new=before is None)
    if objects is not None and not objects.create(MARKER, _text(wanted).encode()):
        won = _parsed(objects.read(MARKER)) or wanted
        _check_same_cluster(won, wanted, f"runtime.objects: {stores.objects}")
        wanted["identity"] = won["identity"]
    for database in databases:
        if not database.create(MARKER, _text(wanted)):
            _check_same_marker(database, _parsed(database.read(MARKER)), wanted, is_new=False)
    return wanted["identity"] if objects is not None else ""


def _addresses(stores: StorageConfig) -> list[str]:
    """Return the addresses of the databases, each once; an MLflow server looks after its own."""
    tracking = stores.tracking_uri or ""
    found = (stores.database_uri, tracking if tracking.startswith("postgresql") else None)
    return list(dict.fromkeys(filter(None, found)))


def _check_same_marker(database: RecordStore, found: Marker | None, wanted: Marker, is_new: bool) -> None:
    """Refuse a database that another cluster marked, or this one for another bucket."""
    if found is None:
        return
    where = f"the database of {database.where(MARKER)}"
    _check_same_cluster(found, wanted, where)
    if wanted["objects"] and found["objects"] and (is_new or found["identity"] != wanted["identity"]):
        raise ShortlistError(
            f"{where} belongs with {found['objects']}, and {wanted['objects']} has"
            f" {'no state yet' if is_new else 'the state of others'}. Name that bucket in runtime.objects.url, restore"
            " it, or take an empty database."
        )


def _check_same_cluster(found: Marker, wanted: Marker, where: str) -> None:
    if found["cluster"] != wanted["cluster"]:
        raise ShortlistError(
            f"{where} belongs to the cluster '{found['cluster']}', and this is '{wanted['cluster']}'"
            " (runtime.cluster.name). Two clusters share no store: name another prefix and another database, or the"
            " right cluster."
        )


def _parsed(content: str | bytes | None) -> Marker | None:
    if content is None:
        return None
    try:
        found = json.loads(content)
        return {name: str(found[name]) for name in ("cluster", "objects", "identity")}
    except (ValueError, KeyError, TypeError):
        raise ShortlistError(
            f"{MARKER} is not one that Shortlist wrote; check which other program uses these stores"
        ) from None


def _text(marker: Marker) -> str:
    return json.dumps(marker, indent=2, sort_keys=True) + "\n"
