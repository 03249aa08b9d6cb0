"""Steps of a local run as forks of one process end, fail and are killed as new processes are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from kfp.local import SubprocessRunner
from kfp.local.subprocess_task_handler import SubprocessTaskHandler

from shortlist.runs.step_client import SOCKET_VARIABLE
from shortlist.runs.step_server import PRELOADED, PRELOADED_WHEN_IDLE, STEP_COMMAND, step_server

FORKED = "forked = 'shortlist.runs.step_server' in sys.orig_argv"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """start(code, *arguments, **variables) starts code as kfp.local starts a step's module."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        module = f"step_{len(started)}"
        (tmp_path / f"{module}.py").write_text(f"import os, sys\n{FORKED}\n{code}\n")
        command = [sys.executable, *STEP_COMMAND[1:], module]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        step = subprocess.Popen([*command, *arguments], env={**os.environ, **variables}, **streams)  # type: ignore[call-overload]
        started.append(step)
        return step  # type: ignore[no-any-return]

    yield start
    for step in started:
        step.kill()
        step.communicate()


@contextmanager
def server(*modules: str, idle_modules: Sequence[str] = ()) -> Iterator[psutil.Process]:
    """A step server that has imported some modules and imports others while idle; yields its process."""
    children_before = set(psutil.Process().children())
    with step_server(modules, idle_modules):
        (process,) = set(psutil.Process().children()) - children_before
        yield process


