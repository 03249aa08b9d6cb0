"""A lock that PostgreSQL frees when the process that holds it dies, and that knows when it was lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from shortlist.storage.records.postgres_server import Server
from shortlist.storage.records.postgres_table import RECORDS, Rows
from shortlist.storage.records.store import LockedError

Result = TypeVar("Result")

_ASK_AGAIN_SECONDS: Final = 0.05
_GHOST_SECONDS: Final = 120.0
"""So long a server may take to notice that this process's former connection is dead."""
_TAKE: Final = text("SELECT pg_try_advisory_lock(:key)")
_FREE: Final = text("SELECT pg_advisory_unlock(:key)")
_IS_HELD: Final = text(
    "SELECT EXISTS (SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
    " WHERE datname = current_database() AND locktype = 'advisory' AND objsubid = 1 AND granted"
    " AND (classid::bigint << 32) | objid::bigint = :key)"
)


class HeldLock:
    """A lock, its connection, and the token by which it tells whether somebody else had it meanwhile.

    Args:
        server: Which keeps it.
        rows: Whose lock it is; the token is a row of theirs.
        name: Of the lock.
    """

    def __init__(self, server: Server, rows: Rows, name: str) -> None:
        self._server, self._rows = server, rows
        self._key = rows.lock_key(name)
        self._said = f"{server.name}: the lock '{name}' of {rows}"
        self._row = f".lock/{name}"  # no record's name begins with a dot
        self._token = secrets.token_hex(8)
        self._connection: Connection | None = None

    def take(self, seconds: float | None) -> None:
        """Wait until it is ours.

        Raises:
            LockedError: It was held all the time.
        """
        until = None if seconds is None else time.monotonic() + seconds
        try:
            while not self._server.run(self._try):
                if until is not None and time.monotonic() >= until:
                    raise LockedError(f"{self._said} is held by another process")
                time.sleep(_ASK_AGAIN_SECONDS)
        except BaseException:
            self._close_connection()
            raise

    def transact(self, work: Callable[[Connection], Result]) -> Result:
        """Return what a transaction on the lock's own connection gives; see `Server.run`.

        Raises:
            LockedError: The connection was lost, and somebody else took the lock.
        """
        return self._server.run(lambda: self._once(work, self._connection or self._retaken()))

    def free(self) -> None:
        """Let others have it; the server does so by itself where the connection is lost."""
        with suppress(SQLAlchemyError):
            if self._connection is not None:
                self._connection.scalar(_FREE, {"key": self._key})
                self._connection.commit()
        self._close_connection()

    def _try(self) -> bool:
        if self._connection is None:
            self._connection = self._server.own_connection()
        return self._once(self._take, self._connection)

    def _take(self, connection: Connection) -> bool:
        if not connection.scalar(_TAKE, {"key": self._key}):
            return False
        connection.execute(self._rows.put(self._row, self._token))
        return True

    def _retaken(self) -> Connection:
        """Return a connection that holds the lock again, if nobody had it since."""
        until = time.monotonic() + _GHOST_SECONDS
        connection = self._server.own_connection()
        try:
            while not connection.scalar(_TAKE, {"key": self._key}):
                self._check_lock_not_taken(connection)
                if time.monotonic() >= until:
                    raise LockedError(f"{self._said} was lost with the connection, and is held by another process")
                connection.rollback()
                time.sleep(_ASK_AGAIN_SECONDS)
            self._check_lock_not_taken(connection)
            connection.commit()
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _check_lock_not_taken(self, connection: Connection) -> None:
        if connection.scalar(self._rows.select(RECORDS.c.body, self._row)) != self._token:
            raise LockedError(f"{self._said} was lost with the connection, and another process took it over")

    def _once(self, work: Callable[[Connection], Result], connection: Connection) -> Result:
        try:
            with connection.begin():
                return work(connection)
        except DBAPIError:
            if connection.invalidated:
                self._close_connection()
            raise

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def is_held(connection: Connection, key: int) -> bool:
    """Whether somebody holds a lock, without disturbing who asks for it."""
    return bool(connection.scalar(_IS_HELD, {"key": key}))
