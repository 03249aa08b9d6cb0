"""The kinds of models of the project and of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import cast

from shortlist import ADDRESSES
from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.ranking.kind import ModelKind
from shortlist.spec.models import ModelSection
from shortlist.system.registry import AddressRegistry, resolve_address


def kind_of(name: str) -> ModelKind:
    """Return a kind of model.

    Raises:
        ShortlistError: There is no such kind, or it cannot be loaded.
    """
    registry = _project_registry()
    if name not in registry and name not in known_kinds():
        kinds = known_kinds()
        raise ShortlistError(f"no kind of model '{name}'{did_you_mean(name, kinds)}; there are {', '.join(kinds)}")
    kind = registry.load(name)
    if not isinstance(kind, ModelKind) or kind.name != name:
        got_description = f"a kind called '{kind.name}'" if isinstance(kind, ModelKind) else f"a {type(kind).__name__}"
        raise ShortlistError(
            f"kind of model '{name}': {registry[name]} is {got_description}; wanted a ModelKind whose section says it"
        )
    return kind


def known_kinds() -> Mapping[str, str]:
    """Return the `module:attribute` of every kind, of the project and of installed packages.

    Raises:
        ShortlistError: A package declares a kind whose name is taken, or there is no project.
    """
    return _project_registry().complete()


def sections() -> dict[str, type[ModelSection]]:
    """Return the section class of every kind, by name."""
    return {name: kind_of(name).section for name in known_kinds()}


def require_packages(kinds: Mapping[str, str]) -> None:
    """Check that what the training of models needs is installed.

    Args:
        kinds: Kind of each model, by the model's name.

    Raises:
        ShortlistError: A package is not installed; names the command that installs it.
    """
    for name, kind in kinds.items():
        for package, command in kind_of(kind).packages.items():
            if find_spec(package) is None:
                raise ShortlistError(
                    f"models.{name}: kind {kind} needs the package {package}, which is not installed; install it by"
                    f" {command}"
                )


def _project_registry() -> AddressRegistry:
    try:
        return cast(AddressRegistry, resolve_address("model_kinds"))
    except ModuleNotFoundError as error:
        module = ADDRESSES["model_kinds"].partition(":")[0]
        if error.name is None or not module.startswith(error.name):
            raise
        raise ShortlistError(
            f"kinds of models: there is no module {module} on Python's path; run from the root of the project, where"
            f" {module.replace('.', '/')}.py is"
        ) from None
