"""The replay as a process of its own, for as long as a block runs and never longer than the process that started it."""

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
def replaying(settings: ReplaySettings) -> Iterator[None]:
    """Play the log while the block runs; the replay's folder (`settings.out`) ends with its summary.

    The process ends when its standard input does, so a killed caller leaves no traffic behind.
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
    """Return where a spec's replays keep settings, ledger and summary, below the folder of its stack."""
    return root / "replay"
