"""Records as JSON texts: created by exactly one process or replaced as a whole, and validated when read."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from shortlist.contracts import ShortlistError
from shortlist.storage.records.store import RecordStore

Kind = TypeVar("Kind", bound=BaseModel)


class RecordError(ShortlistError):
    """A record of the monitoring store is invalid."""


def create(state: RecordStore, name: str, record: BaseModel) -> bool:
    """Write a record unless it exists; return True for exactly one of all processes that try at once."""
    return state.create(name, record_json(record))


def replace(state: RecordStore, name: str, record: BaseModel) -> None:
    """Write a record, replacing an existing one. The caller holds the lock."""
    state.replace(name, record_json(record))


def read(
    state: RecordStore, name: str, kind: type[Kind], description: str, derived: tuple[str, ...] = ()
) -> Kind | None:
    """Return a record; None when there is none.

    Args:
        state: The record store.
        name: Name of the record.
        kind: Model of the record.
        description: The record in words for messages, such as `a window's report`.
        derived: Keys that are written for readers and ignored here, since they are computed.

    Raises:
        RecordError: It is torn, was edited, or comes from another version.
    """
    text = state.read(name)
    return None if text is None else parse(text, state.where(name), kind, description, derived)


def parse(text: str, location: str, kind: type[Kind], description: str, derived: tuple[str, ...] = ()) -> Kind:
    """Return the record that a text holds; see `read`.

    Raises:
        RecordError: It is torn, was edited, or comes from another version.
    """
    try:
        record = json.loads(text)
        if isinstance(record, dict):
            record = {name: content for name, content in record.items() if name not in derived}
        return kind.model_validate(record)
    except ValidationError as error:
        problem = error.errors()[0]
        field_path = ".".join(map(str, problem["loc"]))
        reason = f"{field_path}: {problem['msg']}" if field_path else problem["msg"]
    except ValueError as error:
        reason = f"no JSON: {error}"
    raise RecordError(
        f"{location}: not {description} ({reason}). It was cut short, edited or written by another version; restore it,"
        " or move it away; the next monitoring run goes on."
    )


def record_json(record: BaseModel) -> str:
    """Return a record as indented JSON; NaN is refused."""
    return json.dumps(record.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
