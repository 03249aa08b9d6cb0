"""Records as JSON texts: made once by one of many processes, or replaced whole, and read with a clear word."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from shortlist.contracts import ShortlistError
from shortlist.storage.records.store import RecordStore

Kind = TypeVar("Kind", bound=BaseModel)


class RecordError(ShortlistError):
    """A record of the monitoring is not what was written."""


def create(state: RecordStore, name: str, record: BaseModel) -> bool:
    """Write a record unless it is there; return True for exactly one of all processes that try at once."""
    return state.create(name, text_of(record))


def replace(state: RecordStore, name: str, record: BaseModel) -> None:
    """Write a record in place of what is there, if anything is. The caller sees to it that nobody else does."""
    state.replace(name, text_of(record))


def read(state: RecordStore, name: str, kind: type[Kind], said: str, derived: tuple[str, ...] = ()) -> Kind | None:
    """Return a record; None when there is none.

    Args:
        state: Where it is kept.
        name: Of the record.
        kind: What it should be.
        said: The same in words, such as `a window's report`.
        derived: Keys that are written for people and computed anew.

    Raises:
        RecordError: It is torn, was edited, or comes from another version.
    """
    text = state.read(name)
    return None if text is None else parsed(text, state.where(name), kind, said, derived)


def parsed(text: str, where: str, kind: type[Kind], said: str, derived: tuple[str, ...] = ()) -> Kind:
    """Return the record that a text holds; see `read`.

    Raises:
        RecordError: It is torn, was edited, or comes from another version.
    """
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            value = {name: one for name, one in value.items() if name not in derived}
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        why = f"{at}: {first['msg']}" if at else first["msg"]
    except ValueError as error:
        why = f"no JSON: {error}"
    raise RecordError(
        f"{where}: not {said} ({why}). It was cut short, edited or written by another version; restore it, or move it"
        " away and run make watch again."
    )


def text_of(record: BaseModel) -> str:
    """Return a record as JSON that people can read; NaN is refused."""
    return json.dumps(record.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
