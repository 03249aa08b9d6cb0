"""Records in a table of PostgreSQL, for processes of many machines."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import Connection

from shortlist.storage.records.names import checked, is_name
from shortlist.storage.records.postgres_lock import HeldLock, is_held
from shortlist.storage.records.postgres_server import Server, server_at
from shortlist.storage.records.postgres_table import RECORDS, Rows, make_table

Result = TypeVar("Result")


class PostgresRecordStore:
    """A `RecordStore`. Every call changes the same when it is made twice, and is repeated after a lost connection.

    Args:
        server: Where the table is; it is made when it is missing.
        rows: Which of its rows are these records.
    """

    def __init__(self, server: Server, rows: Rows) -> None:
        self._server, self._rows = server, rows
        self._has_table = False
        self._threads = threading.local()

    def create(self, name: str, text: str) -> bool:
        """Write a text unless there is one; return True for exactly one of all processes that try at once."""
        writer = secrets.token_hex(8)
        insert = self._rows.insert(checked(name), text, writer)
        who = self._rows.select(RECORDS.c.writer, name)

        def work(connection: Connection) -> bool:
            connection.execute(insert)
            return bool(connection.scalar(who) == writer)

        return self._write(work)

    def replace(self, name: str, text: str) -> None:
        """Write a text in place of what is there, if anything is."""
        put = self._rows.put(checked(name), text)
        self._write(lambda connection: connection.execute(put))

    def read(self, name: str) -> str | None:
        """Return a text; None when there is none."""
        body = self._rows.select(RECORDS.c.body, checked(name))
        text: str | None = self._read(lambda connection: connection.scalar(body))
        return text

    def remove(self, name: str) -> None:
        """See that there is none."""
        delete = self._rows.delete(checked(name))
        self._write(lambda connection: connection.execute(delete))

    def move(self, name: str, to: str) -> None:
        """Give a text another name, in place of what is there; nothing happens when there is none."""
        source = self._rows.select(RECORDS.c.name, checked(name)).with_for_update()
        delete, rename = self._rows.delete(checked(to)), self._rows.rename(name, to)

        def work(connection: Connection) -> None:
            if connection.scalar(source) is not None:
                connection.execute(delete)
                connection.execute(rename)

        self._write(work)

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix such as `decisions/`, in Python's order."""
        found = self._read(lambda connection: connection.scalars(self._rows.all(prefix, RECORDS.c.name)).all())
        return sorted(filter(is_name, found))

    def texts(self, prefix: str) -> dict[str, str]:
        """Return all texts whose names begin with a prefix, by name, in Python's order; they are asked for at once."""
        wanted = self._rows.all(prefix, RECORDS.c.name, RECORDS.c.body)
        found = self._read(lambda connection: connection.execute(wanted).all())
        return {name: body for name, body in sorted(map(tuple, found)) if is_name(name)}

    def written(self, name: str) -> datetime | None:
        """Return when a text was written last, by the server's clock; None when there is none."""
        written = self._rows.select(RECORDS.c.written, checked(name))
        moment = self._read(lambda connection: connection.scalar(written))
        return None if moment is None else moment.astimezone(UTC)

    @contextmanager
    def lock(self, name: str, seconds: float | None = None) -> Iterator[None]:
        """Hold a lock while the block runs; the server frees that of a process that dies.

        What this thread writes in the block goes through the lock's own connection. Who loses the lock, because the
        connection breaks, can only write when it has got it back and nobody had it meanwhile.

        Args:
            name: Of the lock.
            seconds: How long to wait for another holder; None: for ever.

        Raises:
            LockedError: It was held all the time; or, from a write in the block, somebody else took it over.
        """
        self._ensure_table()
        held = HeldLock(self._server, self._rows, checked(name))
        held.take(seconds)
        self._held().append(held)
        try:
            yield
        finally:
            self._held().remove(held)
            held.free()

    def is_locked(self, name: str) -> bool:
        """Whether somebody holds it now."""
        key = self._rows.lock_key(checked(name))
        return self._read(lambda connection: is_held(connection, key))

    def where(self, name: str) -> str:
        """Return what to call a record in a message to a person: server, database, table, row."""
        return f"{self._server.name}/{self._rows}/{name}"

    def _read(self, work: Callable[[Connection], Result]) -> Result:
        self._ensure_table()
        return self._server.transact(work)

    def _write(self, work: Callable[[Connection], Result]) -> Result:
        self._ensure_table()
        held = self._held()
        return held[-1].transact(work) if held else self._server.transact(work)

    def _ensure_table(self) -> None:
        if not self._has_table:
            self._server.transact(make_table)
            self._has_table = True

    def _held(self) -> list[HeldLock]:
        if not hasattr(self._threads, "held"):
            self._threads.held = []
        held: list[HeldLock] = self._threads.held
        return held


def open_postgres(url: str, cluster: str, area: str, spec: str) -> PostgresRecordStore:
    """Return the records of an area of a spec; nothing is asked of the server yet.

    Raises:
        ShortlistError: The address is none; it is not repeated.
    """
    return PostgresRecordStore(server_at(url), Rows(cluster, area, spec))
