"""One of the processes that train a model on a cluster (`torchrun -m shortlist.training.remote_worker OBJECTS KEY`).

Its share of the feature table comes from the object store, and the model goes there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import ShortlistError
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.training.job import FILE, MODEL, Failure, Job
from shortlist.training.worker import work


def work_remotely(objects: ObjectStore, key: str, rank: int, folder: Path) -> None:
    """Fetch the share of one process, train with the others, and let rank 0 publish the model.

    Args:
        objects: Where the job is.
        key: Of the job.
        rank: Of this process.
        folder: Scratch space.

    Raises:
        ShortlistError: The store is unavailable, the shares do not fit together, or training diverged.
    """
    job = Job.read(objects.fetch_folder(f"{key}/job", folder / "job") / FILE)
    table = objects.fetch_folder(f"{key}/share-{rank}", folder / "table")
    champion = Path(job.champion).name
    if champion:
        objects.fetch_folder(f"{key}/champion", folder / champion)
    here = {"table": str(table), "champion": str(folder / champion) if champion else ""}
    own = folder / "own"
    own.mkdir()
    work(job.model_copy(update=here).write(own), rank)
    if rank == 0:
        objects.put_folder(own / MODEL, f"{key}/{MODEL}")


def main() -> None:
    """Run one process; a user's mistake is a message in the store and an exit code."""
    root, key = sys.argv[1:]
    rank = int(os.environ["RANK"])
    try:
        objects = open_object_store(StorageConfig(objects=root))
        with TemporaryDirectory(prefix="shortlist-worker-") as folder:
            try:
                work_remotely(objects, key, rank, Path(folder))
            except ShortlistError as error:
                if not objects.read(f"{key}/failed.json"):  # the others stop because of the first
                    objects.write(f"{key}/failed.json", Failure.of(error).model_dump_json().encode())
                raise
    except ShortlistError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
