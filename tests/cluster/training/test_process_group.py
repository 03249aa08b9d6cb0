"""A process that does not answer ends the training of those that wait for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from shortlist.contracts import ShortlistError
from shortlist.ranking.process_group import current_group, join_group

pytestmark = pytest.mark.timeout(120)

SECOND_PROCESS = """
import os, signal
import torch.distributed
from shortlist.ranking.process_group import join_group
print("ready", flush=True)
with join_group(frozenset(), cuda=False, wait_seconds=60):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""Rank 1: it joins the group, then stops answering."""


@pytest.fixture(autouse=True)
def rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the first of two, as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "RANK": 0}.items():
        monkeypatch.setenv(name, str(value))


def test_a_process_that_never_comes_is_waited_for_only_so_long() -> None:
    with (
        pytest.raises(ShortlistError, match="waited 1 s for the others and at least one did not answer"),
        join_group(frozenset(), cuda=False, wait_seconds=1),
    ):
        pass
    assert current_group() is None


@pytest.mark.long
def test_a_process_that_stops_answering_ends_the_exchange() -> None:
    environment = {**os.environ, "RANK": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SECOND_PROCESS], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            with (
                pytest.raises(ShortlistError, match=r"raise runtime\.cluster\.workers\.<model>\.wait_seconds"),
                join_group(frozenset(), cuda=False, wait_seconds=5) as group,
            ):
                assert group.world == 2
                group.gather(np.zeros(3))
        finally:
            process.kill()
    assert current_group() is None
