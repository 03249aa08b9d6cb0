"""What a DLRM's training needs to go on after an epoch as if it had never stopped, as one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from safetensors.torch import load, save_file
from torch import Tensor

WORTH_S: Final = 60.0
"""Seconds of an epoch from which on a checkpoint is left; a shorter one is learnt again as soon as it is read."""

TensorState = dict[str, Tensor]


class CheckpointStorage(Protocol):
    """Keeps one checkpoint; see `models.checkpoints.CheckpointPlace`."""

    def save(self, file: Path) -> None:
        """Keep a file in place of the one before."""

    def load(self) -> bytes | None:
        """Return the file kept; None when there is none."""


class Checkpoint(NamedTuple):
    """The state after an epoch. The loader's place is the epoch itself: its order depends on nothing else."""

    history: list[dict[str, Any]]
    """A line per epoch."""
    weights: TensorState
    """Of the model, with the accumulators of its rows."""
    optimizer: TensorState
    """Of `models.embedding.step.Step`."""
    best: TensorState
    """Weights of the best epoch; empty: they are `weights`."""
    admission: TensorState
    """Of `models.embedding.admission.Admission`; empty: there is none."""
    random: TensorState
    """States of the generators that dropout draws from, by device."""

    def save(self, place: CheckpointStorage) -> None:
        """Write it to a place."""
        history = np.frombuffer(json.dumps(self.history).encode(), np.uint8).copy()
        tensors = {"history": torch.from_numpy(history)}
        for part in _PARTS:
            state: TensorState = getattr(self, part)
            tensors |= {f"{part}/{name}": tensor.to("cpu").contiguous() for name, tensor in state.items()}
        with TemporaryDirectory(prefix="shortlist-checkpoint-") as folder:
            save_file(tensors, Path(folder) / "checkpoint.safetensors")
            place.save(Path(folder) / "checkpoint.safetensors")

    @classmethod
    def load(cls, place: CheckpointStorage) -> Checkpoint | None:
        """Return the checkpoint of a place; None when there is none."""
        content = place.load()
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
    """Return the states of the generators that a training on a device draws from."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if device == "cuda" else {})


def restore_random_states(states: TensorState) -> None:
    """Let the generators draw what they would have drawn next."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
