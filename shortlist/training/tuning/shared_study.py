"""The study of a search in PostgreSQL, shared by the batches of its trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

if TYPE_CHECKING:
    import optuna

Value = TypeVar("Value")

PATIENCE_SECONDS: Final = 60.0
"""How long PostgreSQL may be away when a trial ends, which may have taken hours; a failover takes less."""
_SCHEMA: Final = "shortlist_tuning"
"""Schema of Optuna's tables: MLflow, which may use the same database, has a table of the same name."""


class SharedStudy(NamedTuple):
    """A study that several processes continue at the same time."""

    database: str
    """`postgresql://user:password@host:port/database`, a secret."""
    name: str
    """Name of the study."""

    def open_storage(self) -> optuna.storages.RDBStorage:
        """Return Optuna's storage, whose tables are created where they are missing.

        Raises:
            ShortlistError: It is no address of PostgreSQL, or PostgreSQL cannot be reached.
        """
        import optuna

        from shortlist.storage.records.postgres import open_postgres  # loads the driver
        from shortlist.storage.records.postgres_server import server_at

        server = server_at(self.database)
        # Two processes that create the tables at once both fail.
        with open_postgres(self.database, "", "tuning", "").lock("migration"):
            server.create_schema(_SCHEMA)
            arguments = {**server.connect_arguments, "options": f"-csearch_path={_SCHEMA}"}
            return optuna.storages.RDBStorage(
                server.address, engine_kwargs={"connect_args": arguments, "hide_parameters": True}
            )

    def run(self, work: Callable[[], Value]) -> Value:
        """Return what some work on the study gives; it is done anew when PostgreSQL was away meanwhile.

        Args:
            work: Must change nothing when it is done twice.
        """
        from optuna.exceptions import StorageInternalError

        retrying = Retrying(
            retry=retry_if_exception_type(StorageInternalError), stop=stop_after_delay(PATIENCE_SECONDS),
            wait=wait_exponential_jitter(initial=0.1, max=2.0, jitter=0.2), reraise=True,
        )  # fmt: skip
        return retrying(work)
