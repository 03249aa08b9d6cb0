"""The `models` section: keys that all kinds of models share, and access to the registered kinds.

The kinds belong to the project (`models/<kind>/`), which this package does not import: their sections are read from
its registry when a spec is first validated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, cast

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Section
from shortlist.system.registry import resolve_address

if TYPE_CHECKING:
    from shortlist.spec.data import Data
    from shortlist.spec.features import Features

RESERVED: Final = ("champion",)
"""Names of models in reports that are not declared in the spec."""

ModelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
"""Name of a model, in steps, reports, MLflow and alerts."""


class Continuation(NamedTuple):
    """How a training continues from an earlier model."""

    retrain_mode: str
    """Value of `retrain`."""
    learns_all_days: bool = False
    """Whether it is trained on all days; otherwise on the new ones alone."""
    overlap_days: int = 0
    """Earlier days that are learnt again with the new ones."""


class RowWeights(Section):
    """Weights of training rows: what was shown seldom counts as much as what was shown often.

    A weight is relative to the mean. Rows that do not say how they were shown weigh as much as the mean of the others.
    """

    propensity: bool = False
    """Whether rows are divided by the probability of their item at its place (`data.propensity`)."""
    position: bool = False
    """Whether rows are divided by the share of rows at their place (`data.position`): users see few rows of the lower
    places."""
    max_weight: float = Field(default=20.0, gt=1)
    """Largest weight by how a row was shown, as a multiple of the mean; larger ones are cut, as otherwise few rows
    would decide."""

    @model_validator(mode="after")
    def _names_one_weight(self) -> Self:
        if not (self.propensity or self.position):
            raise ValueError("neither propensity nor position is true; declare one of them, or leave weights out")
        return self


class ModelSection(Section):
    """Keys that all kinds of models share; a kind adds its own keys and fixes the value of `kind`."""

    kind: str
    """Kind of model; the keys below depend on it."""
    role: Literal["candidate", "baseline"] = "candidate"
    """`candidate`: it is exported, gated, and may be served. `baseline`: it is trained for comparison."""
    calibration: Literal["none", "platt", "isotonic"] = "none"
    """Last step of the model, fitted on the validation days, after which scores are label rates. `platt`: a straight
    line in the log-odds; few rows suffice. `isotonic`: any rising curve; needs some thousand rows. The order of rows is
    kept. `none`: no calibration."""
    labels: tuple[str, ...] = ()
    """Further labels of `data.labels` that the model scores too: networks over embedded ids by one head per label over
    shared layers, other kinds by one more model per label."""

    weights: RowWeights | None = None
    """Weights of the training rows by how they were shown; null: all weigh the same. Calibration and the figures of
    test days stay those of the rows as they were shown."""

    distributed: ClassVar[bool] = False
    """Whether several processes can train it together (`runtime.cluster.workers`)."""
    reference_baseline: ClassVar[bool] = False
    """Whether candidates have to beat a baseline of this kind where `gates.baseline` names none."""
    compared_as_baseline: ClassVar[bool] = False
    """Whether a candidate of this kind also serves as a baseline: the comparison of a run's models names those that
    are not above it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Mark `kind` as required: its default is only for sections that are built in code."""
        json_schema = super().__get_pydantic_json_schema__(schema, handler)
        section = handler.resolve_ref_schema(json_schema)
        section["required"] = ["kind", *(name for name in section.get("required", ()) if name != "kind")]
        return json_schema

    @property
    def reads(self) -> tuple[str, ...]:
        """Patterns of the features that it reads."""
        return cast(tuple[str, ...], getattr(self, "features", ()))

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the models that it combines, which are trained first. Empty: it is trained on the table alone."""
        return ()

    @property
    def continuation(self) -> Continuation | None:
        """How a training continues from an earlier model; None: it starts from scratch."""
        return None

    @property
    def id_settings(self) -> frozenset[str]:
        """Learning settings of `hash` features that this model supports."""
        return frozenset()

    @property
    def by_workers(self) -> Self:
        """The section with the defaults for several workers, which may support less than one process."""
        return self

    @property
    def without_refit(self) -> Self:
        """The section for a training on the training days alone, so that the validation days can measure it.

        The key of a final fit on the validation days is called `refit`; calibration is fitted on them too.
        """
        fields = type(self).model_fields
        usual = {name: fields[name].default for name in fields if name.startswith("retrain")}
        refit = {"refit": False, **usual} if "refit" in fields else {}
        return self.model_copy(update={"calibration": "none", **refit})

    def check_features(self, name: str, features: Features, *, distributed: bool) -> None:
        """Check the model against the features.

        Args:
            name: Name of this model.
            features: The spec's section.
            distributed: Whether several processes train it.

        Raises:
            ValueError: It cannot be trained with these features.
        """

    def check_data(self, name: str, data: Data) -> None:
        """Check the model against the log's declaration.

        Args:
            name: Name of this model.
            data: The spec's section.

        Raises:
            ValueError: It cannot be trained on such a log.
        """
        for role in ("propensity", "position"):
            if self.weights is not None and getattr(self.weights, role) and getattr(data, role) is None:
                raise ValueError(
                    f"models.{name}.weights.{role}: the log does not say it; declare data.{role}, or leave this out"
                )
        for number, label in enumerate(self.labels):
            if label not in data.labels:
                raise ValueError(
                    f"models.{name}.labels: '{label}' is not declared in data.labels{did_you_mean(label, data.labels)}"
                )
            if label in self.labels[:number]:
                raise ValueError(f"models.{name}.labels: '{label}' is named twice; name every label once")

    @classmethod
    def added_to(cls, candidates: Sequence[ModelSection]) -> Self | None:
        """Return the baseline that is added to specs without a model of this kind; None: nothing is added.

        Args:
            candidates: The declared candidates, in their order.
        """
        return None


