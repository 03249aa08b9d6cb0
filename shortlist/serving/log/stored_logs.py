"""Where the logs of a spec are: on this disk, or in the object store of its stores."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

from shortlist.serving.log.log_tables import LogKind, table_address
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.log.table_committer import TableCommitter
from shortlist.serving.paths import ServingPaths
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig


def serving_log_paths(stores: StorageConfig, spec: str) -> ServingPaths:
    """Return the paths of a spec's logs.

    Args:
        stores: Locations of the stores.
        spec: Name of the spec.
    """
    objects = open_object_store(stores).root if stores.has_remote_log else ""
    return ServingPaths.for_spec(stores.runs, spec, objects)


def maintain_stored_logs(paths: ServingPaths, keep: timedelta) -> None:
    """Put the files of tables in an object store together, and remove old rows; tables on this disk have a committer.

    Args:
        paths: Paths of the logs; see `serving_log_paths`.
        keep: Time that rows are kept.

    Raises:
        ShortlistError: A table cannot be read or written.
    """
    if not paths.log_objects:
        return
    for kind in get_args(LogKind):
        address = table_address(paths.log_objects, paths.root.name, kind)
        TableCommitter(stream_folder(paths.root / kind), address).maintain(keep)
