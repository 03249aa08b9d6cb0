"""Placement of a network's tables by TorchRec's planner; the only module that needs TorchRec."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from shortlist.contracts import ShortlistError
from shortlist.planning.accelerators import Accelerator, Precision
from shortlist.planning.model_shape import ModelShape
from shortlist.planning.plan import step_bytes
from shortlist.planning.sharding import RESERVED, Kind, TablePlacement

_KINDS: Final[dict[str, Kind]] = {
    "table_wise": "table-wise",
    "column_wise": "column-wise",
    "table_column_wise": "column-wise",
    "row_wise": "row-wise",
    "table_row_wise": "row-wise",
    "data_parallel": "copied",
}
_NODE: Final = 8
"""Devices of a node."""


def torchrec_placements(
    shape: ModelShape, device: Accelerator, precision: Precision, devices: int
) -> tuple[TablePlacement, ...]:
    """Return the placement of every table by TorchRec's planner (Ivchenko et al., 2022), which also considers speed.

    Args:
        shape: Shape of the network.
        device: The kind of device.
        precision: Precision of the perceptrons.
        devices: Number of devices.

    Raises:
        ShortlistError: TorchRec is not installed, or finds no plan that fits.
    """
    try:
        from torchrec.distributed.planner import EmbeddingShardingPlanner
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.distributed.planner.types import PlannerError
    except ImportError as error:
        raise ShortlistError(
            f"--torchrec: TorchRec cannot be imported ({error}); install requirements/torchrec.txt with --no-deps, or"
            " leave --torchrec out"
        ) from None
    logging.getLogger("torchrec.distributed.planner").setLevel(logging.ERROR)
    rows = -(-shape.batch // devices)
    planner = EmbeddingShardingPlanner(
        topology=_topology(device, devices, device.memory_bytes - step_bytes(shape, rows, precision)),
        batch_size=rows,
        storage_reservation=FixedPercentageStorageReservation(RESERVED),
    )
    try:
        sharding_plan = planner.plan(*_module(shape))
    except PlannerError as error:
        raise ShortlistError(
            f"--torchrec: no plan for {devices} x {device.name}: {str(error).splitlines()[0]}"
        ) from None
    return tuple(sorted(_placements(shape, sharding_plan.plan.values()), key=lambda placement: -placement.table.rows))


def _topology(device: Accelerator, devices: int, memory: float) -> Any:
    from torchrec.distributed.planner import Topology

    return Topology(
        world_size=devices, compute_device="cuda", local_world_size=min(_NODE, devices), hbm_cap=max(0, int(memory)),
        ddr_cap=0,  # no table half in host memory
        hbm_mem_bw=device.bandwidth / 1000,  # bytes per millisecond
    )  # fmt: skip


def _module(shape: ModelShape) -> tuple[Any, list[Any]]:
    """Return the tables as TorchRec's module, without memory, and its sharders."""
    import torch
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    tables = [
        EmbeddingBagConfig(
            name=table.name, embedding_dim=shape.width, num_embeddings=table.rows, feature_names=[table.name]
        )
        for table in shape.tables
    ]
    return EmbeddingBagCollection(device=torch.device("meta"), tables=tables), [EmbeddingBagCollectionSharder()]


def _placements(shape: ModelShape, modules: Iterable[Any]) -> Iterable[TablePlacement]:
    tables = {table.name: table for table in shape.tables}
    for module in modules:
        for name, parameter in module.items():
            yield TablePlacement(tables[name], _KINDS[parameter.sharding_type], tuple(parameter.ranks))
