"""Makes kfp.local hand to steps what Kubeflow's backend hands to them: encoded metadata, and no empty folders.

Every Python process that the tests start imports this module (`tests/conftest.py` puts its folder on the path); it
changes only the processes that run graphs. Sources: backend/src/v2/metadata/converter.go of Kubeflow Pipelines 2.17;
object stores keep files alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final

RUNNER: Final = "shortlist.runs.runner"
"""Module of the processes that run graphs."""
_REMOVED: Final = ".was-an-empty-folder"
"""Ending of the file that stands for an empty folder of a step, for kfp.local's cache looks whether outputs exist."""


def encode_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an artefact as a later step gets them from Kubeflow's backend.

    Raises:
        ValueError: A value is null.
    """
    encoded: dict[str, Any] = {}
    for name, value in metadata.items():
        if value is None:
            raise ValueError(f"metadata {name}: unknown/unsupported value type *structpb.Value_NullValue")
        if isinstance(value, bool):
            encoded[name] = int(value)
        elif isinstance(value, dict):
            encoded[name] = {"struct": value}
        elif isinstance(value, list):
            encoded[name] = {"list": value}
        else:
            encoded[name] = value
    return encoded


def remove_empty_folders(path: Path) -> None:
    """Remove the empty folders of an output; where it is one itself, a file of another name stands for it."""
    for folder in sorted((each for each in path.rglob("*") if each.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
        path.with_name(f"{path.name}{_REMOVED}").touch()


def install() -> None:
    """Replace what kfp.local does with the outputs of a step, and what its cache takes for an existing output."""
    from kfp import dsl
    from kfp.local import executor_output_utils
    from kfp.local.cache import LocalCache

    get_outputs, get = executor_output_utils.get_outputs_from_executor_output, LocalCache.get
    lock = Lock()  # steps look at the same time

    def get_stored_outputs(*arguments: Any, **options: Any) -> dict[str, Any]:
        outputs: dict[str, Any] = get_outputs(*arguments, **options)
        for artefact in (each for each in outputs.values() if isinstance(each, dsl.Artifact)):
            artefact.metadata = encode_metadata(artefact.metadata)
            remove_empty_folders(Path(artefact.path))
        return outputs

    def get_with_empty_folders(cache: LocalCache, key: str) -> dict[str, Any] | None:
        with lock:
            markers = Path(cache.cache_root).parent.rglob(f"*{_REMOVED}")
            folders = [marker.with_name(marker.name.removesuffix(_REMOVED)) for marker in markers]
            for folder in folders:
                folder.mkdir(exist_ok=True)
            outputs: dict[str, Any] | None = get(cache, key)
            for folder in folders:
                with suppress(OSError):  # another process of the same folder has done it
                    folder.rmdir()
        return outputs

    executor_output_utils.get_outputs_from_executor_output = get_stored_outputs
    LocalCache.get = get_with_empty_folders


if RUNNER in sys.orig_argv:
    install()
