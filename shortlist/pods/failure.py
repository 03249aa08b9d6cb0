"""The error of a process elsewhere that stopped for a mistake of the user."""

from __future__ import annotations

from importlib import import_module
from typing import Self

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError


class JobFailure(BaseModel):
    """A `ShortlistError` as JSON; callers here may depend on its class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    message: str
    error_class: str
    """`module:class` of the error."""

    @classmethod
    def from_error(cls, error: ShortlistError) -> Self:
        """Return the failure of an error."""
        return cls(message=str(error), error_class=f"{type(error).__module__}:{type(error).__name__}")

    def error(self) -> ShortlistError:
        """Return the failure as an error."""
        module, _, name = self.error_class.partition(":")
        error = getattr(import_module(module), name)(self.message)
        assert isinstance(error, ShortlistError)
        return error
