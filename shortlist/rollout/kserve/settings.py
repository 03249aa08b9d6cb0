"""The settings of a version's server in a pod: written into its InferenceService, read when it starts."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from shortlist.rollout.deployment import Deployment
from shortlist.rollout.kserve.errors import ClusterError
from shortlist.serving.server.settings import ServerSettings
from shortlist.spec.runtime import OnlineStore
from shortlist.spec.serving import Serving
from shortlist.storage.storage_config import StorageConfig

VARIABLE: Final = "SHORTLIST_SERVER"
"""Environment variable with the settings as JSON, but for the predictor's address, which KServe knows."""
HTTP_PORT: Final = 8080
GRPC_PORT: Final = 9000
FILES: Final = "/mnt/shortlist"
"""Folder of the version's files in a pod."""
RELEASE: Final = "release"
"""Folder inside that of what is released with the model."""
LOG: Final = "/mnt/log"
"""Folder of the prediction log in a pod."""
_SERVICE_PORT: Final = 80


def server_settings(spec: str, deployment: Deployment, serving: Serving, online_store: OnlineStore) -> dict[str, Any]:
    """Return a version's settings as they are written; they name environment variables and hold no secret.

    Raises:
        ClusterError: Features are in files of this machine, which no pod sees.
    """
    store = deployment.store
    if store is not None and (not isinstance(store, StorageConfig) or store.folder is not None):
        raise ClusterError(
            "runtime.target: kserve: features are in files of this machine, and no pod sees them;"
            " runtime.profile: cluster keeps them in Redis, PostgreSQL and the object store"
        )
    settings = ServerSettings(
        model=spec,
        version=deployment.version,
        model_folder=Path(FILES) / "model",
        release=None if deployment.release is None else Path(FILES) / RELEASE,
        predictor="",
        host="0.0.0.0",  # noqa: S104  (a pod's own; who may come in, the network policies say)
        http_port=HTTP_PORT,
        grpc_port=GRPC_PORT,
        store=store,
        project=spec,
        online_store=online_store,
        predictions=Path(LOG),
        serving=serving,
    )
    return settings.model_dump(mode="json", exclude={"predictor"})


def settings_in_pod(arguments: Sequence[str]) -> ServerSettings:
    """Return the settings of the server of this pod.

    Args:
        arguments: KServe adds `--predictor_host`, `--model_name` and `--http_port` to the command; only the first one
            says something new.

    Raises:
        ClusterError: The variable is missing or says something else.
    """
    parser = argparse.ArgumentParser(prog="shortlist.rollout.kserve.serve")
    parser.add_argument("--predictor_host", required=True, help="Triton's Service; KServe sets it")
    asked, _ = parser.parse_known_args(list(arguments))
    predictor = asked.predictor_host if ":" in asked.predictor_host else f"{asked.predictor_host}:{_SERVICE_PORT}"
    try:
        known = ServerSettings.model_validate_json(_with(os.environ.get(VARIABLE, "{}"), predictor))
    except ValidationError as error:
        first = error.errors()[0]
        raise ClusterError(f"{VARIABLE}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return known


def _with(settings: str, predictor: str) -> str:
    try:
        return json.dumps({**json.loads(settings), "predictor": predictor})
    except (ValueError, TypeError):
        raise ClusterError(f"{VARIABLE}: is no JSON object") from None
