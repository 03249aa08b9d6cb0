"""Secrets of a stack: made once, kept in a file that only its owner reads."""

from __future__ import annotations

import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shortlist.storage.artefacts import IntegrityError

_BYTES: Final = 32
SAMPLING_KEY_VARIABLE: Final = "SHORTLIST_SAMPLING_KEY"
"""Environment variable with the key of the hash that samples answers, where no file of a stack holds it."""


def _random_text() -> str:
    return secrets.token_urlsafe(_BYTES)


class StackSecrets(BaseModel):
    """Secrets that the processes of a stack share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend_token: str = Field(default_factory=_random_text)
    """Token with which a client of this machine proves that it is the application's backend (`Authorization: Bearer
    TOKEN`): that of `serving.events.token_variable` where it is declared."""
    gateway_key: str = Field(default_factory=_random_text)
    """Key with which the gateway proves to a server that it set the headers of a request."""
    sampling_key: str = Field(default_factory=_random_text)
    """Key of the hash that samples answers for the prediction log."""

    def is_gateway(self, key: str) -> bool:
        """Whether a key is the gateway's."""
        return hmac.compare_digest(key.encode(), self.gateway_key.encode())

    @classmethod
    def open(cls, path: Path, backend_token: str | None = None) -> Self:
        """Return the secrets in a file, which is written first if it does not exist.

        Args:
            path: The file.
            backend_token: Declared token of the backend, which replaces the one in the file.

        Raises:
            IntegrityError: The file is invalid.
        """
        stack_secrets = cls._read(path) if path.exists() else cls()
        if backend_token is not None and backend_token != stack_secrets.backend_token:
            stack_secrets = stack_secrets.model_copy(update={"backend_token": backend_token})
        elif path.exists():
            return stack_secrets
        _write_private(path, stack_secrets.model_dump_json(indent=2) + "\n")
        return stack_secrets

    @classmethod
    def _read(cls, path: Path) -> Self:
        try:
            return cls.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except (ValidationError, ValueError):
            raise IntegrityError(
                f"{path}: not the secrets of a stack; stop the stack, delete this file, and serve again."
            ) from None


def sampling_key(path: Path | None) -> str:
    """Return the key of the hash that samples answers for the prediction log.

    Args:
        path: File of the stack's secrets. Without it, the key is that of the environment (`SHORTLIST_SAMPLING_KEY`),
            which servers and readers of a log have to share; empty where there is none.
    """
    if path is not None and path.exists():
        return StackSecrets.open(path).sampling_key
    return os.environ.get(SAMPLING_KEY_VARIABLE, "")


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    staged.replace(path)
