"""Distributed training by several processes on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from shortlist.contracts import ShortlistError
from shortlist.training.distributed.job import MODEL, DistributedJob, first_failure

_LOG = "workers.log"
_LAUNCHER_LINE = re.compile(r"^[EW]\d{4} ", re.MULTILINE)
"""Start of the launcher's log lines."""
_DEAD_PROCESS = re.compile(r"rank\s*:\s*(?P<rank>\d+).*?exitcode\s*:\s*(?P<code>-?\d+)", re.DOTALL)


def train_locally(job: DistributedJob, out_model: Path) -> None:
    """Train a job's model by as many processes as it has shares; the model's folder appears whole or not at all.

    Args:
        job: The distributed job.
        out_model: Folder to write.

    Raises:
        IncompatibleModelError: The training cannot continue the champion.
        ShortlistError: A process stopped for a mistake of the user, or died; the others were stopped too.
    """
    folder = out_model.with_name(out_model.name + ".job")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        _run(job.write(folder), len(job.shares))
        shutil.rmtree(out_model, ignore_errors=True)
        (folder / MODEL).rename(out_model)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(job: Path, world: int) -> None:
    """Run the processes to their end; torchrun stops all of them when one fails."""
    # The rendezvous listens only on this machine, and the cores are divided equally.
    threads = str(max(1, (os.cpu_count() or 1) // world))
    worker_environment = {"OMP_NUM_THREADS": threads, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    command = [*torchrun(world), "-m", "shortlist.training.distributed.worker", str(job)]
    with (job.parent / _LOG).open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **worker_environment}, stdout=log, stderr=log)  # noqa: S603 - our own
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)  # torchrun stops its processes
            process.wait()
            raise
    if code:
        raise _failure_error(job.parent, world)


def torchrun(world: int) -> list[str]:
    """Return the torchrun command for a number of processes; it looks up no host name."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(world),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--local-addr", "localhost",
    ]  # fmt: skip


def _failure_error(folder: Path, world: int) -> ShortlistError:
    failure = first_failure(folder)
    if failure is not None:
        return failure.error()
    log = (folder / _LOG).read_text(errors="replace")
    # torchrun names the process that failed first under "Root Cause".
    dead_process = _DEAD_PROCESS.search(log.rpartition("Root Cause")[2])
    process_title = f"process {dead_process['rank']} of {world}" if dead_process else f"one of {world} processes"
    code = int(dead_process["code"]) if dead_process else 1
    if code < 0:
        reason = f"was killed by {signal.Signals(-code).name}" + (
            ", most often for want of memory. Declare fewer processes, a smaller batch_size or a smaller"
            " runtime.memory_budget_mib" if -code == signal.SIGKILL else ""
        )  # fmt: skip
    else:
        reason = f"ended with exit code {code}:\n{_traceback(log)}"
    return ShortlistError(
        f"training by {world} processes stopped: {process_title} {reason}. All were stopped; nothing was written."
    )


def _traceback(log: str) -> str:
    """Return the last lines of a process before torchrun's log lines."""
    worker_output = _LAUNCHER_LINE.split(log)[0]
    return "\n".join([line for line in worker_output.splitlines() if line.strip()][-15:])
