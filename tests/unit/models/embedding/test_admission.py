from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.admission import BucketAdmission
from models.embedding.table.cached_embeddings import CachedTable
from models.embedding.table.fused_table import FusedTable
from models.embedding.table.optimizer import RowWiseAdagrad
from models.embedding.training.step import StepOptions, TrainingStep
from shortlist.contracts import Files
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.record import TrainedModel
from shortlist.storage.artefacts import write_json, write_manifest

DAY = date(2026, 3, 10)
WIDTH = 4
PLAIN = TableFeature(name="item_id", kind="id", size=5)
RARE = TableFeature(name="user_hash", kind="id", size=8, hashed=True, admit_after=3)
PAGE = TableFeature(name="page_hash", kind="id", size=6, hashed=True)
LAYOUT = Layout.from_features((PLAIN, RARE, PAGE))
"""Rows 0 to 4 of items, 5 to 12 of users (5 is null's), 13 to 18 of pages."""
SECTION = DLRMModel(features=("*",), embedding_dim=WIDTH, bottom_mlp=(4,), top_mlp=(4,), batch_size=16)


def looked_up(*users: int) -> Lookups:
    """A batch of rows with item 1, these buckets of users, and page 2."""
    rows = torch.tensor([row for user in users for row in (1, 5 + user, 13 + 2)], dtype=torch.int32)
    return Lookups(rows, torch.arange(len(rows) + 1, dtype=torch.int32), None)


def of_users(mask: torch.Tensor | None) -> list[bool]:
    assert mask is not None
    assert mask.view(-1, 3)[:, [0, 2]].all()  # features without admission may always move
    return mask.view(-1, 3)[:, 1].tolist()


def test_a_bucket_is_admitted_in_the_batch_of_its_third_look_up() -> None:
    admission = BucketAdmission(LAYOUT, rows=100, last_day=DAY)
    assert of_users(admission.count_and_admit(looked_up(1, 2, 2))) == [False, False, False]
    assert of_users(admission.count_and_admit(looked_up(2, 1))) == [True, False]
    assert of_users(admission.count_and_admit(looked_up(4, 4, 1, 4))) == [True, True, True, True]


def test_null_is_no_rare_value() -> None:
    assert of_users(BucketAdmission(LAYOUT, rows=10, last_day=DAY).count_and_admit(looked_up(0, 1))) == [True, False]


def test_a_second_epoch_counts_no_row_twice() -> None:
    admission = BucketAdmission(LAYOUT, rows=4, last_day=DAY)
    for _ in range(5):
        assert of_users(admission.count_and_admit(looked_up(1, 2))) == [False, False]
        assert of_users(admission.count_and_admit(looked_up(1, 3))) == [False, False]
    assert admission.hash_collisions()["user_hash"].occupied == 3


def test_what_the_first_epoch_counted_holds_from_the_second_ones_first_batch() -> None:
    admission = BucketAdmission(LAYOUT, rows=4, last_day=DAY)
    assert of_users(admission.count_and_admit(looked_up(1, 2))) == [False, False]
    assert of_users(admission.count_and_admit(looked_up(1, 1))) == [True, True]
    assert of_users(admission.count_and_admit(looked_up(1, 2))) == [True, False]


def test_without_admission_all_rows_learn_and_buckets_are_counted() -> None:
    admission = BucketAdmission(Layout.from_features((PLAIN, PAGE)), rows=10, last_day=DAY)
    rows = torch.tensor([1, 5 + 2, 1, 5 + 2, 1, 5 + 4], dtype=torch.int32)
    assert admission.count_and_admit(Lookups(rows, torch.arange(7, dtype=torch.int32), None)) is None
    collisions = admission.hash_collisions()
    assert list(collisions) == ["page_hash"]
    assert (collisions["page_hash"].buckets, collisions["page_hash"].occupied, collisions["page_hash"].admitted) == (
        5,
        2,
        2,
    )


