"""Online features in Redis."""

from __future__ import annotations

import os
import re
import socket
from typing import Any, ClassVar, Final, Literal

from shortlist.contracts import ShortlistError, StoreUnavailableError
from shortlist.spec.runtime import FileOf, OnlineStore, Variable

_REACH_SECONDS: Final = 5
_CONNECTION: Final = re.compile(r"[^:,=]+:\d+(,|$)")


class RedisOnline(OnlineStore):
    """Online features in Redis."""

    kind: Literal["redis"]
    """A Redis server."""
    connection_variable: Variable = "SHORTLIST_REDIS"
    """Environment variable that holds `host:port[,password=...]`; the spec never holds a secret."""

    is_shared: ClassVar[bool] = True

    @property
    def address_variable(self) -> str:
        """The variable with the connection."""
        return self.connection_variable

    def configuration(self, file: FileOf) -> dict[str, Any]:
        """Return Feast's configuration of the store."""
        # skip_dedup: Redis would otherwise keep an old value whose moment equals the new one's, as every side table's
        # does.
        return {"type": "redis", "connection_string": self._connection(), "skip_dedup": True}

    def check_reachable(self) -> None:
        """See that the server answers; whether it takes the password, Feast will say.

        Raises:
            StoreUnavailableError: It cannot be reached.
            ShortlistError: The variable with its address is not set.
        """
        address = self._connection().partition(",")[0]
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
        except OSError as error:
            raise StoreUnavailableError(
                f"runtime.online_store: Redis at {address} cannot be reached ({error.strerror or error}); check the"
                f" environment variable {self.connection_variable} and at the server"
            ) from None

    @classmethod
    def explain_error(cls, error: Exception) -> str:
        """Return a message about an error of Redis; empty for other errors."""
        return f"Redis says: {error}" if type(error).__module__.startswith("redis.") else ""

    def _connection(self) -> str:
        connection = os.environ.get(self.connection_variable, "")
        if not _CONNECTION.match(connection):
            problem = "does not hold one" if connection else "is not set"  # what it holds may be a password
            raise ShortlistError(
                f"runtime.online_store: wanted `host:port[,password=...]`, but the environment variable"
                f" {self.connection_variable} {problem}. Set it, or declare `online_store: {{kind: sqlite}}`."
            )
        return connection
