"""MLflow's own pages over the runs made here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from shortlist.runs.runs_folder import existing
from shortlist.tracking.store_access import tracking_uri


def serve(runs: Path, port: int) -> None:
    """Replace this process by MLflow's server on 127.0.0.1; it ends with Ctrl-C.

    Raises:
        ShortlistError: There are no runs yet.
    """
    stores = existing(runs).stores
    uri = tracking_uri(stores)
    sys.stdout.write(f"MLflow: http://127.0.0.1:{port}   (Ctrl-C ends it)\n")
    sys.stdout.flush()
    server = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", uri, "--default-artifact-root", (stores / "mlflow").as_uri()]
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.execv(sys.executable, [sys.executable, *server, *store])  # noqa: S606 - our own interpreter
