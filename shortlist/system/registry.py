"""Registries of extensions by name, extended by installed packages (entry points) and by files of the project."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Self, TypeVar

import shortlist
from shortlist.contracts import ShortlistError
from shortlist.system.project import project_root

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
        file_attribute: Attribute of a project's files that holds an extension: `pipelines/<group>/<name>.py` adds
            `<name>`. Empty: no files are read.
    """

    def __init__(self, group: str, builtin: dict[str, T], file_attribute: str = "") -> None:
        super().__init__(builtin)
        self.group = f"shortlist.{group}"
        self.added: dict[str, str] = {}
        """Where each extension that is not built in comes from: `module:attribute`, or a file."""
        self._builtin_types = {type(extension) for extension in builtin.values()}
        self._file_attribute = file_attribute
        self._complete = False

    def complete(self) -> Self:
        """Return this registry after adding the extensions of installed packages and of the project's files.

        They are read at the first call only: the entry points of 200 packages take 0.05 s, and most steps need none.

        Raises:
            ShortlistError: A name is taken, or an extension cannot be loaded.
        """
        if not self._complete:
            for point in entry_points(group=self.group):
                # A package may be on the path twice.
                if point.value not in (self.added.get(point.name), self.get(point.name)):
                    self._check_name_is_free(f"entry point {self.group}", point.name, point.value)
                    self._add(point.name, self._read(point), point.value)
            for path in self._project_files():
                self._check_name_is_free(str(path), path.stem, path.name)
                self._add(path.stem, self._read_file(path), str(path))
            self._complete = True
        return self

    def _add(self, name: str, extension: T, origin: str) -> None:
        self[name] = extension
        self.added[name] = origin

    def _check_name_is_free(self, location: str, name: str, origin: str) -> None:
        if name in self:
            raise ShortlistError(
                f"{location}: '{name}' is {self.added.get(name) or _describe(self[name])} and {origin}; give one of"
                " them another name"
            )

    def _project_files(self) -> list[Path]:
        """Return the files of the project that hold an extension each; none outside a project."""
        if not self._file_attribute:
            return []
        try:
            folder = project_root() / "pipelines" / self.group.removeprefix("shortlist.")
        except ShortlistError:
            return []
        return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))

    def _read_file(self, path: Path) -> T:
        extension: T | None = getattr(_load_module(f"{self.group}.{path.stem}", path), self._file_attribute, None)
        if type(extension) not in self._builtin_types:
            types = " or ".join(sorted(kind.__name__ for kind in self._builtin_types))
            problem = "is missing" if extension is None else f"is of type {type(extension).__name__}"
            raise ShortlistError(f"{path}: {self._file_attribute} {problem}; wanted a value of type {types}")
        assert extension is not None
        return extension

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


def _load_module(name: str, path: Path) -> ModuleType:
    """Return the module in a file, which is executed.

    Raises:
        ShortlistError: It cannot be executed.
    """
    specification = spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None, path
    module = module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise ShortlistError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _describe(extension: object) -> str:
    if isinstance(extension, type):
        return f"{extension.__module__}:{extension.__qualname__}"
    return extension if isinstance(extension, str) else repr(extension)
