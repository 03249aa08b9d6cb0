"""Feature values of a scored request, as columns of the prediction log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from shortlist.serving.export.signature import CODES, NO_CODE, NUMBERS, Signature
from shortlist.serving.log.logs import FEATURE_COLUMNS
from shortlist.serving.server.features.tensor_assembler import Tensors
from shortlist.serving.server.requests.tensors import Tensor

NO_FEATURES: Final[tuple[Any, ...]] = (None,) * len(FEATURE_COLUMNS)
"""Values of `FEATURE_COLUMNS` for a request that is not sampled."""


@dataclass(frozen=True)
class UsedFeatures:
    """Features that the model read for a request, without a copy."""

    tensors: Tensors
    counted_until: float | None
    """End of the newest tile that the snapshot counts, in seconds since 1970; None for a model without look-ups."""

    def columns(self, signature: Signature) -> tuple[Any, ...]:
        """Return the values of `FEATURE_COLUMNS`, in their order.

        Args:
            signature: Signature of the model.
        """
        moment = None if self.counted_until is None else datetime.fromtimestamp(self.counted_until, UTC)
        flat = (self.tensors[name].ravel() if name in self.tensors else None for name in (NUMBERS, CODES))
        vectors = [self.tensors[vector.tensor].ravel() for vector in signature.vectors]
        return (moment, *flat, self._lists(signature), np.concatenate(vectors) if vectors else None)

    def _lists(self, signature: Signature) -> Tensor | None:
        lists = [self.tensors[list_input.tensor] for list_input in signature.lists]
        if not lists:
            return None
        width = max(matrix.shape[1] for matrix in lists)
        padded = np.full((sum(len(matrix) for matrix in lists), width), NO_CODE, np.int64)
        start = 0
        for matrix in lists:
            padded[start : start + len(matrix), : matrix.shape[1]] = matrix
            start += len(matrix)
        return Tensor("lists", "INT64", padded.shape, padded.ravel())
