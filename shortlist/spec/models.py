"""The `models` section: what every kind of model declares, and the kinds themselves, which a registry names.

The kinds belong to the project (`models/<kind>/`), which this package does not import: their registry is asked for by
name, the first time that a spec is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self, cast

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.spec.base import Section

if TYPE_CHECKING:
    from shortlist.spec.data import Data
    from shortlist.spec.features import Features

REGISTRY: Final = "models.registry"
"""Module of the project that names the kinds."""
RESERVED: Final = ("champion",)
"""Names that reports give to other models than the declared ones."""

ModelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
"""What a user calls a model: in steps, reports, MLflow and alerts."""


class Continuation(NamedTuple):
    """What a training makes of an earlier model."""

    how: str
    """As `retrain` says it."""
    learns_all_days: bool = False
    """Whether it learns every day again; otherwise the new ones alone."""
    overlap_days: int = 0
    """Days learnt again beside the new ones."""


class ModelSection(Section):
    """What every kind of model declares; a kind adds its own keys, and gives `kind` one value."""

    kind: str
    """Kind of model; the keys below depend on it."""
    role: Literal["candidate", "baseline"] = "candidate"
    """`candidate`: it is exported, passes the gates, and may be served. `baseline`: it is trained for comparison."""
    calibration: Literal["none", "platt", "isotonic"] = "none"
    """Last step of the model, fitted on the validation days: its scores become the rates at which the label follows.
    `platt`: a straight line through the log-odds; few rows suffice. `isotonic`: any rising curve; wants some thousand
    rows. The order of rows stays. `none`: scores are what the model gives."""
    labels: tuple[str, ...] = ()
    """Further labels, of `data.labels`, for which it gives a score beside that of the label: networks over embedded ids
    by heads that share everything below, other kinds by a model of their own for each."""

    distributed: ClassVar[bool] = False
    """Whether several processes can train it together (`runtime.cluster.workers`)."""
    reference_baseline: ClassVar[bool] = False
    """Whether candidates have to beat a baseline of this kind where `gates.baseline` names none."""
    compared_as_baseline: ClassVar[bool] = False
    """Whether a candidate of this kind is what a baseline would be for the others: those that are not above it are
    named in the comparison of a run's models."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Say that a spec has to give `kind`: its default is for sections that a program makes."""
        made = super().__get_pydantic_json_schema__(schema, handler)
        section = handler.resolve_ref_schema(made)
        section["required"] = ["kind", *(name for name in section.get("required", ()) if name != "kind")]
        return made

    @property
    def reads(self) -> tuple[str, ...]:
        """Patterns of the features that it reads."""
        return cast(tuple[str, ...], getattr(self, "features", ()))

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the models that it is made of; they are trained before it. Empty: it learns from the table alone."""
        return ()

    @property
    def continuation(self) -> Continuation | None:
        """How a training goes on from an earlier model; None: it starts from scratch."""
        return None

    @property
    def id_settings(self) -> frozenset[str]:
        """Keys of `hash` features that this model follows when it learns their ids."""
        return frozenset()

    @property
    def by_workers(self) -> Self:
        """The section as several workers train it: they may do less than one process where nothing is declared."""
        return self

    @property
    def without_refit(self) -> Self:
        """The section as it is trained on the training days alone, so that the validation days can measure it.

        A kind whose training ends with a fit on the validation days calls that key `refit`; calibration learns from
        them too.
        """
        fields = type(self).model_fields
        usual = {name: fields[name].default for name in fields if name.startswith("retrain")}
        refit = {"refit": False, **usual} if "refit" in fields else {}
        return self.model_copy(update={"calibration": "none", **refit})

    def check_features(self, name: str, features: Features, *, distributed: bool) -> None:
        """Check what only the features tell.

        Args:
            name: Of this model.
            features: The spec's section.
            distributed: Whether several processes train it.

        Raises:
            ValueError: It cannot be trained so.
        """

    def check_data(self, name: str, data: Data) -> None:
        """Check what only the log's declaration tells.

        Args:
            name: Of this model.
            data: The spec's section.

        Raises:
            ValueError: It cannot be trained on such a log.
        """
        for number, label in enumerate(self.labels):
            if label not in data.labels:
                raise ValueError(
                    f"models.{name}.labels: '{label}' is not declared in data.labels{did_you_mean(label, data.labels)}"
                )
            if label in self.labels[:number]:
                raise ValueError(f"models.{name}.labels: '{label}' is named twice; name every label once")

    @classmethod
    def added_to(cls, candidates: Sequence[ModelSection]) -> Self | None:
        """Return the baseline that is added to a spec that declares none of this kind; None: no such baseline is.

        Args:
            candidates: The declared candidates, in their order.
        """
        return None


def labels_of_all(sections: Sequence[ModelSection]) -> tuple[str, ...]:
    """Return the further labels that any of some models gives scores for: those of a baseline to compare them with."""
    return tuple(dict.fromkeys(label for section in sections for label in section.labels))


class Kinds(Protocol):
    """What the project's registry answers."""

    def sections(self) -> Mapping[str, type[ModelSection]]:
        """Return the section of every kind, by its name."""


