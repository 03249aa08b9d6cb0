"""Where everything is that outlives a run, as the graphs' `stores` parameter says it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from tempfile import gettempdir
from typing import Final, Self
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shortlist.contracts import ShortlistError


class StorageConfig(BaseModel):
    """Addresses and names of environment variables, never a secret.

    On one machine it is written `<folder>#<epoch>`; elsewhere as JSON.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path | None = None
    """`<runs>/stores` on one machine; None where no disk is shared."""
    epoch: str = ""
    """Identity of the stores: results cached for deleted or other stores are not reused."""
    cluster: str = ""
    """Name of the cluster they belong to."""
    objects: str = ""
    """`s3://bucket/prefix`; empty: `folder / "objects"`."""
    tracking_variable: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]*)?$")
    """Environment variable with MLflow's address; empty: `mlflow.db` in the folder."""
    database_variable: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]*)?$")
    """Environment variable with PostgreSQL's address; empty: files in the folder."""
    log_in_objects: bool = False
    """Whether servers leave the prediction log among the objects, though there is a folder."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the stores that a graph's parameter names.

        Raises:
            ShortlistError: It names none.
        """
        if not text.startswith("{"):
            folder, _, epoch = text.partition("#")
            return cls(folder=Path(folder), epoch=epoch)
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ShortlistError(f"stores: {error.errors()[0]['msg']} in {text[:200]!r}") from None

    def __str__(self) -> str:
        """Return what `parse` understands."""
        if self.folder is not None and self == type(self)(folder=self.folder, epoch=self.epoch):
            return f"{self.folder}#{self.epoch}"
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))

    @property
    def tracking_uri(self) -> str | None:
        """MLflow's address; None: the folder's own."""
        return address(self.tracking_variable, "runtime.tracking") if self.tracking_variable else None

    @property
    def database_uri(self) -> str | None:
        """PostgreSQL's address, a secret; None: files."""
        return address(self.database_variable, "runtime.database") if self.database_variable else None

    @property
    def has_remote_log(self) -> bool:
        """Whether the prediction log is among the objects."""
        return self.log_in_objects or self.folder is None

    @property
    def runs(self) -> Path:
        """Folder of runs; where no disk is shared, one of this machine's own, in which nothing is missed."""
        own = Path(gettempdir()) / f"shortlist-{os.getuid()}" / (self.cluster or "default")
        return own if self.folder is None else self.folder.parent

    def below(self, name: str) -> Path:
        """Return a path below the folder.

        Raises:
            ShortlistError: There is none.
        """
        if self.folder is None:
            raise ShortlistError(f"stores: '{name}' needs a folder, and these stores have none")
        return self.folder / name


def address(variable: str, where: str) -> str:
    """Return what an environment variable holds.

    Raises:
        ShortlistError: It is not set; the message never holds a value.
    """
    value = os.environ.get(variable, "")
    if not value:
        raise ShortlistError(
            f"{where}: the environment variable {variable} is not set. Set it (on a cluster through"
            " runtime.cluster.secrets), or declare a store without a server."
        )
    return value


_USER_INFO: Final = re.compile(r"//(?P<secret>\S*)@")
_SECRET_VALUE: Final = re.compile(
    r"""(?ix) (?:\w*(?:passw(?:or)?d|pwd|secret|token|access_key|api_key)\w*=)
    (?P<secret> '(?:[^'\\]|\\.)*'  # as libpq quotes
    | "(?:[^"\\]|\\.)*"
    | (?: (?! ,\w+= | [&\s] ) . )*  # up to the next of the list, of the query, or of the text
    )"""
)


def redact_passwords(text: str) -> str:
    """Return a text whose addresses do not show a password.

    What environment variables hold as passwords is taken out wherever it stands. Besides, what stands between `//` and
    the last `@` before a blank goes, and what is said to be a password or a token. A password may hold `/`, `@` or a
    comma, so rather too much is taken out than too little.

    >>> redact_passwords("cannot reach postgresql://me:secret@host/db")
    'cannot reach postgresql://***@host/db'
    >>> redact_passwords("host:6379,password=a,b/c@d,ssl=true and postgresql://me:p@ss/w@host/db?sslpassword=x&a=b")
    'host:6379,password=***,ssl=true and postgresql://***@host/db?sslpassword=***&a=b'
    """
    for secret in sorted(_secrets(), key=len, reverse=True):
        text = text.replace(secret, "***")
    # Both are looked for in the text as it is: a password may look like a value, and a value like an address.
    spans = [found.span("secret") for pattern in (_USER_INFO, _SECRET_VALUE) for found in pattern.finditer(text)]
    shown, at = [], 0
    for start, end in sorted(spans):
        if start >= at:
            shown += [text[at:start], "***"]
        at = max(at, end)
    return "".join(shown) + text[at:]


_SECRET_NAME = re.compile(r"(password|passwd|secret|token|secret_access_key|api_key)$", re.IGNORECASE)
_SHORTEST = 4
"""A shorter password cannot be told from the words around it."""


def _secrets() -> set[str]:
    """Return the passwords in this process's environment, as they are written and as they are meant."""
    found: set[str] = set()
    for name, value in os.environ.items():
        _, address, rest = value.partition("://")
        if address and "@" in rest:
            found.add(rest.rpartition("@")[0].partition(":")[2])
        _, said, after = value.partition("password=")
        if said:
            found |= {after, re.split(r"[,&]\w+=|\s", after)[0]}
        if _SECRET_NAME.search(name):
            found.add(value)
    found |= {unquote(secret) for secret in found}
    return {secret for secret in found if len(secret) >= _SHORTEST}