@given(st.lists(st.lists(st.integers(0, 7), max_size=12), max_size=8), st.integers(1, 5))
def test_it_says_what_counting_one_by_one_says(batches: list[list[int]], admit_after: int) -> None:
    layout = Layout.from_features((PLAIN, RARE.model_copy(update={"admit_after": admit_after}), PAGE))
    admission, counts = BucketAdmission(layout, rows=sum(map(len, batches)), last_day=DAY), Counter[int]()
    for users in batches * 2:
        if counts.total() < sum(map(len, batches)):
            counts.update(users)
        mask = admission.count_and_admit(looked_up(*users))
        assert (mask is None) == (admit_after == 1)
        if mask is not None:
            assert of_users(mask) == [user == 0 or counts[user] >= admit_after for user in users]
    collisions = admission.hash_collisions()["user_hash"]
    assert (collisions.buckets, collisions.occupied) == (7, sum(user > 0 for user in counts))
    assert collisions.admitted == sum(count >= admit_after for user, count in counts.items() if user)


def test_a_training_that_goes_on_from_a_checkpoint_keeps_its_counts() -> None:
    first, second = (BucketAdmission(LAYOUT, rows=4, last_day=DAY) for _ in range(2))
    first.count_and_admit(looked_up(1, 2))
    second.restore(first.state())
    for admission in (first, second):
        assert of_users(admission.count_and_admit(looked_up(1, 1))) == [True, True]
        assert of_users(admission.count_and_admit(looked_up(2, 2))) == [False, False]  # a second epoch


class NoHostSync(TorchDispatchMode):
    """Refuses what makes the host wait for a device, or whose result's shape the host must wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (
            torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default,
            torch.ops.aten.is_nonzero.default, torch.ops.aten._unique2.default, torch.ops.aten.masked_select.default,
        ), func  # fmt: skip
        return func(*args, **(kwargs or {}))


def test_no_batch_makes_the_host_wait() -> None:
    admission = BucketAdmission(LAYOUT, rows=100, last_day=DAY)
    with NoHostSync():
        admission.count_and_admit(looked_up(1, 2, 3))
    with pytest.raises(AssertionError), NoHostSync():  # it stops what it is there to stop
        torch.ones(3).sum().item()


def test_rows_to_be_admitted_start_at_zero_and_ordinary_rows_at_random() -> None:
    torch.manual_seed(0)
    table = FusedTable(LAYOUT, WIDTH)
    initial_weight = table.weight_RD.clone()
    BucketAdmission(LAYOUT, rows=1, last_day=DAY).zero_rows(table)
    assert torch.count_nonzero(table.weight_RD[5:13]) == 0
    assert torch.equal(table.weight_RD[:5], initial_weight[:5])
    assert torch.equal(table.weight_RD[13:], initial_weight[13:])


@pytest.mark.parametrize("cached", [False, True])
def test_an_admitted_row_learns_and_the_others_stay_zero(cached: bool) -> None:
    torch.manual_seed(0)
    table = CachedTable(LAYOUT, WIDTH, 14) if cached else FusedTable(LAYOUT, WIDTH)
    model = DLRM(LAYOUT, SECTION, table).train()
    admission = BucketAdmission(LAYOUT, rows=100, last_day=DAY)
    admission.zero_rows(table.whole if isinstance(table, CachedTable) else table)
    step = TrainingStep(model, SECTION, StepOptions(), "cpu")
    for labels, users in (([1, 0], (1, 2)), ([1, 1], (1, 3)), ([1, 0], (4, 5)), ([1, 0], (1, 6))):
        lookups = looked_up(*users)
        admitted = admission.count_and_admit(lookups)
        cached_lookups = table.prepare(lookups) if isinstance(table, CachedTable) else lookups
        step(Batch(torch.tensor(labels).float(), torch.zeros(len(labels), 1), cached_lookups), admitted)
        rows = model.state_dict()["table.weight_RD"][5:13]
        learnt = set(torch.nonzero(rows.abs().sum(1)).flatten().tolist())
        assert learnt == ({1} if users == (1, 6) else set())
    accumulated = model.state_dict()["table.squares_R"][5:13]
    assert torch.nonzero(accumulated).flatten().tolist() == [1]


def test_the_decay_does_not_pull_a_row_that_may_not_move() -> None:
    weight, squares = torch.ones(6, 2), torch.zeros(6)
    lookups = Lookups(torch.tensor([1, 3, 1]).int(), torch.arange(4).int(), None)
    RowWiseAdagrad(weight, squares, 0.1, decay=0.5).step(lookups, torch.ones(3, 2), torch.tensor([True, False, True]))
    assert (weight[1] < 1).all()
    assert (weight[3] == 1).all()
    assert squares[3] == 0


def saved(admission: BucketAdmission, folder: Path, days: tuple[date, ...] = (DAY,)) -> Path:
    """Write what a ranker's folder holds of a training: counts, and the record."""
    folder.mkdir()
    admission.save(folder)
    record = TrainedModel(
        kind="dlrm", name="dlrm", features=(), params={}, base_rate=0.5, train_days=tuple(map(str, days)),
        validation_days=(), train_rows=1, validation_rows=1, train_seconds=1, train_rows_per_s=1, seed=0,
    )  # fmt: skip
    write_json(folder / Files.MODEL, record.model_dump(mode="json"))
    write_manifest(folder)
    return folder


