"""The table of records, and the rows in it that are one store's."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Delete,
    MetaData,
    Select,
    Table,
    Text,
    Update,
    func,
    inspect,
    select,
)
from sqlalchemy.dialects.postgresql import Insert, insert

TABLE: Final = "shortlist_records"
_METADATA: Final = MetaData()
RECORDS: Final = Table(
    TABLE,
    _METADATA,
    Column("cluster", Text, primary_key=True),
    Column("area", Text, primary_key=True),
    Column("spec", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("written", DateTime(timezone=True), nullable=False),
    Column("writer", Text, nullable=False),  # of the call that wrote it: a repeated one knows its own work
)


def make_table(connection: Connection) -> None:
    """See that the table is there; one process at a time makes it."""
    if not inspect(connection).has_table(TABLE):
        connection.execute(select(func.pg_advisory_xact_lock(_number(TABLE))))
        _METADATA.create_all(connection)


@dataclass(frozen=True)
class Rows:
    """One store's rows. Two clusters may share a database, and never a row."""

    cluster: str
    area: str
    spec: str

    def __str__(self) -> str:
        return "/".join(filter(None, (TABLE, self.cluster, self.area, self.spec)))

    def lock_key(self, name: str) -> int:
        """Return the number of a lock, of 64 bits."""
        return _number(f"{self}\n{name}")

    def select(self, column: Column[Any], name: str) -> Select[Any]:
        """Select a column of a record."""
        return select(column).where(*self._mine(name))

    def all(self, prefix: str, *columns: Column[Any]) -> Select[Any]:
        """Select columns of all records whose names begin with a prefix."""
        return select(*columns).where(*self._mine(), RECORDS.c.name.startswith(prefix, autoescape=True))

    def insert(self, name: str, body: str, writer: str) -> Insert:
        """Insert a record where there is none."""
        return self._insert(name, body, writer).on_conflict_do_nothing()

    def put(self, name: str, body: str) -> Insert:
        """Insert a record in place of what is there."""
        new = self._insert(name, body, secrets.token_hex(8))
        changed = {column: new.excluded[column] for column in ("body", "written", "writer")}
        return new.on_conflict_do_update(index_elements=list(RECORDS.primary_key.columns), set_=changed)

    def delete(self, name: str) -> Delete:
        """Delete a record."""
        return RECORDS.delete().where(*self._mine(name))

    def rename(self, name: str, to: str) -> Update:
        """Give a record another name."""
        return RECORDS.update().where(*self._mine(name)).values(name=to)

    def _insert(self, name: str, body: str, writer: str) -> Insert:
        whose = {"cluster": self.cluster, "area": self.area, "spec": self.spec}
        return insert(RECORDS).values(**whose, name=name, body=body, written=func.clock_timestamp(), writer=writer)

    def _mine(self, name: str | None = None) -> tuple[Any, ...]:
        columns = RECORDS.c
        mine = columns.cluster == self.cluster, columns.area == self.area, columns.spec == self.spec
        return mine if name is None else (*mine, columns.name == name)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)
