"""Locations of the stores that outlive a run: the graphs' `stores` parameter."""

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
    """Addresses of stores and names of environment variables, never a secret.

    As text it is `<folder>#<epoch>` on one machine, and JSON elsewhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path | None = None
    """`<runs>/stores` on one machine; None where no disk is shared."""
    epoch: str = ""
    """Identity of the stores: results cached for deleted or other stores are not reused."""
    cluster: str = ""
    """Name of the cluster that the stores belong to."""
    objects: str = ""
    """`s3://bucket/prefix`; empty: `folder / "objects"`."""
    tracking_variable: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]*)?$")
    """Environment variable with MLflow's address; empty: `mlflow.db` in the folder."""
    database_variable: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]*)?$")
    """Environment variable with PostgreSQL's address; empty: files in the folder."""
    log_in_objects: bool = False
    """Whether the tables of the logs are in the object store although there is a folder."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the stores from a graph's parameter.

        Raises:
            ShortlistError: The text is malformed.
        """
        if not text.startswith("{"):
            folder, _, epoch = text.partition("#")
            return cls(folder=Path(folder), epoch=epoch)
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ShortlistError(f"stores: {error.errors()[0]['msg']} in {text[:200]!r}") from None

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.folder is not None and self == type(self)(folder=self.folder, epoch=self.epoch):
            return f"{self.folder}#{self.epoch}"
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))

    @property
    def tracking_uri(self) -> str | None:
        """MLflow's address; None: `mlflow.db` in the folder."""
        return read_variable(self.tracking_variable, "runtime.tracking") if self.tracking_variable else None

    @property
    def database_uri(self) -> str | None:
        """PostgreSQL's address, a secret; None: files."""
        return read_variable(self.database_variable, "runtime.database") if self.database_variable else None

    @property
    def has_remote_log(self) -> bool:
        """Whether the prediction log is in the object store."""
        return self.log_in_objects or self.folder is None

    @property
    def runs(self) -> Path:
        """Folder of runs; where no disk is shared, a temporary folder of this machine, which may be lost."""
        local_folder = Path(gettempdir()) / f"shortlist-{os.getuid()}" / (self.cluster or "default")
        return local_folder if self.folder is None else self.folder.parent

    def path_in_folder(self, name: str) -> Path:
        """Return a path in the folder.

        Raises:
            ShortlistError: There is no folder.
        """
        if self.folder is None:
            raise ShortlistError(f"stores: '{name}' needs a folder, and these stores have none")
        return self.folder / name


def read_variable(variable: str, setting: str) -> str:
    """Return the value of an environment variable.

    Raises:
        ShortlistError: It is not set; the message contains no value.
    """
    value = os.environ.get(variable, "")
    if not value:
        raise ShortlistError(
            f"{setting}: the environment variable {variable} is not set. Set it (on a cluster through"
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
    """Return a text without the passwords in its addresses.

    Passwords of environment variables are removed wherever they occur; also everything between `//` and the last `@`
    before a blank, and the values of keys such as `password=` or `token=`. A password may contain `/`, `@` or a comma,
    so too much rather than too little is removed.

    >>> redact_passwords("cannot reach postgresql://me:secret@host/db")
    'cannot reach postgresql://***@host/db'
    >>> redact_passwords("host:6379,password=a,b/c@d,ssl=true and postgresql://me:p@ss/w@host/db?sslpassword=x&a=b")
    'host:6379,password=***,ssl=true and postgresql://***@host/db?sslpassword=***&a=b'
    """
    for secret in sorted(_secrets_in_environment(), key=len, reverse=True):
        text = text.replace(secret, "***")
    # Both patterns search the original text: a password may look like a value, and a value like an address.
    spans = [match.span("secret") for pattern in (_USER_INFO, _SECRET_VALUE) for match in pattern.finditer(text)]
    pieces, at = [], 0
    for start, end in sorted(spans):
        if start >= at:
            pieces += [text[at:start], "***"]
        at = max(at, end)
    return "".join(pieces) + text[at:]


_SECRET_NAME = re.compile(r"(password|passwd|secret|token|secret_access_key|api_key)$", re.IGNORECASE)
_MIN_SECRET_LENGTH = 4
"""Shorter passwords cannot be distinguished from ordinary words."""


def _secrets_in_environment() -> set[str]:
    """Return the passwords in this process's environment, both URL-encoded and decoded."""
    secrets: set[str] = set()
    for name, value in os.environ.items():
        _, address, location = value.partition("://")
        if address and "@" in location:
            secrets.add(location.rpartition("@")[0].partition(":")[2])
        _, separator, password_text = value.partition("password=")
        if separator:
            secrets |= {password_text, re.split(r"[,&]\w+=|\s", password_text)[0]}
        if _SECRET_NAME.search(name):
            secrets.add(value)
    secrets |= {unquote(secret) for secret in secrets}
    return {secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH}