def test_a_warm_start_goes_on_counting(tmp_path: Path) -> None:
    first = BucketAdmission(LAYOUT, rows=100, last_day=DAY)
    first.count_and_admit(looked_up(1, 1, 2))
    folder = saved(first, tmp_path / "first")
    second = BucketAdmission(LAYOUT, rows=100, last_day=DAY + timedelta(1))
    second.resume_from(FusedTable(LAYOUT, WIDTH), folder)
    assert of_users(second.count_and_admit(looked_up(1, 2, 3))) == [True, False, False]
    assert second.hash_collisions()["user_hash"].occupied == 3  # of its own days
    third = BucketAdmission(LAYOUT, rows=100, last_day=DAY + timedelta(2))
    third.resume_from(FusedTable(LAYOUT, WIDTH), saved(second, tmp_path / "second"))
    assert of_users(third.count_and_admit(looked_up(2, 3))) == [True, False]


def test_rows_of_a_model_that_counted_nothing_are_admitted_when_they_learnt(tmp_path: Path) -> None:
    plain = BucketAdmission(Layout.from_features((PLAIN, PAGE)), rows=10, last_day=DAY)
    folder = saved(plain, tmp_path / "before")
    assert not (folder / "admission.safetensors").exists()  # nothing was declared, nothing is kept
    table = FusedTable(LAYOUT, WIDTH)
    table.squares_R[5 + 4] = 0.1
    admission = BucketAdmission(LAYOUT, rows=10, last_day=DAY + timedelta(1))
    admission.resume_from(table, folder)
    assert of_users(admission.count_and_admit(looked_up(4, 3))) == [True, False]


def test_a_bucket_not_seen_for_longer_than_declared_is_freed(tmp_path: Path) -> None:
    forgetful = RARE.model_copy(update={"evict_after_days": 5})
    layout = Layout.from_features((PLAIN, forgetful, PAGE))
    first = BucketAdmission(layout, rows=100, last_day=DAY)
    first.count_and_admit(looked_up(1, 1, 1, 2, 2, 2))
    second = BucketAdmission(layout, rows=100, last_day=DAY + timedelta(3))
    table = FusedTable(layout, WIDTH)
    second.resume_from(table, saved(first, tmp_path / "first"))
    second.count_and_admit(looked_up(2))
    folder = saved(second, tmp_path / "second", (DAY, DAY + timedelta(3)))

    for days, remembered in ((5, [1, 2]), (6, [2]), (8, [2]), (9, [])):
        torch.manual_seed(0)
        table = FusedTable(layout, WIDTH)
        table.squares_R += 0.5
        initial_weight = table.weight_RD.clone()
        resumed = BucketAdmission(layout, rows=100, last_day=DAY + timedelta(days))
        resumed.resume_from(table, folder)
        for user in range(1, 8):
            assert torch.equal(
                table.weight_RD[5 + user], initial_weight[5 + user] if user in remembered else torch.zeros(WIDTH)
            )
            assert table.squares_R[5 + user] == (0.5 if user in remembered else 0.0)
        assert torch.equal(table.weight_RD[:5], initial_weight[:5])  # of a feature that forgets nothing
        assert torch.equal(table.weight_RD[13:], initial_weight[13:])
        assert of_users(resumed.count_and_admit(looked_up(1, 2))) == [1 in remembered, 2 in remembered]


def test_what_is_kept_is_named_by_feature_and_holds_no_more_than_is_declared(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    admission = BucketAdmission(LAYOUT, rows=100, last_day=DAY)
    admission.count_and_admit(looked_up(1, 1, 2))
    admission.save(tmp_path)
    tensors = load_file(tmp_path / "admission.safetensors")
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "user_hash.counts": [0, 2, 1, 0, 0, 0, 0, 0],
        "user_hash.last_seen": [0, DAY.toordinal(), DAY.toordinal(), 0, 0, 0, 0, 0],
    }
