"""Rows per second of DLRM training: ours, loader included, and facebookresearch/dlrm's design.

Both sides start from the same weights, and each has a process of its own: memory that one has freed helps only itself.
The peer gets its batches for nothing, from memory; ours shuffles and loads them, and is compiled where there is a C++
compiler, as `compile: auto` does for a long log. Before anything is timed, all learn the same rows: ours in bf16
must rank the validation rows as well as ours in float32, not compiled, with the same loss curve, and have a loss no
worse than the peer's. The bound is the matrix products of the perceptrons alone, in the narrowest type that
the processor multiplies natively.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from itertools import islice, pairwise
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.bench import ROUNDS, Cost, Line, cost, record, show
from benchmarks.criteo_table import CHUNK_ROWS, PAST, write_table
from benchmarks.peers.fb_dlrm_training import Naumov, NaumovTraining
from benchmarks.targets import exit_code
from models.dcn.network import DCN
from models.dcn.section import DCNModel
from models.din.network import DIN
from models.din.section import DINModel
from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.batches import BatchLoader, ChunkStore, pool_rows
from models.embedding.reading.chunks import Batch
from models.embedding.reading.layout import AttendedSequence, Layout
from models.embedding.table.precision import narrow_dtype, precision_of
from models.embedding.training.step import compile_obstacle
from models.embedding.training.train import Training, score_batch
from models.embedding_section import EmbeddingSection
from models.finalnet.network import FinalNet
from models.finalnet.section import FinalNetModel
from models.moments import standardisation
from models.wide_deep.network import WideDeep
from models.wide_deep.section import WideDeepModel
from shortlist.contracts import Files
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.storage.tables import DayTable

SECTIONS: Final = {
    "Kaggle dims": DLRMModel(
        features=("*",), embedding_dim=16, bottom_mlp=(512, 256, 64), top_mlp=(512, 256), batch_size=8_192
    ),
    "MLPerf dims": DLRMModel(
        features=("*",), embedding_dim=128, bottom_mlp=(512, 256), top_mlp=(1_024, 1_024, 512, 256), batch_size=2_048
    ),
}
_ROW: Final[Any] = {"features": ("I*", "C*"), "embedding_dim": 16, "batch_size": 8_192}
_DEEP: Final[Any] = _ROW | {"deep_mlp": (512, 256)}
_DLRM: Final[Any] = _ROW | {"bottom_mlp": (512, 256, 64), "top_mlp": (512, 256)}
_DLRM_WITH_SEQUENCE: Final = "dlrm, and the mean of a sequence"
KINDS: Final = {
    "dlrm": (DLRM, DLRMModel(**_DLRM)),
    "dcn, rank 64": (DCN, DCNModel(**_DEEP)),
    "dcn, full rank": (DCN, DCNModel(**_DEEP, cross_rank=None)),
    "wide_deep": (WideDeep, WideDeepModel(**_DEEP)),
    "finalnet": (FinalNet, FinalNetModel(**_ROW, mlp=(512, 256))),
    _DLRM_WITH_SEQUENCE: (DLRM, DLRMModel(**_DLRM | {"features": ("I*", "C*", PAST)})),
    "din, the same sequence": (DIN, DINModel(**_DLRM, history=PAST, target="C3_id")),
}
"""Networks of equal widths: that of an embedding row, and those of the layers above all inputs."""
REFERENCES: Final = {"din, the same sequence": _DLRM_WITH_SEQUENCE}
"""What a kind is compared with; DLRM, where nothing is said."""
KIND_LAST: Final = 20
"""Most ids of the sequence."""
KIND_ROWS: Final = 200_000
KIND_STEPS: Final = 6
"""Steps per round of a kind."""
KIND_SECONDS: Final = 120.0
"""After which no round begins."""
KIND_ROUNDS_AT_LEAST: Final = 3
ONLY_KINDS: Final = "kinds"
"""What compares the networks among each other, as an argument of the program."""
TRAIN_ROWS: Final = 500_000
LESSON_ROWS: Final = {"Kaggle dims": 500_000, "MLPerf dims": 200_000}
"""Rows that are learnt for the check."""
STEPS: Final = 15
"""Steps per round."""
TOLERANCE: Final = 1e-3
PEER: Final = "fb/dlrm's design, re-implemented"
PEER_RATE: Final = 0.1
"""SGD's step in its own script for the Kaggle log; 1 and 5 learn hardly faster (after 100 batches of 2 048: log loss
0.630 with 0.1, 0.625 with 1, 0.628 with 5)."""


class Side:
    """One side of the comparison, in a process of its own."""

    def __init__(
        self, folder: str, section: EmbeddingSection, kind: str, model: type[EmbeddingModel] = DLRM
    ) -> None:  # fmt: skip
        table = DayTable.open(Path(folder), Files.TABLE)
        learning = LearningTable(table, features_matching(table, section.reads))
        attended = AttendedSequence(section.history, section.target) if isinstance(section, DINModel) else None
        layout = Layout.from_features(learning.features, attended=attended)
        store = ChunkStore(learning, layout, 2**31)
        self._section, self._kind = section, kind
        pool = pool_rows(layout, CHUNK_ROWS)
        self._train = BatchLoader(store, learning.paths("train"), section.batch_size, pool, seed=17)
        self._validation = BatchLoader(store, learning.paths("validation"), 8_192, pool, seed=17)
        mean_F, scale_F = standardisation(store.iter_dense(learning.paths("train")))
        self._mean_F, self._scale_F = torch.from_numpy(mean_F), torch.from_numpy(scale_F)
        torch.manual_seed(17)
        self._model = model(layout, section)
        self._model.network.mean_F.copy_(self._mean_F)
        self._model.network.scale_F.copy_(self._scale_F)
        self._model.network.set_base_rates(learning.base_rate)
        if kind == "peer":
            assert isinstance(section, DLRMModel)
            starts = layout.starts[: len(layout.singles)]
            bottom = (layout.floats, *section.bottom_mlp)
            network = Naumov(
                [feature.size or 0 for feature in layout.singles], section.embedding_dim, bottom, section.top_mlp
            )
            network.start_as(self._model, starts)
            self._peer = NaumovTraining(network, starts, PEER_RATE)
        else:
            self._training = Training(self._model, section, "cpu")

    def learn(self, rows: int) -> tuple[list[float], float, float]:
        """Learn from the first rows; return the loss of every tenth of the way, and validation log loss and AUC."""
        batches = list(islice(self._train.shuffled(1), -(-rows // self._section.batch_size)))
        self._model.train()
        losses = [self._learn_from(batch) for batch in batches]
        curve = [float(np.mean(tenth)) for tenth in np.array_split(losses, 10)]
        validation = list(self._validation.in_order())
        truth = np.concatenate([batch.labels_B.numpy() for batch in validation])
        scores = np.concatenate([self._scores(batch) for batch in validation]).astype(np.float64)
        return curve, float(log_loss(truth, scores)), float(roc_auc_score(truth, scores))

    def round(self, number: int, count: int = STEPS) -> tuple[int, Cost]:
        """Take so many steps; return their rows and what they cost: ours with the loader, the peer without."""
        rows = 0
        self._model.train()
        batches = islice(self._train.shuffled(number), count)
        batch_source = list(batches) if self._kind == "peer" else batches

        def steps() -> None:
            nonlocal rows
            for batch in batch_source:
                self._learn_from(batch)
                rows += batch.rows

        step_cost = cost(steps)
        return rows, step_cost

    def _learn_from(self, batch: Batch) -> float:
        if self._kind == "peer":
            return self._peer.step(batch, self._standard(batch))
        return float(self._training.train_batch(batch))  # waits for it

    def _scores(self, batch: Batch) -> np.ndarray:
        if self._kind == "peer":
            return self._peer.scores(batch, self._standard(batch)).numpy()
        return score_batch(self._model, batch)

    def _standard(self, batch: Batch) -> torch.Tensor:
        return torch.nan_to_num((batch.dense_BF - self._mean_F) * self._scale_F, nan=0.0)


_side: Side


def _begin(folder: str, section: EmbeddingSection, kind: str, model: type[EmbeddingModel] = DLRM) -> None:
    global _side  # noqa: PLW0603 - what a process of the pool keeps between calls
    _side = Side(folder, section, kind, model)


def _learn(rows: int) -> tuple[list[float], float, float]:
    return _side.learn(rows)


def _round(number: int) -> tuple[int, Cost]:
    return _side.round(number)


def bound(section: DLRMModel, floats: int, vectors: int) -> float:
    """Return the rows per second of the perceptrons' matrix products alone, forward and backward."""
    width = section.embedding_dim
    bottom = (floats, *section.bottom_mlp, width)
    top = (width + vectors * (vectors - 1) // 2, *section.top_mlp, 1)
    dtype = narrow_dtype(precision_of(section, "cpu")) or torch.float32
    work: list[Callable[[], torch.Tensor]] = []
    for inputs, outputs in (*pairwise(bottom), *pairwise(top)):
        x, w = torch.rand(section.batch_size, inputs, dtype=dtype), torch.rand(outputs, inputs, dtype=dtype)
        g = torch.rand(section.batch_size, outputs, dtype=dtype)
        work += [lambda x=x, w=w: x @ w.t(), lambda g=g, x=x: g.t() @ x]
        work += [lambda g=g, w=w: g @ w] if inputs != floats else []

    def step() -> None:
        for product in work:
            product()

    step()
    return section.batch_size / median(cost(step).wall_s for _ in range(ROUNDS))


def check(sides: dict[str, Pool], rows: int) -> list[str]:
    """Let every side learn the same rows, and compare; return what was found.

    Raises:
        AssertionError: Ours, compiled and in bf16, differs from plain float32, or learns worse than the peer.
    """
    losses = {kind: side.apply(_learn, (rows,)) for kind, side in sides.items()}
    narrow, wide, peer = (losses[kind] for kind in ("ours", "fp32", "peer"))
    assert abs(narrow[2] - wide[2]) <= TOLERANCE, f"AUC {narrow[2]:.5f} in bf16, {wide[2]:.5f} in float32"
    assert max(abs(a - b) for a, b in zip(narrow[0], wide[0], strict=True)) <= 0.01, "the loss curves differ"
    assert narrow[1] <= peer[1] + 0.005, f"log loss {narrow[1]:.4f}, the peer's {peer[1]:.4f}"
    return [f"{kind}: log loss {loss:.4f}, AUC {auc:.5f}" for kind, (_, loss, auc) in losses.items()]


def compare(folder: str, name: str, status: Callable[[str], None]) -> tuple[list[Line], list[str]]:
    """Check and time one set of widths."""
    section = SECTIONS[name]
    spawn = multiprocessing.get_context("spawn")
    compile_ = "off" if compile_obstacle("cpu") else "on"
    kinds = {
        "ours": section.model_copy(update={"compile": compile_}),
        "fp32": section.model_copy(update={"precision": "fp32", "compile": "off"}),
        "peer": section,
    }
    sides = {kind: spawn.Pool(1, _begin, (folder, section, kind)) for kind, section in kinds.items()}
    try:
        status(f"{name}: checking that all learn the same")
        checked = check(sides, LESSON_ROWS[name])
        rounds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in sides}
        for number in range(ROUNDS):
            for kind, side in sides.items():
                status(f"{name}, {kind}, round {number + 1}")
                rows, spent = side.apply(_round, (number,))
                rounds[kind].append((rows / spent.wall_s, rows / spent.cpu_s))
    finally:
        for side in sides.values():
            side.terminate()
    status(f"{name}, the bound")
    bound_rate = bound(section, 13, 27)
    rates = {kind: tuple(map(median, zip(*kind_rounds, strict=True))) for kind, kind_rounds in rounds.items()}
    titles = {"ours": "ours", "fp32": "ours, float32", "peer": PEER}
    lines = [_line(f"{name}, {titles[kind]}", rates[kind][0], rates["peer"][0], bound_rate) for kind in rates]
    by_cpu = rates["ours"][1] / rates["peer"][1]
    lines.append(
        Line("train", f"{name}, ours, per processor second", round(rates["ours"][1]), "rows/s", PEER, round(by_cpu, 3))
    )
    checked += [f"ours was not compiled: {reason}"] if (reason := compile_obstacle("cpu")) else []
    return lines, [f"{name}: {line}" for line in checked]


