"""A program whose supervisor was killed keeps running, and the next supervisor adopts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shortlist.serving.processes.adoption import unresponsive
from shortlist.serving.processes.program import Program, running_starts


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Launch the program in a file as a supervisor does, as the leader of its own group."""
    path, processes = tmp_path / "one.json", []

    def launch(seconds: str) -> subprocess.Popen[bytes]:
        Program(name="one", command=("/bin/sleep", seconds)).write(path)
        process = subprocess.Popen(
            [sys.executable, "-m", "shortlist.serving.processes.launch", str(path)],
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        processes.append(process)
        return process

    yield launch
    for process in processes:
        process.kill()
        process.communicate()


def is_asleep(process: subprocess.Popen[bytes]) -> bool:
    return psutil.Process(process.pid).name() == "sleep"


def test_a_running_program_is_adopted_until_it_ends(
    tmp_path: Path, launched: Callable[..., subprocess.Popen[bytes]], until: Callable[..., None]
) -> None:
    first = launched("600")
    until(lambda: is_asleep(first))
    second = launched("600")
    assert second.stderr is not None
    assert f"process {first.pid} of this program still runs and is kept" in second.stderr.readline().decode()
    assert [start.pid for start in running_starts(tmp_path / "one.json")] == [first.pid]
    assert second.poll() is None
    second.kill()  # it is only a stand-in
    second.wait(30)
    assert first.poll() is None
    third = launched("600")
    assert third.stderr is not None
    third.stderr.readline()
    third.send_signal(signal.SIGTERM)  # as a supervisor stops a program
    assert first.wait(30) == -signal.SIGTERM
    assert third.wait(30) == 1


def test_a_process_of_another_program_under_the_same_name_is_ended_before_the_next_one_starts(
    launched: Callable[..., subprocess.Popen[bytes]], until: Callable[..., None]
) -> None:
    first = launched("600")
    until(lambda: is_asleep(first))
    second = launched("601")
    assert first.wait(30) == -signal.SIGTERM
    until(lambda: is_asleep(second))


def test_a_busy_process_gets_time_to_respond() -> None:
    answers = iter([False, False, True])
    health_checks = {"busy": lambda: next(answers), "well": lambda: True}
    assert unresponsive(health_checks, seconds=60) == []
    assert unresponsive({"broken": lambda: False, "well": lambda: True}, seconds=0) == ["broken"]
