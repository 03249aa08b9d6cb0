"""Registries of extensions by name, extensible by installed packages through entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any, Self, TypeVar

import shortlist
from shortlist.contracts import ShortlistError

T = TypeVar("T")


def resolve_address(name: str) -> Any:
    """Import and return what `shortlist.ADDRESSES` names: a registry or function of a layer above the caller's."""
    return resolve_name(shortlist.ADDRESSES[name])


class Registry(dict[str, T]):
    """The extensions of one kind, by the name that a spec uses.

    Installed packages add to it by entry points of the group `shortlist.<group>`; each has the extension's name and its
    `module:attribute`.

    Args:
        group: Group of the entry points, without `shortlist.`.
        builtin: Extensions of this project, in the order of messages and of the JSON Schema.
    """

    def __init__(self, group: str, builtin: dict[str, T]) -> None:
        super().__init__(builtin)
        self.group = f"shortlist.{group}"
        self._complete = False

    def complete(self) -> Self:
        """Return this registry after adding the extensions of installed packages.

        Entry points are read at the first call only: those of 200 packages take 0.05 s, and most steps need none.

        Raises:
            ShortlistError: A package uses a name that is taken, or an extension cannot be loaded.
        """
        if not self._complete:
            added: dict[str, str] = {}
            for point in entry_points(group=self.group):
                if point.value in (added.get(point.name), self.get(point.name)):  # a package that is on the path twice
                    continue
                if point.name in self:
                    raise ShortlistError(
                        f"entry point {self.group}: '{point.name}' is {_describe(self[point.name])} and {point.value};"
                        " give one of them another name"
                    )
                self[point.name] = self._read(point)
                added[point.name] = point.value
            self._complete = True
        return self

    def _read(self, point: EntryPoint) -> T:
        """Return the value of the registry for an entry point."""
        try:
            extension: T = point.load()
        except (ImportError, AttributeError) as error:
            raise self._load_error(point.name, point.value, error) from error
        return extension

    def _load_error(self, name: str, address: str, error: Exception) -> ShortlistError:
        return ShortlistError(f"{self.group}: '{name}': {address} cannot be loaded: {error}")


class AddressRegistry(Registry[str]):
    """A registry of addresses, `module:attribute`, which are loaded one by one when needed."""

    def load(self, name: str) -> Any:
        """Return the extension at the address of a registered name.

        Raises:
            ShortlistError: The address cannot be loaded.
        """
        try:
            return resolve_name(self[name])
        except (ImportError, AttributeError, ValueError) as error:
            raise self._load_error(name, self[name], error) from error

    def _read(self, point: EntryPoint) -> str:
        return point.value


def _describe(extension: object) -> str:
    if isinstance(extension, type):
        return f"{extension.__module__}:{extension.__qualname__}"
    return extension if isinstance(extension, str) else repr(extension)
