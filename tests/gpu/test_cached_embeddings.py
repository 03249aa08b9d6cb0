"""A cached table on a GPU: only a GPU can show the order of its asynchronous copies."""

from __future__ import annotations

from datetime import date

import pytest
import torch

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.admission import BucketAdmission
from models.embedding.table.cached_embeddings import CachedTable
from models.embedding.table.fused_table import FusedTable
from models.embedding.table.table_memory import free_memory
from models.embedding.training.cuda_graphs import make_step
from models.embedding.training.step import step_options
from shortlist.ranking.inputs import TableFeature

pytestmark = pytest.mark.gpu

WIDTH, ROWS = 32, 2_048
LAYOUT = Layout.from_features(
    (
        TableFeature(name="user", kind="id", size=200_000, hashed=True, admit_after=2),
        TableFeature(name="item", kind="id", size=50_000),
    )
)


def batches(count: int) -> list[Batch]:
    random = torch.Generator().manual_seed(1)
    random_batches = []
    for _ in range(count):
        places = torch.rand(ROWS, 2, generator=random) ** 4  # few ids are frequent
        rows = (places * torch.tensor([200_000, 50_000])).int() + torch.tensor([0, 200_000]).int()
        lookups = Lookups(rows.flatten(), torch.arange(2 * ROWS + 1).int(), None)
        random_batches.append(Batch((places[:, 0] < 0.1).float(), torch.zeros(ROWS, 1), lookups))
    return random_batches


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_weights_are_bit_by_bit_those_of_the_whole_table_on_the_gpu(cuda_graphs: bool, fused: bool) -> None:
    section = DLRMModel(
        features=("*",), embedding_dim=WIDTH, batch_size=ROWS, precision="fp32", compile="off", cuda_graphs=cuda_graphs
    )
    states = []
    for slots in (None, 6_000):
        torch.manual_seed(0)
        table = FusedTable(LAYOUT, WIDTH) if slots is None else CachedTable(LAYOUT, WIDTH, slots)
        model = DLRM(LAYOUT, section, table).to("cuda").train()
        step = make_step(model, section, step_options(section, "cuda")._replace(fused=fused), "cuda")
        admission = BucketAdmission(LAYOUT, 100 * ROWS, date(2026, 1, 1))
        for batch in batches(100):
            admitted = admission.count_and_admit(batch.lookups)
            assert admitted is not None
            cached = batch if slots is None else batch._replace(lookups=table.prepare(batch.lookups))  # type: ignore[operator]
            step(cached.to("cuda"), admitted.to("cuda"))
        states.append({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    assert torch.count_nonzero(states[0]["table.squares_R"]) > 2 * 6_000
    for name, tensor in states[0].items():
        assert torch.equal(states[1][name], tensor), name


def test_a_batch_on_the_gpu_is_prepared_and_counted_on_the_device() -> None:
    table = CachedTable(LAYOUT, WIDTH, 6_000).to("cuda")
    lookups = batches(1)[0].to("cuda").lookups
    cached = table.prepare(lookups)
    assert cached.rows_L.is_cuda
    assert torch.equal(table(cached).cpu(), table.whole.weight_RD[lookups.rows_L.cpu().long()])
    admitted = BucketAdmission(LAYOUT, ROWS, date(2026, 1, 1)).count_and_admit(lookups)
    assert admitted is not None
    assert admitted.is_cuda


def test_the_memory_of_this_gpu_is_measured() -> None:
    memory = free_memory()
    assert 0 < memory.device_free <= memory.device_total
    assert memory.host_free > 0
