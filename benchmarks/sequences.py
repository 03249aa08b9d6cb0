"""How well the source `sequence` finds a user's next item, `make bench NAME=sequences OPTIONS=path/to/folder`.

The literature's protocol on two Amazon logs (He and McAuley, 2016): the last item of every user is the test, the one
before it the validation, all items are ranked. The peer is SASRec with sampled softmax of RecTools, on the same files,
in an environment of its own (`NAME=peers OPTIONS=sequences`). Both stop by the validation items; the test items are
looked at once. A folder holds `Toys_and_Games.txt.zst` and `Sports_and_Outdoors.txt.zst`, a line per user: `user item
item ...`, oldest first.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.bench import Line, record, show
from models.sequence.train import SequenceTrainer, TrainingSessions
from shortlist.slates.retrieval.sources.sequence import SequenceSource

ROOT: Final = Path(__file__).parents[1]
FILES: Final = {"toys": "Toys_and_Games.txt.zst", "sports": "Sports_and_Outdoors.txt.zst"}
PEER: Final = "RecTools SASRec, sampled softmax"
PEER_ENVIRONMENT: Final = ROOT / ".venv-peers-sequences"
PEER_PROGRAM: Final = ROOT / "benchmarks/peers/rectools_sasrec.py"
SETTINGS: Final[dict[str, Any]] = {"kind": "sequence"}
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "reversed": {"reversed": 0.3},
    "crops": {"crops": 0.5},
    "masked": {"masked": 0.2},
    "joined": {"joined": 0.5},
}
_LOOK_EVERY: Final = 3
_PATIENCE: Final = 4
_MOST_EPOCHS: Final = 100
_AT_ONCE: Final = 512
_METRICS: Final = ("ndcg_at_10", "recall_at_10", "unseen_ndcg_at_10", "unseen_recall_at_10")
"""`unseen`: among items that the user did not take before; no user of these logs takes one twice."""

Items = NDArray[np.int64]


class SequenceFigures(NamedTuple):
    """What a training came to."""

    test: dict[str, float]
    epochs: int
    """Of the best look."""
    seconds: float
    """Of training and looks, wall time."""
    cpu_s: float
    ended: bool
    """Whether validation stopped it; else the clock or the most epochs did, and more epochs could still find more."""


def main() -> None:
    """Train, evaluate, print and record."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    lines: list[Line] = []
    for name in arguments.data:
        users = read(Path(arguments.folder) / FILES[name])
        own_figures = trained(users, SETTINGS, arguments.seconds)
        peer = peer_figures(users, arguments.peer_seconds) if arguments.peer_seconds else None
        lines += [_against_peer(name, metric, own_figures, peer) for metric in _METRICS]
        lines.append(_of_training(name, own_figures, peer))
        lines.append(
            Line("sequences", f"{name}, training ended by validation (1) or cut (0)", float(own_figures.ended), "")
        )
        for option, changed in VARIANTS.items() if arguments.options else ():
            lines.append(
                _against_plain(name, option, trained(users, SETTINGS | changed, arguments.seconds), own_figures)
            )
    show("Next items, all items ranked", lines)
    record(lines)


def _against_peer(log_name: str, metric: str, own_figures: SequenceFigures, peer: dict[str, float] | None) -> Line:
    """Return a line with the peer's figure; where either training was stopped by the clock there is no ratio."""
    value, name = own_figures.test[metric], f"{log_name}, {metric}"
    cut = [] if own_figures.ended else ["ours"]
    if peer is None:
        return Line("sequences", name, value, "", _not_ended(cut))
    if not peer["ended"]:
        cut.append(PEER)
    if cut:
        return Line("sequences", name, value, "", _not_ended(cut))
    return Line("sequences", name, value, "", f"{PEER}: {peer[metric]:.4f}", value / peer[metric])


def _of_training(log_name: str, own_figures: SequenceFigures, peer: dict[str, float] | None) -> Line:
    """Return a line with the processor time of training and evaluation, of both to their ends."""
    name = f"{log_name}, training"
    if peer is None or not (peer["ended"] and own_figures.ended):
        return Line("sequences", name, own_figures.cpu_s, "cpu-s")
    return Line(
        "sequences", name, own_figures.cpu_s, "cpu-s", f"{PEER}: {peer['cpu_s']:.0f}", own_figures.cpu_s / peer["cpu_s"]
    )


def _against_plain(log_name: str, option: str, option_figures: SequenceFigures, plain: SequenceFigures) -> Line:
    """Return a line with an option's figure against that without it; no ratio where either was stopped by the clock."""
    value, base = option_figures.test["ndcg_at_10"], plain.test["ndcg_at_10"]
    cut = [name for name, figures in ((option, option_figures), ("without", plain)) if not figures.ended]
    name = f"{log_name}, {option}, ndcg_at_10"
    if cut:
        return Line("sequences", name, value, "", _not_ended(cut))
    return Line("sequences", name, value, "", f"without: {base:.4f}", value / base)


def _not_ended(trainings: list[str]) -> str:
    return f"{' and '.join(trainings)}: not trained to its end" if trainings else ""


def read(path: Path) -> list[Items]:
    """Return every user's items, oldest first, numbered from 0."""
    text = pa.input_stream(str(path), compression="zstd").read().decode()
    return [np.array([int(item) - 1 for item in line.split()[1:]]) for line in text.splitlines()]


