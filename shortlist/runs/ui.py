"""Starts MLflow's UI for the runs on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from shortlist.runs.runs_folder import open_runs_folder
from shortlist.storage.artefacts import read_json
from shortlist.tracking.store_access import tracking_uri


def newest_experiment_path(runs: Path, uri: str) -> str:
    """Return the path of the last run's experiment in MLflow's UI; empty before the first run.

    MLflow itself opens a list of all experiments.
    """
    from shortlist.tracking.mlflow_store import Tracker

    arguments = runs / "latest/arguments.json"
    return Tracker(uri, read_json(arguments)["name"]).page if arguments.is_file() else ""


def serve(runs: Path, port: int) -> None:
    """Replace this process by MLflow's server on 127.0.0.1; it ends with Ctrl-C.

    Raises:
        ShortlistError: There are no runs yet.
    """
    stores = open_runs_folder(runs).stores
    uri = tracking_uri(stores)
    sys.stdout.write(f"MLflow: http://127.0.0.1:{port}/{newest_experiment_path(runs, uri)}   (Ctrl-C ends it)\n")
    sys.stdout.flush()
    server = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", uri, "--default-artifact-root", (stores / "mlflow").as_uri()]
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # Jobs evaluate language models; their processes take as long to start as the server.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    os.execv(sys.executable, [sys.executable, *server, *store])  # noqa: S606 - our own interpreter