def ended(step: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a step."""
    output, errors = step.communicate(timeout=500)
    return step.returncode, output, errors


def test_a_step_is_a_fork_with_its_own_arguments_and_streams(start: Start) -> None:
    code = "import atexit; atexit.register(print, 'at exit')\n"
    code += "print(forked, __name__, sys.argv[1:], 'wave' in sys.modules); print('told', file=sys.stderr)"
    with server("wave"):
        assert ended(start(code, "--a", "b c")) == (0, "True __main__ ['--a', 'b c'] True\nat exit\n", "told\n")
        steps = [start(code, str(number)) for number in range(3)]  # at one time, as parallel loops have them
        assert [ended(step)[1].splitlines()[0] for step in steps] == [
            f"True __main__ ['{number}'] True" for number in range(3)
        ]
    assert SOCKET_VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("code", "returned", "printed_error"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no such file')", 1, "no such file\n"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong\n"),
        ("os.kill(os.getpid(), 9)", 137, ""),
        ("os.kill(os.getpid(), 15)", 143, ""),
    ],
)
def test_the_exit_status_of_a_failed_or_killed_step_is_passed_on(
    start: Start, code: str, returned: int, printed_error: str
) -> None:
    with server():
        exit_code, _, errors = ended(start(f"assert forked\n{code}"))
        assert exit_code in {returned, returned - 256, 128 - returned if returned > 128 else returned}
        assert errors.endswith(printed_error)


def test_a_step_with_an_environment_of_its_own_is_a_fresh_process(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    with server():
        assert ended(start("print(forked, os.environ['OMP_NUM_THREADS'])", OMP_NUM_THREADS="3"))[:2] == (0, "False 3\n")
        assert ended(start("print(forked)"))[:2] == (0, "True\n")
    assert "This step runs in a new process: its environment differs in OMP_NUM_THREADS." in capfd.readouterr().out


def test_a_variable_that_an_import_sets_needs_no_fresh_process(start: Start, tmp_path: Path) -> None:
    (tmp_path / "allocator.py").write_text("import os\nos.environ['ALLOCATOR'] = 'background'")
    with server("allocator"):
        assert ended(start("print(forked)", ALLOCATOR="background"))[:2] == (0, "True\n")
        assert ended(start("print(forked)", ALLOCATOR="other"))[:2] == (0, "False\n")
        assert ended(start("print(forked)"))[:2] == (0, "True\n")


def test_nothing_is_forked_beside_a_thread(start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    with server("busy"):
        assert ended(start("print(forked)"))[:2] == (0, "False\n")
    assert "the step server has 1 thread(s) of a library" in capfd.readouterr().out


def test_steps_are_new_processes_without_a_server(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with server("no_such_module"):  # it ends when the first step is started
        assert ended(start("print(forked); sys.exit(4)"))[:2] == (4, "False\n")
    with server() as process:
        assert ended(start("print(forked)"))[1] == "True\n"
        process.kill()
        process.wait()
        assert ended(start("print(forked)"))[1] == "False\n"
        monkeypatch.delenv(SOCKET_VARIABLE)
        assert ended(start("print(forked)"))[1] == "False\n"
        monkeypatch.setenv(SOCKET_VARIABLE, "")


def test_a_step_dies_with_its_client(start: Start) -> None:
    with server():
        step = start("import time\nassert forked\nprint(os.getpid(), flush=True)\ntime.sleep(600)")
        assert step.stdout is not None
        process = psutil.Process(int(step.stdout.readline()))
        (client,) = psutil.Process(step.pid).children() or [psutil.Process(step.pid)]
        client.send_signal(signal.SIGTERM)
        process.wait(30)


def test_a_step_belongs_to_the_group_of_its_run(start: Start) -> None:
    with server():
        code, output, _ = ended(start("print(os.getpgid(0), os.getsid(0))"))
    assert (code, output) == (0, f"{os.getpgid(0)} {os.getsid(0)}\n")


@pytest.mark.long
def test_idle_modules_are_imported_while_no_step_asks(start: Start) -> None:
    code = "print('wave' in sys.modules, 'chunk' in sys.modules)"
    with server("wave", idle_modules=["chunk"]):
        outputs = [ended(start(code))[1].split() for _ in range(10)]
    assert {wave for wave, _ in outputs} == {"True"}
    assert outputs[-1] == ["True", "True"]


def test_libraries_with_threads_work_in_a_fork(start: Start) -> None:
    code = """
assert forked and "mlflow" in sys.modules
assert {"torch", "xgboost", "feast"}.isdisjoint(sys.modules)  # few steps need them; CUDA must not be forked
import numpy as np, polars as pl, pyarrow as pa, pyarrow.compute as pc, torch, xgboost
table = pl.DataFrame({"key": np.arange(200_000) % 7, "value": np.ones(200_000)})
assert table.lazy().group_by("key").agg(pl.col("value").sum()).collect()["value"].sum() == 200_000
assert pc.sum(pa.table(table.to_dict(as_series=False))["value"]).as_py() == 200_000
square = np.ones((500, 500))
assert (square @ square)[0, 0] == 500 == (torch.ones(500, 500) @ torch.ones(500, 500))[0, 0]
booster = xgboost.train({"nthread": 2}, xgboost.DMatrix(square[:, :3], label=square[:, 0]), 2)
print(np.random.random(), len(booster.get_dump()))
"""
    with server(*PRELOADED, *PRELOADED_WHEN_IDLE):
        steps = [start(code) for _ in range(2)]
        outputs = [ended(step) for step in steps]
    assert [code for code, _, errors in outputs] == [0, 0], outputs
    numbers = [output.split() for _, output, _ in outputs]
    assert [trees for _, trees in numbers] == ["2", "2"]
    assert numbers[0][0] != numbers[1][0]  # a random state of its own


def test_kfp_local_takes_the_command_for_that_of_a_python_component() -> None:
    command = [*STEP_COMMAND, "components.pod", "components.log:ingest", "--executor_input", "{}"]
    handler = SubprocessTaskHandler("python", command, "root", SubprocessRunner(use_venv=False))
    assert handler.full_command == command
    with pytest.raises(RuntimeError, match="only supports running Lightweight Python Components"):
        SubprocessTaskHandler("python", ["python3", "-m", "components.pod"], "root", SubprocessRunner(use_venv=False))
