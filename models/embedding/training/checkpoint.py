"""The checkpoint of a training after an epoch, from which it resumes exactly, as one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from safetensors.torch import load, save_file
from torch import Tensor

MIN_EPOCH_S: Final = 60.0
"""Least seconds of an epoch for which a checkpoint is written; a shorter epoch is repeated as fast as it is loaded."""

TensorState = dict[str, Tensor]


class CheckpointStorage(Protocol):
    """Stores one checkpoint; see `shortlist.ranking.checkpoints.CheckpointLocation`."""

    def save(self, file: Path) -> None:
        """Store a file, replacing the previous one."""

    def load(self) -> bytes | None:
        """Return the content of the stored file; None when there is none."""


class Checkpoint(NamedTuple):
    """The state after an epoch. The loader has no state: its order depends on the epoch alone."""

    history: list[dict[str, Any]]
    """Metrics of every epoch."""
    weights: TensorState
    """State of the model, with the accumulators of its rows."""
    optimizer: TensorState
    """State of `models.embedding.training.step.TrainingStep`."""
    best: TensorState
    """Weights of the best epoch; empty: the best epoch is the last one."""
    admission: TensorState
    """State of `models.embedding.table.admission.BucketAdmission`; empty: there is none."""
    random: TensorState
    """States of the random generators of dropout, by device."""

    def save(self, storage: CheckpointStorage) -> None:
        """Write the checkpoint to a storage."""
        history = np.frombuffer(json.dumps(self.history).encode(), np.uint8).copy()
        tensors = {"history": torch.from_numpy(history)}
        for part in _PARTS:
            state: TensorState = getattr(self, part)
            tensors |= {f"{part}/{name}": tensor.to("cpu").contiguous() for name, tensor in state.items()}
        with TemporaryDirectory(prefix="shortlist-checkpoint-") as folder:
            save_file(tensors, Path(folder) / "checkpoint.safetensors")
            storage.save(Path(folder) / "checkpoint.safetensors")

    @classmethod
    def load(cls, storage: CheckpointStorage) -> Checkpoint | None:
        """Return the checkpoint in a storage; None when there is none."""
        content = storage.load()
        if content is None:
            return None
        parts: dict[str, TensorState] = {part: {} for part in _PARTS}
        tensors = load(content)
        history = json.loads(tensors.pop("history").numpy().tobytes())
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = tensor
        return cls(history, **parts)


_PARTS: Final = ("weights", "optimizer", "best", "admission", "random")


def random_states(device: str) -> TensorState:
    """Return the states of the random generators that a training on a device uses."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if device == "cuda" else {})


def restore_random_states(states: TensorState) -> None:
    """Restore the states of the random generators."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
