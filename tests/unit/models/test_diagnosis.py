from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch, Chunk
from models.embedding.training.diagnosis import Diagnosis, diagnose, diagnose_table
from shortlist.contracts import ShortlistError
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

SECTION = DLRMModel(features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,), batch_size=100)


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Fabricated:
    """Steps that take the milliseconds they are told; a batch that was seen before takes `again`."""

    def __init__(self, clock: Clock, whole: float, embeddings: float, network: float, repeated: float) -> None:
        self._clock, self._took, self._retry = clock, {"e": embeddings, "n": network, "w": whole}, repeated
        self._seen_batches: set[int] = set()

    def whole(self, batch: Batch) -> None:
        self._clock.now += (self._retry if id(batch) in self._seen_batches else self._took["w"]) / 1_000
        self._seen_batches.add(id(batch))

    def embeddings(self, batch: Batch) -> None:
        self._clock.now += self._took["e"] / 1_000

    def network(self, batch: Batch) -> None:
        self._clock.now += self._took["n"] / 1_000


BATCHES = [
    Chunk(np.zeros(2, np.float32), np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int32), ()).batch(0, 2)
    for _ in range(30)
]


def loaded(clock: Clock, wait_ms: float, count: int = 30) -> Iterator[Batch]:
    for batch in BATCHES[:count]:
        clock.now += wait_ms / 1_000
        yield batch


def diagnosed(wait: float, whole: float, embeddings: float, network: float, repeated: float) -> Diagnosis:
    clock = Clock()
    return diagnose(loaded(clock, wait), Fabricated(clock, whole, embeddings, network, repeated), 10, clock)


@pytest.mark.parametrize(
    ("milliseconds", "bound", "advice"),
    [
        ((30, 10, 4, 6, 10), "loader", r"The loader bounds .* 75% of the time .* Raise runtime\.memory_budget_mib"),
        ((1, 10, 7, 2, 10), "embeddings", r"alone they take 7\.0 ms, the network 2\.0 ms\. Lower .*embedding_dim"),
        ((1, 10, 7, 2, 5), "embeddings", r"2\.0 ms; the same rows again are quicker, so fetching"),
        ((1, 10, 2, 7, 10), "network", r"alone it takes 7\.0 ms, the embeddings 2\.0 ms\. Narrow the model's bottom"),
    ],
)
def test_what_is_slow_is_named(milliseconds: tuple[float, ...], bound: str, advice: str) -> None:
    diagnosis = diagnosed(*milliseconds)
    assert diagnosis.bound == bound
    with pytest.raises(AssertionError, match=advice):
        raise AssertionError(diagnosis.advice)


def test_figures_are_those_of_the_steps() -> None:
    diagnosis = diagnosed(5, 20, 8, 11, 15)
    assert diagnosis == pytest.approx((5, 20, 15, 8, 11))
    assert diagnosis.loader_share == pytest.approx(5 / (5 + 20))


def test_too_few_batches_are_not_judged() -> None:
    clock = Clock()
    with pytest.raises(ShortlistError, match=r"give 3 batch\(es\); wanted more than 3 to measure"):
        diagnose(loaded(clock, 1, count=3), Fabricated(clock, 1, 1, 1, 1), 10, clock)


def test_a_real_training_is_taken_apart(table: DayTable) -> None:
    diagnosis = diagnose_table(table, SECTION, Runtime(engine="cpu"), count=5, model=DLRM)
    assert min(diagnosis) > 0
    assert diagnosis.bound in ("loader", "embeddings", "network")
