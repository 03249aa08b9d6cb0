"""One of several processes that train a model on this machine; torchrun starts it with the file of its job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from shortlist.contracts import ShortlistError
from shortlist.ranking.devices import torch_device
from shortlist.ranking.process_group import join_group
from shortlist.ranking.saved_models import ranker_class
from shortlist.system.progress import EVENTS_VARIABLE
from shortlist.training.distributed.job import MODEL, DistributedJob, write_failure


def train_as_worker(path: Path, rank: int) -> None:
    """Train a job's model with the others; rank 0 writes it, whole, beside the job.

    Raises:
        ShortlistError: Table, section and champion are incompatible, or training diverged.
    """
    job = DistributedJob.read(path)
    # The processes of a machine share its memory.
    budget = max(64, job.runtime.memory_budget_mib // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    runtime = job.runtime.model_copy(update={"memory_budget_mib": budget})
    ranker_type = ranker_class(job.kind)
    ranker = ranker_type(ranker_type.section_type.model_validate(job.section), job.name)
    if rank:
        os.environ.pop(EVENTS_VARIABLE, None)  # one progress bar is enough
    cuda = torch_device(job.runtime.engine) == "cuda"
    with join_group(job.files(rank), cuda, job.wait_seconds):
        ranker.fit(job.day_table, runtime, champion=Path(job.champion) if job.champion else None)
        if rank == 0:
            ranker.save(path.parent / MODEL)


def main() -> None:
    """Run one process; a mistake of the user is written to a file and ends with exit code 1."""
    path, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    try:
        train_as_worker(path, rank)
    except ShortlistError as error:
        write_failure(error, path.parent, rank)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
