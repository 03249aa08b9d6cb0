"""A PostgreSQL server: connections that come back after it was away, and errors that show no secret."""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, NullPool, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from shortlist.contracts import ShortlistError
from shortlist.storage.records.store import RecordStoreError, RecordStoreUnavailableError
from shortlist.storage.storage_config import redact_passwords

Result = TypeVar("Result")

PATIENCE_SECONDS: Final = 60.0
"""How long a server may be away before that is an error; a failover takes less."""
_WRITE_IT: Final = "wanted postgresql://user:password@host:port/database, special characters of the password as %XX"
_REFUSED: Final = re.compile("authentication failed|no pg_hba.conf entry|does not exist|no password supplied")
"""What no patience heals. PostgreSQL tells a client that cannot connect nothing better than a text."""
_KEEPALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Both sides notice a dead other one within a minute: the server then frees its locks."""


class Server:
    """What many stores of a process share.

    Args:
        url: `postgresql://user:password@host:port/database`.
        patience_seconds: How long it may be away.

    Raises:
        ShortlistError: The address is none, and is not repeated; or the database's client is not installed.
    """

    def __init__(self, url: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        try:
            address = make_url(url)
        except (ArgumentError, ValueError):
            raise ShortlistError(f"runtime.database: not a PostgreSQL address; {_WRITE_IT}") from None
        # A host with an @ is the end of a password, which an error about the host would print.
        if address.get_backend_name() != "postgresql" or not address.database or "@" in (address.host or ""):
            raise ShortlistError(f"runtime.database: not a PostgreSQL address; {_WRITE_IT}")
        address = address.set(drivername="postgresql+psycopg")
        self.name = f"{address.host}:{address.port or 5432}/{address.database}"
        self.address = address.render_as_string(hide_password=False)
        self._password = str(address.password or "")
        # Milliseconds; keepalives say nothing while an answer is owed to a question that never arrived.
        self.connect_arguments: dict[str, Any] = {
            "connect_timeout": 10, "application_name": "shortlist", "tcp_user_timeout": 60_000, **_KEEPALIVE,
        }  # fmt: skip
        options: dict[str, Any] = {"connect_args": self.connect_arguments, "hide_parameters": True}
        try:
            # Without a ping before each use: `run` goes on after a connection that turns out to be lost, and
            # SQLAlchemy's ping fails with an error of the client where the loss is noticed during it.
            self._engine = create_engine(address, **options)
            self._unshared = create_engine(address, poolclass=NullPool, **options)
        except ImportError:
            raise ShortlistError(
                "runtime.database: needs the package psycopg (requirements/cluster.txt), which is not installed"
            ) from None
        self._patience_seconds = patience_seconds
        atexit.register(self._engine.dispose)

    def run(self, work: Callable[[], Result]) -> Result:
        """Return what some work on the server gives; it is done anew when the connection is lost on the way.

        Args:
            work: Must change nothing when it is done twice.

        Raises:
            RecordStoreError: The server stayed away, or refused; with no secret in it.
        """
        retrying = Retrying(
            retry=retry_if_exception(_is_away),
            stop=stop_after_delay(self._patience_seconds),
            wait=wait_exponential_jitter(initial=0.1, max=2.0, jitter=0.2),
            reraise=True,
        )
        try:
            return retrying(work)
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
            said = redact_passwords(" ".join(str(cause).split()))
            if self._password:
                said = said.replace(self._password, "***")
            waited = f" for {self._patience_seconds:g} s" if _is_away(error) else ""
            advice = "Look at the server, and at the environment variable that runtime.database names"
            kind = RecordStoreUnavailableError if waited else RecordStoreError
            raise kind(f"PostgreSQL at {self.name}{waited}: {said}. {advice}.") from None

    def transact(self, work: Callable[[Connection], Result]) -> Result:
        """Return what a transaction gives; see `run`."""

        def once() -> Result:
            with self._engine.begin() as connection:
                return work(connection)

        return self.run(once)

    def create_schema(self, name: str) -> None:
        """Create a schema where it is missing; two processes that do at once may fail.

        The account needs the right to create schemas only where it is missing.

        Raises:
            RecordStoreError: The server stayed away, or refused.
        """

        def create(connection: Connection) -> None:
            schemas = connection.execute(text("SELECT nspname FROM pg_catalog.pg_namespace")).scalars()
            if name not in schemas:
                connection.execute(text(f"CREATE SCHEMA {name}"))

        self.transact(create)

    def own_connection(self) -> Connection:
        """Return a connection that nobody else gets, and whose end the server notices soon, wherever this one dies."""
        connection = self._unshared.connect()
        for name, value in _KEEPALIVE.items():
            connection.execute(text(f"SET tcp_{name} = {value}"))
        connection.commit()
        return connection


@cache
def server_at(url: str) -> Server:
    """Return this process's server at an address."""
    return Server(url)


def _is_away(error: BaseException) -> bool:
    """Whether the connection was lost or not made, so that another try may succeed."""
    if not isinstance(error, DBAPIError) or _REFUSED.search(str(error.orig)):
        return False
    state = getattr(error.orig, "sqlstate", None)
    # Class 08 is a lost connection, 57P0x a server that stops or starts; without any state none was made.
    away = state is None or state.startswith(("08", "57P0"))
    return error.connection_invalidated or (away and type(error).__name__ == "OperationalError")
