"""Settings of a version's server in a pod, passed in an environment variable of its InferenceService."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from shortlist.rollout.deployment import Deployment
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.spec.runtime import OnlineStore
from shortlist.spec.serving import Serving
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.kubernetes_api import ClusterError

VARIABLE: Final = "SHORTLIST_SERVER"
"""Environment variable with the settings as JSON, without the predictor's address, which KServe passes."""
HTTP_PORT: Final = 8080
GRPC_PORT: Final = 9000
FILES: Final = "/mnt/shortlist"
"""Folder of the version's files in a pod."""
RELEASE: Final = "release"
"""Subfolder with the release: sources, filters and ordering."""
LOG: Final = "/mnt/log"
"""Folder of the prediction log in a pod."""
_SERVICE_PORT: Final = 80


def server_settings(spec: str, deployment: Deployment, serving: Serving, online_store: OnlineStore) -> dict[str, Any]:
    """Return the settings of a version's server as JSON; they name environment variables and contain no secret.

    Raises:
        ClusterError: Features are in files of this machine, which pods cannot read.
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
        predictions=Path(LOG) / "predictions",
        serving=serving,
    )
    return settings.model_dump(mode="json", exclude={"predictor"})


def settings_in_pod(arguments: Sequence[str]) -> ServerSettings:
    """Return the settings of the server of this pod.

    Args:
        arguments: Arguments that KServe adds to the command: `--predictor_host`, which is used, `--model_name` and
            `--http_port`.

    Raises:
        ClusterError: The variable is missing or invalid.
    """
    parser = argparse.ArgumentParser(prog="shortlist.rollout.kserve.servers.serve")
    parser.add_argument("--predictor_host", required=True, help="Triton's Service; KServe sets it")
    options, _ = parser.parse_known_args(list(arguments))
    predictor = options.predictor_host if ":" in options.predictor_host else f"{options.predictor_host}:{_SERVICE_PORT}"
    try:
        settings = ServerSettings.model_validate_json(_with_predictor(os.environ.get(VARIABLE, "{}"), predictor))
    except ValidationError as error:
        first = error.errors()[0]
        raise ClusterError(f"{VARIABLE}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return settings


def _with_predictor(settings: str, predictor: str) -> str:
    try:
        return json.dumps({**json.loads(settings), "predictor": predictor})
    except (ValueError, TypeError):
        raise ClusterError(f"{VARIABLE}: is no JSON object") from None
