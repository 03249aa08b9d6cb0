"""The scale of an fp16 loss: large enough that small gradients do not vanish, halved when large ones overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_FIRST: Final = 2.0**16
_GROWTH: Final = 2.0
_BACKOFF: Final = 0.5
GOOD_STEPS: Final = 2_000
"""Steps without an overflow after which the scale doubles; all four as in `torch.amp.GradScaler`."""


class LossScale:
    """The rules of `torch.amp.GradScaler`, for the perceptrons and the embedding rows together, all on the device.

    torch's own asks the device for the verdict where an optimizer is not its own; here nobody waits for it, so that a
    step can be a CUDA graph.
    """

    def __init__(self, device: str, first: float = _FIRST, good_steps: int = GOOD_STEPS) -> None:
        self._good_steps = good_steps
        self._scale = torch.full((), first, device=device)
        self._growth = torch.zeros((), dtype=torch.int32, device=device)
        self._astray = torch.zeros((), device=device)
        self._skipped = torch.zeros((), device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to derive."""
        return loss * self._scale

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide gradients by the scale in place, then move the scale.

        Args:
            gradients: Of everything that the step would move.

        Returns:
            1 when one of them is no finite number and nothing may move, else 0; on the device.
        """
        is_finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        inverse = self._scale.reciprocal()
        for gradient in gradients:
            gradient.mul_(inverse)
        self._astray.copy_(~is_finite)
        good_steps = torch.where(is_finite, self._growth + 1, 0)
        has_grown = good_steps == self._good_steps
        self._growth.copy_(torch.where(has_grown, 0, good_steps))
        larger = self._scale * _GROWTH
        grown = torch.where(has_grown & larger.isfinite(), larger, self._scale)
        self._scale.copy_(torch.where(is_finite, grown, self._scale * _BACKOFF))
        self._skipped.add_(self._astray)
        return self._astray

    def line(self) -> dict[str, float]:
        """Return what a line of the history says; waits for the device."""
        return {"loss_scale": float(self._scale), "skipped_steps": int(self._skipped)}

    def state(self) -> dict[str, Tensor]:
        """Return what it remembers, by name."""
        return {"scale.scale": self._scale, "scale.growth": self._growth, "scale.skipped": self._skipped}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        for name, own in self.state().items():
            own.copy_(state[name])
