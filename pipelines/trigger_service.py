"""The webhook receiver in front of Kubeflow: `python -m pipelines.trigger_service --specs FOLDER --token-file FILE`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn

from monitoring.book import book_of
from monitoring.receiver.app import receiver_app
from monitoring.receiver.bearer import Bearer
from monitoring.receiver.retrainer import Retrainer
from pipelines.cluster import stores_of
from pipelines.kubeflow_start import kubeflow_host, read_locations, read_specs, starter
from shortlist.contracts import ShortlistError
from shortlist.stores import without_secret

_MOST_REQUESTS = 64
"""At once; more are answered 503."""


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    asked = parser().parse_args(arguments)
    try:
        with TemporaryDirectory(prefix="shortlist-") as compiled:
            uvicorn.run(
                receiver_app(retrainers(asked.specs, asked.data, Path(compiled)), Bearer(asked.token_file)),
                host=asked.address,
                port=asked.port,
                access_log=False,
                log_config=None,
                server_header=False,
                lifespan="off",
                limit_concurrency=_MOST_REQUESTS,
                timeout_graceful_shutdown=30,
            )
    except ShortlistError as error:
        sys.stderr.write(f"{without_secret(str(error))}\n")
        return 1
    return 0


def retrainers(folder: Path, data: list[str], compiled: Path) -> dict[str, Retrainer]:
    """Return what starts the trainings of every spec in a folder, by name.

    Args:
        folder: With the specs.
        data: `NAME=s3://bucket/folder` for each that reads files.
        compiled: Where compiled graphs are written.

    Raises:
        ShortlistError: A spec is not valid or not for a cluster, or the environment lacks an address.
    """
    specs = read_specs(folder)
    locations = read_locations(data, specs)
    host = kubeflow_host()
    return {
        name: Retrainer(
            book_of(str(stores_of(spec.runtime)), name),
            spec.monitoring.retrain,
            starter(spec, locations[name], host, compiled),
        )
        for name, spec in specs.items()
    }


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(prog="pipelines.trigger_service", description=__doc__)
    made.add_argument("--specs", required=True, type=Path, help="folder with the specs' YAML files")
    made.add_argument(
        "--data", action="append", default=[], help="NAME=s3://bucket/folder, for a spec that reads files"
    )
    made.add_argument(
        "--token-file", type=Path, help="bearer tokens, one a line; without it SHORTLIST_WEBHOOK_TOKEN holds them"
    )
    made.add_argument("--address", default="127.0.0.1", help="where to listen")
    made.add_argument("--port", type=int, default=8080, help="where to listen")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
