"""The `runtime` section: where and with how much a run happens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shortlist.config.base import Section


class SQLiteOnline(Section):
    """Online features in a file."""

    kind: Literal["sqlite"] = "sqlite"
    """No server."""


class RedisOnline(Section):
    """Online features in Redis."""

    kind: Literal["redis"]
    """A Redis server."""
    connection_variable: str = Field(default="SHORTLIST_REDIS", pattern=r"^[A-Z][A-Z0-9_]*$")
    """Environment variable that holds `host:port[,password=...]`; the spec never holds a secret."""


class Runtime(Section):
    """Engine, memory, threads and stores."""

    engine: Literal["auto", "cpu", "gpu"] = "auto"
    """Executor of feature queries; `auto` takes a GPU when there is one."""
    memory_budget_mib: int = Field(default=2_048, ge=64)
    """A training table larger than this is read from disk in pieces."""
    chunk_rows: int = Field(default=250_000, ge=1_000)
    """Rows per file of every table; the unit of reading, so it bounds memory."""
    seed: int = Field(default=17, ge=0)
    """Seed of everything random."""
    online_store: Annotated[SQLiteOnline | RedisOnline, Field(discriminator="kind")] = SQLiteOnline()
    """Where Feast keeps what serving reads."""
