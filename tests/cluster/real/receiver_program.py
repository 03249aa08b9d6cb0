"""Starts the shipped receiver of alerts on a port of its own, posts an alert and prints the status of the answer.

Run in a pod with two arguments: the text of a spec, and `true` or `forged`.
"""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp

import httpx

from monitoring.alerts.alerts import ALARM
from monitoring.store.monitoring_store import open_monitoring_store
from monitoring.windows.records import Finding, WindowReport
from shortlist.kubeflow import trigger_service
from shortlist.kubeflow.training_runs import storage_config
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec

START_SECONDS = 120


def plant_alarm(spec: Spec) -> None:
    """Write two days with a column that drifted, after which the policy starts a training."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    finding = Finding(
        column="position", kind="numeric", effect=0.5, critical=0.2, p_value=1e-9, drifted=True, reason="a test"
    )
    store = open_monitoring_store(str(storage_config(spec.runtime)), spec.name)
    for days in (2, 1):
        start, end = midnight - timedelta(days=days), midnight - timedelta(days=days - 1)
        store.add_report(
            WindowReport(
                spec=spec.name, start=start, end=end, made=end, champion=1, versions={1: 1_000}, requests=250,
                rows=1_000, coverage=0.9, findings=(finding,),
            )
        )  # fmt: skip


def start_receiver(specs: Path, token: str) -> str:
    """Start the receiver in a thread and return its address when it is ready."""
    tokens = specs.with_name("accepted")
    tokens.write_text(token)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--specs", str(specs), "--token-file", str(tokens), "--port", str(port)]
    thread = threading.Thread(target=trigger_service.main, args=(arguments,), daemon=True)
    thread.start()
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/readyz", timeout=30).status_code == 200:
                return address
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    sys.exit("the receiver does not become ready")


def main(text: str, kind: str) -> None:
    """Post an alert with the receiver's token, or with another one, and print the status of the answer."""
    specs = Path(mkdtemp(prefix="shortlist-")) / "specs"
    specs.mkdir()
    (specs / "spec.yaml").write_text(text)
    spec = load_spec(specs / "spec.yaml")
    plant_alarm(spec)
    token = secrets.token_hex(16)
    address = start_receiver(specs, token)
    alert = {
        "status": "firing",
        "labels": {"alertname": ALARM, "spec": spec.name},
        "annotations": {},
        "startsAt": datetime.now(UTC).isoformat(),
    }
    answer = httpx.post(
        f"{address}/alerts",
        json={"version": "4", "status": "firing", "alerts": [alert]},
        headers={"Authorization": f"Bearer {token if kind == 'true' else secrets.token_hex(16)}"},
        timeout=120,
    )
    sys.stdout.write(f"{answer.text}\n{answer.status_code}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
