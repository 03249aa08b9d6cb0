"""One of the processes that train a model on a cluster; `torchrun -m` starts it with an object store and a key.

It fetches its share of the feature table from the object store, and rank 0 uploads the model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import ShortlistError
from shortlist.pods.failure import JobFailure
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.training.distributed.job import FILE, MODEL, DistributedJob
from shortlist.training.distributed.worker import train_as_worker


def train_remotely(objects: ObjectStore, key: str, rank: int, folder: Path) -> None:
    """Fetch the share of one process, train with the others, and let rank 0 publish the model.

    Args:
        objects: Object store of the job.
        key: Key of the job.
        rank: Rank of this process.
        folder: Scratch space.

    Raises:
        ShortlistError: The store is unavailable, table, section and champion are incompatible, or training diverged.
    """
    job = DistributedJob.read(objects.fetch_folder(f"{key}/job", folder / "job") / FILE)
    table = objects.fetch_folder(f"{key}/share-{rank}", folder / "table")
    champion = Path(job.champion).name
    if champion:
        objects.fetch_folder(f"{key}/champion", folder / champion)
    local_paths = {"table": str(table), "champion": str(folder / champion) if champion else ""}
    job_folder = folder / "own"
    job_folder.mkdir()
    train_as_worker(job.model_copy(update=local_paths).write(job_folder), rank)
    if rank == 0:
        objects.put_folder(job_folder / MODEL, f"{key}/{MODEL}")


def main() -> None:
    """Run one process; a mistake of the user is written to the store and ends with exit code 1."""
    root, key = sys.argv[1:]
    rank = int(os.environ["RANK"])
    try:
        objects = open_object_store(StorageConfig(objects=root))
        with TemporaryDirectory(prefix="shortlist-worker-") as folder:
            try:
                train_remotely(objects, key, rank, Path(folder))
            except ShortlistError as error:
                if not objects.read(f"{key}/failed.json"):  # the others stop because of the first
                    objects.write(f"{key}/failed.json", JobFailure.from_error(error).model_dump_json().encode())
                raise
    except ShortlistError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
