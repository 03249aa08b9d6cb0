"""Work that makes a folder of features: done in this process, or on Kubernetes in a job of the declared engine.

    python3 -m shortlist.features.engines.work FOLDER

is the program of such a job. The folder is on a volume that the step and all pods of the job mount at the same path: it
has the call, copies of its inputs, and afterwards its output or its error.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar, get_type_hints
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, TypeAdapter

from shortlist.contracts import ShortlistError
from shortlist.pods.failure import JobFailure
from shortlist.spec.feature_job import JobEnvironment
from shortlist.spec.runtime import FeatureEngine
from shortlist.storage.artefacts import atomic_folder, folder_digest, read_json, write_json
from shortlist.system.accelerator import EngineError
from shortlist.system.query_engine import prepare_engine
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE

P = ParamSpec("P")
T = TypeVar("T")

_CALL: Final = "call.json"
_FAILURE: Final = "failed.json"
_OUT: Final = "out"
"""Name of the output, and of the parameter that names it."""
_DELETED: Final = ".deleted"
"""End of the name of a folder that is being deleted."""


def feature_work(read: Callable[[Path], T]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of functions that make a folder `out` of other folders, with the engine of their `runtime`.

    Args:
        read: What the function returns, given the folder that it has written.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def run(*values: P.args, **named_values: P.kwargs) -> T:
            arguments = inspect.signature(function).bind(*values, **named_values).arguments
            engine: FeatureEngine = arguments["runtime"].features
            if engine.job is None or "KUBERNETES_SERVICE_HOST" not in os.environ:
                return function(*values, **named_values)
            run_in_job(function, arguments, JobEnvironment.of_pod(engine.job.claim))
            return read(arguments[_OUT])

        return run

    return decorate


class FeatureCall(BaseModel):
    """A call of a function that makes a folder of features, as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    function: str
    """`module:name`."""
    values: dict[str, Any]
    """Parameter -> its value as JSON."""
    folders: tuple[str, ...]
    """Parameters that are folders; they have the same names beside the call."""

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Self:
        """Return the call for the process in a job."""
        runtime = arguments["runtime"]
        values = {**arguments, "runtime": runtime.model_copy(update={"features": runtime.features.inside_job()})}
        types = get_type_hints(function)
        return cls(
            function=f"{function.__module__}:{function.__qualname__}",
            values={
                name: _as_json(value, types[name]) for name, value in values.items() if not isinstance(value, Path)
            },
            folders=tuple(name for name, value in values.items() if isinstance(value, Path) and name != _OUT),
        )

    def run(self, folder: Path) -> None:
        """Call the function with the inputs in a folder; its output appears there whole or not at all."""
        module, _, name = self.function.partition(":")
        function = getattr(import_module(module), name)
        types = get_type_hints(function)
        values = {
            name: TypeAdapter(types[name]).validate_json(json.dumps(value)) for name, value in self.values.items()
        }
        prepare_engine(values["runtime"].engine, values["runtime"].gpu)
        function(**values, **{name: folder / name for name in (*self.folders, _OUT)})


def run_in_job(function: Callable[..., Any], arguments: Mapping[str, Any], environment: JobEnvironment) -> None:
    """Call a function in a job; its output is copied from the volume, and nothing of it stays there.

    A step that runs again finds the job of its earlier attempt.

    Args:
        function: A function of a module.
        arguments: All of its arguments; folders are paths of this machine.
        environment: What this pod knows of its cluster.

    Raises:
        ShortlistError: The function's own error; or the volume cannot be written, or the cluster refuses or stops the
            job.
    """
    call = FeatureCall.of(function, arguments)
    inputs = {name: Path(arguments[name]) for name in call.folders}
    name = _job_name(call, inputs, environment.image)
    folder = Path(environment.folder) / name
    is_finished = (folder / _OUT).is_dir()  # an earlier attempt was lost while it waited
    try:
        if not is_finished:
            _publish(folder, call, inputs)
        program = shlex.join(["python3", "-m", __name__, str(folder)])
        try:
            arguments["runtime"].features.run_job(name, program, environment, is_finished=is_finished)
        finally:
            list(folder.iterdir())  # a client of NFS may remember what was not there
    except PermissionError as error:
        raise ShortlistError(
            f"runtime.features.volume_claim: {error.filename} cannot be written ({error.strerror}); wanted a volume"
            " on which user 1000 may write"
        ) from None
    except EngineError:  # after other errors, such as a cluster that does not answer, the job may still run
        failure = folder / _FAILURE
        own_error = JobFailure.model_validate(read_json(failure)).error() if failure.is_file() else None
        _delete(folder)
        if own_error is None:
            raise
        # The caller may go on without this work: nobody will look at the job, or run it again.
        with suppress(ShortlistError):
            arguments["runtime"].features.run_job(name, program, environment, is_finished=True)
        raise own_error from None
    with atomic_folder(arguments[_OUT]) as staging:
        shutil.copytree(folder / _OUT, staging, dirs_exist_ok=True)
    _delete(folder)


def _as_json(value: Any, declared_type: Any) -> Any:
    dumped = TypeAdapter(declared_type).dump_python(value, mode="json")
    # The order of a set differs from process to process; the job's name must not.
    return sorted(dumped) if isinstance(value, set | frozenset) else dumped


def _delete(folder: Path) -> None:
    """Delete a folder of the volume; what cannot be deleted now, the next call deletes.

    It is renamed first: an attempt that is lost meanwhile leaves no incomplete output under its name. A client of NFS
    keeps files that are open somewhere, in a folder that cannot be deleted before they are closed.
    """
    with suppress(FileNotFoundError):
        folder.rename(folder.with_name(f"{folder.name}-{uuid4().hex}{_DELETED}"))
    for path in folder.parent.glob(f"*{_DELETED}"):
        shutil.rmtree(path, ignore_errors=True)


def _job_name(call: FeatureCall, inputs: Mapping[str, Path], image: str) -> str:
    """Return a DNS label with a digest of all inputs and of the run: another run may delete its files at any time."""
    digests = [folder_digest(folder) for folder in inputs.values()]
    parts = [os.environ.get(RUN_ID_VARIABLE, ""), image, call.model_dump_json(), *digests]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"features-{digest[:16]}"


def _publish(folder: Path, call: FeatureCall, inputs: Mapping[str, Path]) -> None:
    """Copy the inputs to the volume, once; the error of an earlier attempt is deleted."""
    if folder.is_dir():
        (folder / _FAILURE).unlink(missing_ok=True)
        return
    with atomic_folder(folder) as staging:
        for name, path in inputs.items():
            shutil.copytree(path, staging / name)
        write_json(staging / _CALL, call.model_dump(mode="json"))


def main() -> None:
    """Do the work in a folder; a mistake of the user is written beside it and ends with exit code 1."""
    folder = Path(sys.argv[1])
    try:
        FeatureCall.model_validate(read_json(folder / _CALL)).run(folder)
    except ShortlistError as error:
        write_json(folder / _FAILURE, JobFailure.from_error(error).model_dump())
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
