"""The study of a search in PostgreSQL, shared by the batches of its trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import optuna

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
                server.address,
                engine_kwargs={"connect_args": arguments, "hide_parameters": True, "pool_pre_ping": True},
            )
