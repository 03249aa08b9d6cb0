"""Starts the steps of a local run as forks of one process with the common imports already done (ADR 3)."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, NoReturn

from shortlist.runs import step_client
from shortlist.runs.step_client import CLIENT_VARIABLE, DECLINED, NUMBER, SOCKET_VARIABLE, receive

PRELOADED: Final = (
    *("kfp.dsl.executor", "numpy", "polars"),
    *("mlflow", "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store"),
    *("shortlist.tracking.steps", "shortlist.tracking.run_context", "shortlist.training.champion_cache"),
)
"""Modules that the first step imports; it starts when they are imported."""
PRELOADED_WHEN_IDLE: Final = (
    *("pyarrow.parquet", "scipy.optimize", "matplotlib.figure"),
    *("shortlist.features.kinds.registry", "shortlist.features.rows.transform"),
    *("shortlist.report.kubeflow_artefacts", "shortlist.training.ensembles"),
    *("shortlist.serving.validation.slates", "numba"),
)
"""Further modules that several steps import, imported while no step asks. Not torch, XGBoost and Feast, which few steps
need, nor ONNX Runtime, which starts a thread.

No module of either list starts a Python thread, opens a connection or uses the GPU when it is imported.
"""
THREADS_OF_ALLOCATORS: Final = "jemalloc_bg_thd"
"""Thread name of Polars' and Arrow's allocator; it registers fork handlers, as OpenBLAS does for its threads."""
STEP_COMMAND: Final = (
    *("python3", "-I", "-S", "-c"),
    f"import os; exec(open(os.environ['{CLIENT_VARIABLE}']).read())  # in place of kfp.dsl.executor_main",
    "-m",
)
"""Command of a step, before its module: the client. It names the program that kfp.local looks for in a command."""
_SERVER_COMMAND: Final = (sys.executable, "-m", "shortlist.runs.step_server")
_IDLE_MODULES: Final = "idle-modules"
"""Argument between the modules before the first step and those after it."""
_SHELL_VARIABLES: Final = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
"""Variables that the shell around a step sets; no library reads them."""
_KFP_RUNTIME: Final = "_KFP_RUNTIME"
"""Variable of every step: kfp then imports less."""
_LONGEST_PATH: Final = 100
"""Longest path of a socket, in bytes; Linux allows 107."""
_SECONDS_TO_ASK: Final = 60.0


@contextmanager
def step_server(
    modules: Sequence[str] = PRELOADED, idle_modules: Sequence[str] = PRELOADED_WHEN_IDLE
) -> Iterator[None]:
    """Run a step server during the block; its socket is named in this process's environment.

    It belongs to this process's group, so that a signal to the group stops the server and every step. Where it cannot
    run, steps are new processes.

    Args:
        modules: Modules that it imports before the first step.
        idle_modules: Modules that it imports while no step asks.
    """
    os.environ[CLIENT_VARIABLE] = str(Path(step_client.__file__).resolve())
    with TemporaryDirectory(prefix="steps-") as folder:
        path = Path(folder) / "socket"
        if sys.platform != "linux" or len(os.fsencode(path)) > _LONGEST_PATH:
            yield
            return
        os.environ[SOCKET_VARIABLE] = str(path)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            server = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*_SERVER_COMMAND, str(listener.fileno()), *modules, _IDLE_MODULES, *idle_modules],
                stdin=subprocess.PIPE,
                env={**os.environ, _KFP_RUNTIME: "true"},
                pass_fds=[listener.fileno()],
            )
        try:
            yield
        finally:
            del os.environ[SOCKET_VARIABLE]
            server.communicate()  # closes its standard input, which ends it


class StepRequest(NamedTuple):
    """Request of a client to run a step."""

    arguments: list[str]
    """Name of the module and its arguments."""
    environment: dict[str, str]
    folder: str
    """Working directory."""


def main() -> None:
    """Run `python -m shortlist.runs.step_server LISTENER MODULES... idle-modules MODULES...` until its input ends."""
    atexit.register(_end_at_once)  # the first to be registered is the last to be called
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        environment = dict(os.environ)
        first_idle = sys.argv.index(_IDLE_MODULES)
        for module in sys.argv[2:first_idle]:
            importlib.import_module(module)
        idle_modules = [*sys.argv[first_idle + 1 :]]
        client = _next_client(listener, idle_modules)
        while client is not None:
            request = _serve(client, environment)
            if request is not None:
                listener.close()
                _run(request)
            client = _next_client(listener, idle_modules)
    while _reap(wait=True):
        pass


def _next_client(listener: socket.socket, idle_modules: list[str]) -> socket.socket | None:
    """Wait for a client; return None when standard input is closed, which is the end of the run.

    Args:
        listener: Socket that clients connect to.
        idle_modules: Modules to import while there is no client; those that were imported are removed.
    """
    ready: list[object] = []
    while idle_modules and not ready:
        ready, _, _ = select.select([listener, sys.stdin], [], [], 0)
        if not ready:
            importlib.import_module(idle_modules.pop(0))
    gc.collect()
    gc.freeze()  # so that garbage collection does not write to the pages that all steps share
    ready, _, _ = select.select([listener, sys.stdin], [], [])
    return None if sys.stdin in ready else listener.accept()[0]


def _serve(client: socket.socket, environment: Mapping[str, str]) -> StepRequest | None:
    """Fork a process that answers the client and forks the step; return the request in the step's process only."""
    while _reap(wait=False):
        pass
    threads = unexpected_threads()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        return _answer(client, environment, threads)
    client.close()
    return None


