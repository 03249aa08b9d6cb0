"""The TrainJobs of a Kubernetes API server, which run as processes of this machine or fail."""

from __future__ import annotations

import os
import subprocess
import sys

from job_server import Jobs, Object

_NOW = "2026-11-21T12:00:00Z"


class TrainJobs(Jobs):
    """What Kubeflow Trainer does, with all pods' processes on this machine."""

    api_version, kind = "trainer.kubeflow.org/v1alpha1", "TrainJob"

    def run(self, job: Object) -> Object:
        trainer = job["spec"]["trainer"]
        world = trainer["numNodes"] * trainer["numProcPerNode"]
        assert trainer["command"][:2] == ["torchrun", "-m"]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [*launcher, *trainer["command"][1:], *trainer["args"]], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        self.logs.append(ran.stderr)
        kind, reason = ("Complete", "JobsCompleted") if ran.returncode == 0 else ("Failed", "BackoffLimitExceeded")
        return ended(kind, reason, "as its processes ended")


def ended(kind: str, reason: str, message: str) -> Object:
    """Return a status with a condition that holds."""
    condition = {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": _NOW}
    return {"conditions": [condition]}
