"""The webhook receiver that starts trainings on Kubeflow.

Run as `python -m shortlist.kubeflow.trigger_service --specs FOLDER --token-file FILE`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import uvicorn

from monitoring.receiver.app import receiver_app
from monitoring.receiver.bearer import BearerTokens
from monitoring.receiver.retrainer import Retrainer
from monitoring.store.monitoring_store import open_monitoring_store
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.retraining_starter import kubeflow_host, kubeflow_starter, parse_data_locations, read_specs
from shortlist.kubeflow.training_runs import storage_config
from shortlist.serving.server.protocols.connections import TimedConnection, make_connection_class
from shortlist.storage.storage_config import redact_passwords

SERVER: Final[dict[str, Any]] = {
    "access_log": False,
    "log_config": None,
    "server_header": False,
    "lifespan": "off",
    "ws": "none",
    "timeout_graceful_shutdown": 30,
    # Idle connections are closed, and the oldest when there are many, so that probes are always accepted.
    "http": make_connection_class(TimedConnection, idle_seconds=10, write_seconds=10),
}
"""Options of uvicorn for the receiver."""


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    options = parser().parse_args(arguments)
    try:
        with TemporaryDirectory(prefix="shortlist-") as compiled:
            uvicorn.run(
                receiver_app(
                    build_retrainers(options.specs, options.data, Path(compiled)), BearerTokens(options.token_file)
                ),
                host=options.address,
                port=options.port,
                **SERVER,
            )
    except ShortlistError as error:
        sys.stderr.write(f"{redact_passwords(str(error))}\n")
        return 1
    return 0


def build_retrainers(folder: Path, data: list[str], compiled: Path) -> dict[str, Retrainer]:
    """Return the retrainer of every spec in a folder, by spec name.

    Args:
        folder: Folder with the specs.
        data: `NAME=s3://bucket/folder` for each spec that reads files.
        compiled: Folder into which compiled graphs are written.

    Raises:
        ShortlistError: A spec is not valid or not for a cluster, or the environment lacks an address.
    """
    specs = read_specs(folder)
    locations = parse_data_locations(data, specs)
    host = kubeflow_host()
    return {
        name: Retrainer(
            open_monitoring_store(str(storage_config(spec.runtime)), name),
            spec.monitoring.retrain,
            kubeflow_starter(spec, locations[name], host, compiled),
        )
        for name, spec in specs.items()
    }


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(prog="shortlist.kubeflow.trigger_service", description=__doc__)
    arguments.add_argument("--specs", required=True, type=Path, help="folder with the specs' YAML files")
    arguments.add_argument(
        "--data", action="append", default=[], help="NAME=s3://bucket/folder, for a spec that reads files"
    )
    arguments.add_argument(
        "--token-file", type=Path, help="bearer tokens, one a line; without it SHORTLIST_WEBHOOK_TOKEN holds them"
    )
    arguments.add_argument("--address", default="127.0.0.1", help="where to listen")
    arguments.add_argument("--port", type=int, default=8080, help="where to listen")
    return arguments


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
