"""A job's error is raised in its step as itself, and what the job wrote decides nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from shortlist.contracts import DataError, ShortlistError
from shortlist.data.validate import LogRefusedError
from shortlist.pods.failure import JobFailure
from shortlist.system.accelerator import EngineError, NoDeviceError

ROOT = Path(__file__).parents[3]


def subclasses(error_class: type[ShortlistError]) -> Iterator[type[ShortlistError]]:
    for subclass in error_class.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def read_back(error: ShortlistError) -> ShortlistError:
    return JobFailure.model_validate_json(JobFailure.from_error(error).model_dump_json()).error()


def test_every_error_of_the_product_is_read_back_as_itself() -> None:
    for package in ("shortlist", "models", "monitoring"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if re.search(r"^class \w+Error\(", path.read_text(), re.MULTILINE):
                import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    error_classes = {*subclasses(ShortlistError), ShortlistError}
    assert len(error_classes) > 40
    for error_class in error_classes:
        error = read_back(error_class.__new__(error_class, "what, where, got"))
        assert (type(error), str(error)) == (error_class, "what, where, got")


@pytest.mark.parametrize(
    ("error", "base"),
    [(NoDeviceError("no GPU", "Use one"), EngineError), (LogRefusedError("no rows", ["too few"]), DataError)],
)
def test_an_error_with_more_than_a_message_is_read_back(error: ShortlistError, base: type[ShortlistError]) -> None:
    with pytest.raises(base) as caught:
        raise read_back(error)
    assert (type(caught.value), str(caught.value)) == (type(error), str(error))


def test_a_class_that_is_not_imported_here_is_raised_as_its_base() -> None:
    error_class, base_classes = "shortlist.no.such.module:BadRowsError", ("shortlist.contracts:DataError",)
    error = JobFailure(message="bad rows", error_class=error_class, base_classes=base_classes).error()
    assert (type(error), str(error)) == (DataError, "bad rows")


@pytest.mark.parametrize(
    "address", ["os:system", "builtins:SystemExit", "this:d", "shortlist.storage.artefacts:write_text", "", ":", "no"]
)
def test_a_file_imports_no_module_and_calls_no_function(tmp_path: Path, address: str) -> None:
    error = JobFailure(message=f"touch {tmp_path}/file", error_class=address).error()
    assert (type(error), str(error)) == (ShortlistError, f"touch {tmp_path}/file")
    assert list(tmp_path.iterdir()) == []