def compare_kinds(folder: str, status: Callable[[str], None]) -> list[Line]:
    """Time every kind of network, one round of each after the other, in one process; not compiled.

    Rounds end when there are enough, or when they have taken `KIND_SECONDS`: what matters is the ratio, and whatever
    else the machine does meets all kinds alike.
    """
    sides = {
        name: Side(folder, section.model_copy(update={"compile": "off"}), "ours", model)
        for name, (model, section) in KINDS.items()
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    start = time.perf_counter()
    for number in range(ROUNDS + 1):  # the first one decodes the rows and takes memory, and does not count
        if number > KIND_ROUNDS_AT_LEAST and time.perf_counter() - start > KIND_SECONDS:
            break
        for name, side in sides.items():
            status(f"{name}, round {number}")
            rows, spent = side.round(number, KIND_STEPS)
            rates[name] += [rows / spent.cpu_s] if number else []
    # Of a round, not of the medians: a neighbour that takes the cache slows the kinds of one round alike.
    lines = []
    for name, kind_rates in rates.items():
        peer = REFERENCES.get(name, "dlrm")
        ratio = median(rate / peer_rate for rate, peer_rate in zip(kind_rates, rates[peer], strict=True))
        lines.append(Line("train kinds", name, round(median(kind_rates)), "rows/processor s", peer, round(ratio, 3)))
    return lines


def _line(name: str, rate: float, peer: float, bound_rate: float) -> Line:
    return Line("train", name, round(rate), "rows/s", PEER, round(rate / peer, 3), round(rate / bound_rate, 3))


def main(names: Any = (*SECTIONS, ONLY_KINDS)) -> int:
    """Print the tables and write the results; exit code 1 when one is not as fast as it must be.

    Args:
        names: Widths to compare with the peer, and `kinds` for the networks among each other; all by default.
    """
    console, lines, kinds, checked = Console(highlight=False), [], [], []
    with TemporaryDirectory() as scratch, console.status("writing the table") as status:
        widths = [name for name in names if name != ONLY_KINDS]
        if widths:
            write_table(Path(scratch) / "table", TRAIN_ROWS, 200_000, CHUNK_ROWS // 2)
        for name in widths:
            compared, findings = compare(str(Path(scratch) / "table"), name, status.update)
            lines += compared
            checked += findings
        if ONLY_KINDS in names:
            write_table(Path(scratch) / "kinds", KIND_ROWS, 8_192, KIND_ROWS, KIND_LAST)
            kinds = compare_kinds(str(Path(scratch) / "kinds"), status.update)
    if lines:
        show(f"DLRM training, medians of {ROUNDS} x {STEPS} steps; ours with its loader, the peer without one", lines)
    if kinds:
        show(f"Networks of equal widths, medians of rounds of {KIND_STEPS} steps, loader included, not compiled", kinds)
    for line in checked:
        console.print(line)
    record([*lines, *kinds])
    return exit_code([*lines, *kinds])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or (*SECTIONS, ONLY_KINDS)))