def _reap(*, wait: bool) -> bool:
    """Wait for an answering process; return whether one ended. The CPU time of its step counts as this process's."""
    try:
        return os.waitpid(-1, 0 if wait else os.WNOHANG)[0] != 0
    except ChildProcessError:  # there is none
        return False


def _answer(client: socket.socket, environment: Mapping[str, str], threads: str) -> StepRequest | None:
    """Return the request in the step's process; exit this process when the step has ended."""
    try:
        client.settimeout(_SECONDS_TO_ASK)
        header, streams, *_ = socket.recv_fds(client, NUMBER.size, 3)
        request = StepRequest(**json.loads(receive(client, NUMBER.unpack(header)[0])))
        reason = threads or _environment_difference(request, environment)
        if reason:
            sys.stdout.write(f"This step runs in a new process: {reason}.\n")
            sys.stdout.flush()
            client.sendall(NUMBER.pack(DECLINED))
            os._exit(0)
        client.settimeout(None)
        step = os.fork()
        if step == 0:
            for stream, number in zip(streams, range(3), strict=True):
                os.dup2(stream, number)
                os.close(stream)
            client.close()
            return request
        for stream in streams:
            os.close(stream)
        client.sendall(NUMBER.pack(step))
        ended = os.pidfd_open(step)
        if ended not in select.select([ended, client.fileno()], [], [])[0]:
            os.kill(step, signal.SIGKILL)  # the client was killed
        client.sendall(NUMBER.pack(os.waitpid(step, 0)[1]))
    except OSError:  # the client is gone
        pass
    os._exit(0)


def unexpected_threads() -> str:
    """Return why this process cannot be forked now: threads that a fork would lose; empty when there are none.

    Threads that register fork handlers are allowed: those of OpenBLAS, and of the allocators of Polars and Arrow.
    """
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    blas = sum(library["num_threads"] - 1 for library in threadpool_info() if library["internal_api"] == "openblas")
    other_threads = len(names) - names.count(THREADS_OF_ALLOCATORS) - 1
    python = threading.active_count() - 1
    if python or other_threads > blas:
        count = max(python, other_threads - blas)
        return f"the step server has {count} thread(s) of a library: {', '.join(sorted(names))}"
    return ""


def _environment_difference(request: StepRequest, environment: Mapping[str, str]) -> str:
    """Return how the step's environment or folder differs from the server's; empty when both are the same.

    Libraries read variables while they are imported: OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES, MLFLOW_TRACKING_URI. One
    that a library sets (Polars, that of its allocator) has the same value where the step was asked for and here.
    """
    names = {*request.environment, *environment} - _SHELL_VARIABLES - {_KFP_RUNTIME}
    different = sorted(
        name for name in names if request.environment.get(name) not in (environment.get(name), os.environ.get(name))
    )
    if different:
        return f"its environment differs in {', '.join(different)}"
    return "" if request.folder == str(Path.cwd()) else f"it runs in {request.folder}"


_exit_code: int | None = None


def _run(request: StepRequest) -> NoReturn:
    """Run the step's module as `python -m` does, in this process; exit."""
    global _exit_code  # noqa: PLW0603 - read by a function of atexit, which takes no arguments
    os.environ.update({name: request.environment.get(name, "") for name in _SHELL_VARIABLES})  # the others are the same
    sys.argv[:] = request.arguments
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else every fork draws the same numbers; Python's random reseeds itself
    _exit_code = 1
    try:
        runpy.run_module(request.arguments[0], run_name="__main__", alter_sys=True)
        _exit_code = 0
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            _exit_code = stop.code or 0
        else:
            sys.stderr.write(f"{stop.code}\n")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    raise SystemExit(_exit_code)


def _end_at_once() -> None:
    """Exit a step's process after all other functions of `atexit`, without freeing its memory."""
    if _exit_code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)


if __name__ == "__main__":
    main()
