"""Records as JSON files: made once by one of many processes, or replaced whole, and read with a clear word."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from shortlist.artefacts import write_text
from shortlist.contracts import ShortlistError

Kind = TypeVar("Kind", bound=BaseModel)


class RecordError(ShortlistError):
    """A file of the monitoring is not what was written."""


def create(path: Path, record: BaseModel) -> bool:
    """Write a record unless its file is there; return True for exactly one of all processes that try at once.

    The file appears whole: it is written under another name, and linked to its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        write_text(mine, text_of(record))
        try:
            os.link(mine, path)
        except FileExistsError:
            return False
        return True
    finally:
        mine.unlink(missing_ok=True)


def replace(path: Path, record: BaseModel) -> None:
    """Write a record in place of what is there, if anything is. The caller sees to it that nobody else does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text_of(record))


def read(path: Path, kind: type[Kind], said: str, derived: tuple[str, ...] = ()) -> Kind:
    """Return the record in a file.

    Args:
        path: The file.
        kind: What it should hold.
        said: The same in words, such as `a window's report`.
        derived: Keys that are written for people and computed anew.

    Raises:
        RecordError: It is torn, was edited, or comes from another version.
        FileNotFoundError: It is not there.
    """
    try:
        value = json.loads(path.read_bytes())
        if isinstance(value, dict):
            value = {name: one for name, one in value.items() if name not in derived}
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        why = f"{where}: {first['msg']}" if where else first["msg"]
    except ValueError as error:
        why = f"no JSON: {error}"
    raise RecordError(
        f"{path}: not {said} ({why}). It was cut short, edited or written by another version; restore it, or move it"
        " away and look again."
    )


def text_of(record: BaseModel) -> str:
    """Return a record as JSON that people can read; NaN is refused."""
    return json.dumps(record.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
