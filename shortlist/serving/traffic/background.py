"""Runs the replay in a separate process while a block runs, at most as long as its parent process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shortlist.serving.traffic.replay import WHILE_STDIN_IS_OPEN, ReplaySettings
from shortlist.storage.artefacts import write_json

_STOP_SECONDS = 30


@contextmanager
def run_replay(settings: ReplaySettings) -> Iterator[None]:
    """Replay the log while the block runs; at the end, the summary is in `settings.out`.

    The process ends when its standard input is closed, so that it also ends when its parent is killed.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / "settings.json"
    write_json(path, settings.model_dump(mode="json"))
    with (settings.out / "replay.log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "shortlist.serving.traffic.replay", str(path), WHILE_STDIN_IS_OPEN],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def replay_folder(root: Path) -> Path:
    """Return the folder of a spec's replays (settings, ledger, summary), below the folder of its stack."""
    return root / "replay"
