"""Files of each of several workers, and statistics that they combine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from models.dlrm.section import DLRMModel
from models.moments import compute_moments, mean_and_scale, merge_moments, standardisation
from shortlist.contracts import Columns, ShortlistError
from shortlist.ranking.inputs import LearningTable, features_matching, learning_split
from shortlist.ranking.process_group import current_group
from shortlist.ranking.ranker import IncompatibleModelError
from shortlist.ranking.row_weighting import ROW_WEIGHTING
from shortlist.spec.cluster import Workers
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.distributed.job import DistributedJob, first_failure, write_failure

SECTION = DLRMModel(features=("*",))


def test_every_file_is_one_workers_and_sums_stay_those_of_all(table: DayTable, runtime: Runtime) -> None:
    learning = LearningTable(table, features_matching(table, ("age",)))
    job = DistributedJob.plan("dlrm", SECTION, table, runtime, None, 2)
    shares = [learning.for_worker(job.files(rank)) for rank in (0, 1)]
    for part in ("train", "validation"):
        paths = [set(share.paths(part)) for share in shares]
        assert paths[0] | paths[1] == set(learning.paths(part)) and not paths[0] & paths[1]
    assert all(share.rows("train") == learning.rows("train") for share in shares)
    assert all(share.base_rate == learning.base_rate for share in shares)
    read = sum(frame.height for share in shares for frame in share.frames("train"))
    assert read == learning.rows("train")


def test_no_share_holds_a_test_day(table: DayTable, runtime: Runtime) -> None:
    job = DistributedJob.plan("dlrm", SECTION, table, runtime, None, 2)
    days = {pl.read_parquet(path)["day"][0] for rank in (0, 1) for path in job.files(rank)}
    assert table.days[-1].day not in days and table.days[0].day not in days


def test_moments_of_parts_are_those_of_the_whole() -> None:
    rows = np.random.default_rng(0).normal(50, 3, (1_000, 4)).astype(np.float32)
    rows[::7, 2] = np.nan
    rows[:, 3] = 5.0
    whole = standardisation([rows])
    parts = mean_and_scale(
        merge_moments(merge_moments(map(compute_moments, np.split(half, 5))) for half in (rows[:400], rows[400:]))
    )
    for whole_moment, combined_moment in zip(whole, parts, strict=True):
        np.testing.assert_allclose(whole_moment, combined_moment, rtol=1e-6)
    assert whole[1][3] == 1.0  # a column that never varies is not scaled


def test_a_job_is_read_as_it_was_written(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    job = DistributedJob.plan("dlrm", SECTION, table, runtime, tmp_path / "champion", 2)
    read = DistributedJob.read(job.write(tmp_path))
    assert read == job
    assert (read.day_table.days, read.day_table.notes) == (table.days, {**table.notes, ROW_WEIGHTING: None})


def test_a_job_says_what_no_process_could_learn_from_its_own_files(
    table: DayTable, runtime: Runtime, tmp_path: Path
) -> None:
    heavy = table.model_copy(update={"folder": tmp_path / "table"})
    for number, path in enumerate(table.paths()):
        to = heavy.folder / path.relative_to(table.folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        weight = pl.lit(1.0 + number % 2, pl.Float32).alias(Columns.WEIGHT)
        pl.read_parquet(path, hive_partitioning=False).with_columns(weight).write_parquet(to)
    job = DistributedJob.plan("dlrm", SECTION, heavy, runtime, None, 2)
    files = heavy.paths(set(learning_split(heavy, features_matching(heavy, SECTION.features)).train))
    rows = pl.concat([pl.read_parquet(path, columns=[Columns.WEIGHT], hive_partitioning=False) for path in files])
    assert job.day_table.notes[ROW_WEIGHTING]["mean"] == pytest.approx(rows[Columns.WEIGHT].mean())


def test_the_first_failure_is_told_with_its_kind(tmp_path: Path) -> None:
    assert first_failure(tmp_path) is None
    write_failure(IncompatibleModelError("other features"), tmp_path, 1)
    write_failure(ShortlistError("a follower"), tmp_path, 0)
    failure = first_failure(tmp_path)
    assert failure is not None
    with pytest.raises(IncompatibleModelError, match="other features"):
        raise failure.error()


def test_a_process_alone_has_no_group() -> None:
    assert current_group() is None


def test_every_worker_has_a_gpu() -> None:
    with pytest.raises(ValueError, match="4 GPUs for 8 processes; wanted one process per GPU"):
        Workers.model_validate({"processes": 8, "pod": {"gpus": 4}})