def model_sections() -> Mapping[str, type[ModelSection]]:
    """Return the section of every kind of model, by its name.

    Raises:
        ShortlistError: The project's registry is not on the path, or names something that is no kind.
    """
    try:
        registry = import_module(REGISTRY)
    except ModuleNotFoundError as error:
        if error.name is None or not REGISTRY.startswith(error.name):
            raise
        raise ShortlistError(
            f"kinds of models: there is no module {REGISTRY} on Python's path; run from the root of the project, where"
            " models/registry.py is"
        ) from None
    return cast(Kinds, registry).sections()


class _OfAnyKind:
    """Tells pydantic, when a spec is first read, that a model is one of the sections in the registry."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        sections = tuple(model_sections().values())
        return handler.generate_schema(Annotated[_union(sections), Field(discriminator="kind")])


def _union(sections: tuple[type[ModelSection], ...]) -> Any:
    from typing import Union

    return Union[sections]  # noqa: UP007 - made from a tuple


AnyModel = Annotated[ModelSection, _OfAnyKind]
Models = dict[ModelName, AnyModel]


def with_baselines(declared: Mapping[str, ModelSection]) -> dict[str, ModelSection]:
    """Return the models that are trained: the declared ones, and the baselines that every spec gets.

    Args:
        declared: By name.

    Raises:
        ValueError: There is no candidate, or a name is taken.
    """
    candidates = [model for model in declared.values() if model.role == "candidate"]
    if not candidates:
        raise ValueError("declare at least one with role: candidate")
    for name in RESERVED:
        if name in declared:
            raise ValueError(f"'{name}' is what reports call the serving model; choose another name")
    there = {model.kind for model in declared.values()}
    models = dict(declared)
    for kind, section in model_sections().items():
        added = None if kind in there else section.added_to(candidates)
        if added is None:
            continue
        if kind in declared:
            raise ValueError(
                f"'{kind}' is of kind {declared[kind].kind}, and the baseline of kind {kind} that every spec gets has"
                " this name; choose another name, or declare that baseline under a name of its own"
            )
        models[kind] = added
    return models


def check_members(models: Mapping[str, ModelSection]) -> None:
    """Check that models that are made of others name such as are trained before them and can be served.

    Args:
        models: All that are trained, by name.

    Raises:
        ValueError: Names the model and the member.
    """
    for name, section in models.items():
        where = f"models.{name}.models"
        for number, member in enumerate(section.members):
            found = models.get(member)
            if member == name:
                raise ValueError(f"{where}: '{member}' is this model itself; name other models")
            if found is None:
                raise ValueError(f"{where}: no model is called '{member}'{did_you_mean(member, models)}")
            if found.members:
                raise ValueError(f"{where}: '{member}' is itself made of other models; name those instead")
            if found.role == "baseline":
                raise ValueError(f"{where}: '{member}' is a baseline, which cannot be served; name candidates only")
            if member in section.members[:number]:
                raise ValueError(f"{where}: '{member}' is named twice; name every member once")


def check_continued(continues: bool, how: str, amount: tuple[str, int | None], days: int | None) -> None:
    """Check the keys that belong to `retrain: <how>`.

    Args:
        continues: Whether that is declared.
        how: Value of `retrain`.
        amount: Key and value of how much is learnt.
        days: Value of `retrain_days`.

    Raises:
        ValueError: One is missing, or declared to no purpose.
    """
    given = dict((amount, ("retrain_days", days)))
    missing = [key for key, value in given.items() if value is None]
    if continues and missing:
        raise ValueError(f"retrain: {how} also needs {' and '.join(missing)}")
    if not continues and len(missing) < len(given):
        only = ", ".join(key for key, value in given.items() if value is not None)
        raise ValueError(f"{only}: read with retrain: {how} alone; declare that, or leave it out")
