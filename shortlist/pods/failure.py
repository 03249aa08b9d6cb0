"""The error of a process elsewhere that stopped for a mistake of the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError


class JobFailure(BaseModel):
    """A `ShortlistError` as JSON; callers here may depend on its class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    message: str
    error_class: str
    """`module:class` of the error."""
    base_classes: tuple[str, ...] = ()
    """The same of its bases, the nearest first."""

    @classmethod
    def from_error(cls, error: ShortlistError) -> Self:
        """Return the failure of an error."""
        error_class, *base_classes = map(_class_address, type(error).__mro__)
        return cls(message=str(error), error_class=error_class, base_classes=tuple(base_classes))

    def error(self) -> ShortlistError:
        """Return an error with the message, without attributes of its own, of the first class that this process has.

        A class that is not imported here has no caller that depends on it; a base of it may have. A failure comes from
        a file, which must not decide what is imported or called.
        """
        subclasses = {_class_address(subclass): subclass for subclass in _subclasses(ShortlistError)}
        addresses = (self.error_class, *self.base_classes)
        error_class = next((subclasses[address] for address in addresses if address in subclasses), ShortlistError)
        return error_class.__new__(error_class, self.message)  # a constructor may want more than a message


def _class_address(error_class: type) -> str:
    return f"{error_class.__module__}:{error_class.__qualname__}"


def _subclasses(error_class: type[ShortlistError]) -> Iterator[type[ShortlistError]]:
    for subclass in error_class.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