def trained(users: list[Items], settings: dict[str, Any], seconds: float) -> SequenceFigures:
    """Return what a training on all but the last two items of every user finds of the last ones.

    Args:
        users: Their items.
        settings: Of the source.
        seconds: After so many no further epoch begins.
    """
    section = SequenceSource.model_validate(settings)
    count = int(max(items.max() for items in users)) + 1
    learnt = np.concatenate([items[:-2] for items in users])
    numbers = np.repeat(np.arange(len(users)), [len(items) - 2 for items in users])
    sessions = TrainingSessions.from_events(numbers, learnt, section.last)
    trainer = SequenceTrainer(
        section, pl.DataFrame({"item": np.arange(count)}), np.bincount(learnt, minlength=count), 1
    )
    began, cpu, best, worse, best_state = time.perf_counter(), time.process_time(), -1.0, 0, (0, trainer)
    for epoch in range(1, _MOST_EPOCHS + 1):
        for batch in trainer.batches(sessions):
            trainer.step(batch)
        if epoch % _LOOK_EVERY:
            continue
        ndcg = evaluate(trainer, users, 1)["ndcg_at_10"]
        print(f"epoch {epoch}: validation nDCG@10 {ndcg:.4f}", flush=True)
        worse = 0 if ndcg > best else worse + 1
        best, best_state = (ndcg, (epoch, copy.deepcopy(trainer))) if not worse else (best, best_state)
        if worse == _PATIENCE or time.perf_counter() - began > seconds:
            break
    took = time.perf_counter() - began, time.process_time() - cpu
    return SequenceFigures(evaluate(best_state[1], users, 0), best_state[0], *took, ended=worse == _PATIENCE)


def evaluate(trainer: SequenceTrainer, users: list[Items], held_out: int) -> dict[str, float]:
    """Return recall and nDCG at 10 of the item that is `held_out` places from the end, by `_METRICS`."""
    figures: dict[str, float] = {}
    all_ranks = np.concatenate(list(_ranks(trainer, users, held_out)), axis=1)
    for kind, ranks in zip(("", "unseen_"), all_ranks, strict=True):
        hits = ranks < 10
        gains = np.where(hits, 1 / np.log2(ranks + 2.0), 0.0)
        figures |= {f"{kind}ndcg_at_10": float(gains.mean()), f"{kind}recall_at_10": float(hits.mean())}
    return figures


@torch.no_grad()
def _ranks(trainer: SequenceTrainer, users: list[Items], held_out: int) -> Iterator[NDArray[np.int64]]:
    """Give how many items stand before the wanted one, all and unseen ones, for some users at a time."""
    vectors, encoder = torch.from_numpy(trainer.item_vectors()), trainer.encoder.eval()
    for first in range(0, len(users), _AT_ONCE):
        batch_users = users[first : first + _AT_ONCE]
        histories = [items[: len(items) - 1 - held_out][::-1][: encoder.last].copy() for items in batch_users]
        lengths = torch.tensor([len(items) for items in histories])
        events = torch.zeros(len(batch_users), int(lengths.max()), vectors.shape[1])
        for line, items in enumerate(histories):
            events[line, : len(items)] = vectors[torch.from_numpy(items)]
        scores = encoder(events, lengths)[:, 0] @ vectors.T
        targets = torch.tensor([items[len(items) - 1 - held_out] for items in batch_users])
        target_scores = scores[torch.arange(len(batch_users)), targets]
        past_items = [items[: len(items) - 1 - held_out] for items in batch_users]
        lines = np.repeat(np.arange(len(batch_users)), [len(items) for items in past_items])
        rank = (scores > target_scores[:, None]).sum(1)
        scores[torch.from_numpy(lines), torch.from_numpy(np.concatenate(past_items))] = -torch.inf
        yield np.stack([rank.numpy(), (scores > target_scores[:, None]).sum(1).numpy()])
    encoder.train()


def peer_figures(users: list[Items], seconds: float) -> dict[str, float]:
    """Return what the peer finds of the test items; a training that came to its end is not repeated.

    Its figures are kept in its environment, by the digest of its program and of the sessions.
    """
    text = "".join(f"{user} {' '.join(map(str, items))}\n" for user, items in enumerate(users))
    digest = hashlib.sha256(PEER_PROGRAM.read_bytes() + text.encode()).hexdigest()[:16]
    cache_path = PEER_ENVIRONMENT / "figures" / f"{digest}.json"
    if not cache_path.exists():
        peer_output = _trained_peer(text, seconds)
        if not peer_output["ended"]:
            return peer_output
        cache_path.parent.mkdir(exist_ok=True)
        cache_path.write_text(json.dumps(peer_output))
    figures: dict[str, float] = json.loads(cache_path.read_text())
    return figures


def _trained_peer(sessions: str, seconds: float) -> dict[str, float]:
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "sequences.txt"
        path.write_text(sessions)
        command = [str(PEER_ENVIRONMENT / "bin/python"), str(PEER_PROGRAM), str(path), str(seconds)]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own program
    figures: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])["test"]
    return figures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="holds the two files")
    parser.add_argument("--data", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--seconds", type=float, default=1_800.0, help="after so many no further epoch begins")
    parser.add_argument("--peer-seconds", type=float, default=7_200.0, help="likewise for the peer; 0: none")
    parser.add_argument("--options", action="store_true", help="measure what may be done to sessions too")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
