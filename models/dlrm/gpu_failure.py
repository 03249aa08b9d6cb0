"""A GPU that fails in the middle of a training: what that looks like, and what to do."""

from __future__ import annotations

import torch

from models.dlrm.training_progress import TrainingProgress
from shortlist.contracts import ShortlistError


class GpuFailureError(ShortlistError):
    """The GPU failed in the middle of a training; the weights on it are gone."""


def gpu_failure(error: RuntimeError, device: str, step: int, so_far: TrainingProgress) -> GpuFailureError | None:
    """Return what a failure of the GPU means for a training; None when the error is none.

    Args:
        error: What torch says.
        device: Where the training ran.
        step: The last one begun in the running epoch; the GPU may have failed earlier, for nobody waits for it.
        so_far: Epochs that are learnt, and the one that a checkpoint was left of.
    """
    # Failures of cuBLAS and cuDNN have no class of their own.
    if not isinstance(error, torch.AcceleratorError) and not str(error).startswith("CUDA error"):
        return None
    why = str(error).partition("\n")[0]
    where = f"at or shortly before step {step} of epoch {len(so_far.history) + 1}"
    kept = (
        f"The checkpoint of epoch {so_far.kept} is kept: start the same run again, and it goes on from there"
        if so_far.kept
        else "No checkpoint was left yet: start the same run again, and it begins anew"
    )
    return GpuFailureError(
        f"models.dlrm: {device} was lost {where} ({why}). {kept} (a step that Kubeflow retries does so by itself)."
        " If it happens again, look for Xid errors in the node's kernel log, and drain the node."
    )