def labels_of_all(sections: Sequence[ModelSection]) -> tuple[str, ...]:
    """Return the further labels of all given models, each once; a baseline to compare them with needs these."""
    return tuple(dict.fromkeys(label for section in sections for label in section.labels))


def model_sections() -> Mapping[str, type[ModelSection]]:
    """Return the sections of all kinds of models, by the kind's name.

    Raises:
        ShortlistError: The project's registry is not on the path, or holds something that is no kind.
    """
    return cast(Mapping[str, type[ModelSection]], resolve_address("model_sections")())


class _AnyModelSchema:
    """Schema of a model: one of the registered sections, looked up when a spec is first validated."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        sections = tuple(model_sections().values())
        return handler.generate_schema(Annotated[_union(sections), Field(discriminator="kind")])


def _union(sections: tuple[type[ModelSection], ...]) -> Any:
    from typing import Union

    return Union[sections]  # noqa: UP007 - made from a tuple


AnyModel = Annotated[ModelSection, _AnyModelSchema]
Models = dict[ModelName, AnyModel]


def with_baselines(declared: Mapping[str, ModelSection]) -> dict[str, ModelSection]:
    """Return all models to train: the declared ones, and the default baselines.

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
    declared_kinds = {model.kind for model in declared.values()}
    models = dict(declared)
    for kind, section in model_sections().items():
        default_baseline = None if kind in declared_kinds else section.added_to(candidates)
        if default_baseline is None:
            continue
        if kind in declared:
            raise ValueError(
                f"'{kind}' is of kind {declared[kind].kind}, and the baseline of kind {kind} that every spec gets has"
                " this name; choose another name, or declare that baseline under a name of its own"
            )
        models[kind] = default_baseline
    return models


def check_members(models: Mapping[str, ModelSection]) -> None:
    """Check that models that combine others name servable candidates that are no combinations themselves.

    Args:
        models: All that are trained, by name.

    Raises:
        ValueError: Names the model and the member.
    """
    for name, section in models.items():
        key_path = f"models.{name}.models"
        for number, member in enumerate(section.members):
            member_section = models.get(member)
            if member == name:
                raise ValueError(f"{key_path}: '{member}' is this model itself; name other models")
            if member_section is None:
                raise ValueError(f"{key_path}: no model is called '{member}'{did_you_mean(member, models)}")
            if member_section.members:
                raise ValueError(f"{key_path}: '{member}' is itself made of other models; name those instead")
            if member_section.role == "baseline":
                raise ValueError(f"{key_path}: '{member}' is a baseline, which cannot be served; name candidates only")
            if member in section.members[:number]:
                raise ValueError(f"{key_path}: '{member}' is named twice; name every member once")


def check_continued(continues: bool, retrain_mode: str, amount: tuple[str, int | None], days: int | None) -> None:
    """Check the keys that belong to `retrain: <how>`.

    Args:
        continues: Whether that is declared.
        retrain_mode: Value of `retrain`.
        amount: Key and value of how much is learnt.
        days: Value of `retrain_days`.

    Raises:
        ValueError: A key is missing, or declared without effect.
    """
    value_by_key = dict((amount, ("retrain_days", days)))
    missing = [key for key, value in value_by_key.items() if value is None]
    if continues and missing:
        raise ValueError(f"retrain: {retrain_mode} also needs {' and '.join(missing)}")
    if not continues and len(missing) < len(value_by_key):
        declared_keys = ", ".join(key for key, value in value_by_key.items() if value is not None)
        raise ValueError(f"{declared_keys}: read with retrain: {retrain_mode} alone; declare that, or leave it out")
