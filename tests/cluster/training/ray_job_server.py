"""The RayJobs of a Kubernetes API server, which run on a Ray cluster of this machine or fail."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from job_server import Jobs, Object

RAY = str(Path(sys.executable).with_name("ray"))


class RayJobs(Jobs):
    """What KubeRay does: it starts Ray as the manifest says, then the program on its head, and stops both."""

    api_version, kind = "ray.io/v1", "RayJob"

    def run(self, job: Object) -> Object:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        settings = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
        command = [RAY, "start", "--head", "--block", f"--port={port}", "--include-dashboard=false", *settings]
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        head = subprocess.Popen(
            [*command, "--node-ip-address=127.0.0.1", f"--temp-dir={folder}", "--disable-usage-stats"],
            env={**os.environ, **token}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            self._wait_for(port)
            python, *arguments = shlex.split(job["spec"]["entrypoint"])
            assert python == "python3"
            environment = {**os.environ, **token, "RAY_ADDRESS": f"127.0.0.1:{port}"}
            ran = subprocess.run(
                [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
            )
        finally:
            head.send_signal(signal.SIGTERM)  # Ray stops its processes
            head.wait(60)
            shutil.rmtree(folder, ignore_errors=True)
        self.logs.append(ran.stderr)
        if ran.returncode:
            last_line = (ran.stderr.strip().splitlines() or [""])[-1]
            message = f"Job entrypoint command failed with exit code {ran.returncode}, last log: {last_line}"
            return ended("Failed", "FAILED", "AppFailed", message)
        return ended("Complete", "SUCCEEDED")

    def _wait_for(self, port: int) -> None:
        for _ in range(240):
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.25)
        raise TimeoutError(f"Ray did not start at port {port}")


def ended(deployment: str, outcome: str = "", reason: str = "", message: str = "") -> Object:
    """Return a status as KubeRay writes it."""
    fields = {"jobDeploymentStatus": deployment, "jobStatus": outcome, "reason": reason, "message": message}
    return {name: value for name, value in fields.items() if value}
