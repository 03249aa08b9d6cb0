"""The losses of a pass: kept where the steps are computed, looked at every so many steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class NonFiniteLossError(ValueError):
    """A loss is no finite number.

    Attributes:
        step: Whose, from 1.
        rows: Of the pass before it.
        loss: What it is.
    """

    def __init__(self, step: int, rows: int, loss: float) -> None:
        super().__init__(f"the loss of step {step} is {loss}")
        self.step, self.rows, self.loss = step, rows, loss


class LossMonitor:
    """Sums up losses, and finds the first that is no finite number.

    Looking at a loss makes the host wait for its step, so on a GPU many are looked at together; a bad one is found that
    many steps late at most, and named exactly.

    Attributes:
        steps, rows: Looked at so far.
    """

    def __init__(self, every: int, device: str) -> None:
        self.steps = self.rows = 0
        self._total = 0.0
        self._waiting_K = torch.zeros(every, device=device)
        self._rows_K: list[int] = []

    @property
    def mean(self) -> float:
        """Mean log loss of a row."""
        return self._total / self.rows

    def add(self, loss: Tensor, rows: int) -> None:
        """Take the mean loss of a step and its rows.

        Raises:
            NonFiniteLossError: One of them is no finite number.
        """
        self._waiting_K[len(self._rows_K)] = loss
        self._rows_K.append(rows)
        if len(self._rows_K) == len(self._waiting_K):
            self.check_finite()

    def check_finite(self) -> None:
        """Look at the losses that wait.

        Raises:
            NonFiniteLossError: One of them is no finite number.
        """
        losses = self._waiting_K[: len(self._rows_K)].tolist()
        for loss, rows in zip(losses, self._rows_K, strict=True):
            self.steps += 1
            if not math.isfinite(loss):
                raise NonFiniteLossError(self.steps, self.rows, loss)
            self._total, self.rows = self._total + loss * rows, self.rows + rows
        self._rows_K.clear()
