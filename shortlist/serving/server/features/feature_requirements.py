"""Requirements of a signature: which views are looked up by which keys, and which columns a client may send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import LAST_TIME, KeyedView
from shortlist.features.declared.joined_lists import JoinedList
from shortlist.features.declared.plan import Plan, PlannedView
from shortlist.features.live.open_counts import open_count_columns
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.derived_columns import DerivedColumn, log_derived_columns
from shortlist.serving.export.signature import SECOND_OF_DAY, WEEKDAY, Signature

Role = Literal["number", "code", "list", "tags", "vector"]
"""How a column is read; `tags` are the distinct values of a row, used as keys."""

_CLOCK = frozenset((Columns.TIME, Columns.DAY, SECOND_OF_DAY, WEEKDAY))
RolesByPlace = Mapping[str, frozenset[Role]]
"""Roles of each column."""


@dataclass(frozen=True)
class LookupStep:
    """One look-up: its key columns and the features to return."""

    name: str
    """Name of the view; of the key column where several views are joined."""
    keys: tuple[str, ...]
    """Key columns."""
    tags: tuple[bool, ...] = ()
    """Whether each key holds several values per row."""
    numbers: tuple[str, ...] = ()
    """Columns of numbers to return; likewise for the next four."""
    codes: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    tag_lists: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    lasts: int = 0
    """Number of trailing `numbers` that are the newest tag's values (its time first) instead of sums."""

    @property
    def pools(self) -> bool:
        """Whether a row may look up several keys, whose values are pooled."""
        return any(self.tags)

    @property
    def places(self) -> frozenset[str]:
        """All columns that the step returns."""
        return frozenset((*self.numbers, *self.codes, *self.lists, *self.tag_lists, *self.vectors))


@dataclass(frozen=True)
class FeatureRequirements:
    """The look-ups of a model, ordered so that every key is available when it is needed."""

    declared: DeclaredColumns
    signature: Signature
    steps: tuple[LookupStep, ...]
    """One step per view."""
    columns: Mapping[str, frozenset[Role]]
    """Columns of the log that the model needs."""
    counted_places: tuple[str, ...] = ()
    """Columns of the live counts."""
    joined_lists: tuple[JoinedList, ...] = ()
    """Lists that are joined from stored events, events of open tiles, and sent events."""
    derived_columns: tuple[DerivedColumn, ...] = ()
    """Columns that are derived from columns of the log, such as texts of the request."""

    @classmethod
    def from_plan(cls, plan: Plan, signature: Signature) -> Self:
        """Return the requirements of a signature's model.

        The signature names joined lists by `JoinedList.row_column`; the requirements are their parts.
        """
        joined_lists = tuple(joined_list for joined_list in plan.joined_lists if _is_read(joined_list, signature))
        roles_by_place = {
            place: set(roles) for place, roles in _part_roles(signature, plan.joined_lists, plan.declared).items()
        }
        steps = []
        counted_places = tuple(place for place in open_count_columns(plan.streaming) if place in roles_by_place)
        for key in plan.streaming.keys if plan.streaming is not None and counted_places else ():
            for name in key:
                roles_by_place.setdefault(name, set()).add("code")
        for view in reversed(plan.views):
            place_by_feature = {name: f"{view.name}:{name}" for name in view.features}
            if roles_by_place.keys() & set(place_by_feature.values()):
                step = _step(view, place_by_feature, plan.declared, roles_by_place)
                steps.append(step)
                for place, role in _key_roles(step):
                    roles_by_place.setdefault(place, set()).add(role)
        derived_columns = tuple(
            column
            for column in log_derived_columns(plan.derived_columns, plan.declared)
            if column.row_column(plan.declared) in roles_by_place
        )
        looked_up = {place for step in steps for place in step.places} | _CLOCK | {*counted_places}
        looked_up |= {column.row_column(plan.declared) for column in derived_columns}
        log_columns = {place: frozenset(roles) for place, roles in roles_by_place.items() if place not in looked_up}
        return cls(
            plan.declared, signature, tuple(reversed(steps)), log_columns, counted_places, joined_lists, derived_columns
        )

    @property
    def user_steps(self) -> tuple[LookupStep, ...]:
        """Steps of views keyed by the user alone; their rows are read from the online store."""
        return tuple(step for step in self.steps if step.keys == (self.declared.data.user,))

    @property
    def item_steps(self) -> tuple[LookupStep, ...]:
        """Steps of views keyed by the item, or by columns of its side table."""
        item = self.declared.data.item
        known_places = {item} if item is not None else set()
        steps = []
        for step in self.steps:
            if step.keys and set(step.keys) <= known_places:
                known_places |= step.places
                steps.append(step)
        return tuple(steps)

    @property
    def other_steps(self) -> tuple[LookupStep, ...]:
        """All other steps."""
        return tuple(step for step in self.steps if step not in self.user_steps and step not in self.item_steps)

    def merge_steps(self, steps: tuple[LookupStep, ...], key: str) -> LookupStep:
        """Return some steps as one, which returns only the columns that are read outside of them."""
        outside_roles = {
            place: set(roles) for place, roles in _part_roles(self.signature, self.joined_lists, self.declared).items()
        }
        for step in self.steps:
            if step not in steps:
                for place, role in _key_roles(step):
                    outside_roles.setdefault(place, set()).add(role)
        step_places = [place for step in steps for place in sorted(step.places)]
        return _with_roles(LookupStep(key, (key,), (False,)), step_places, outside_roles)


def _is_read(joined_list: JoinedList, signature: Signature) -> bool:
    read_places = {
        *(tensor_input.place for tensor_input in signature.lists),
        *(tensor_input.place for tensor_input in signature.vectors),
    }
    return any(joined_list.row_column(feature) in read_places for feature in (*joined_list.lists, *joined_list.vectors))


def _part_roles(signature: Signature, joined_lists: Iterable[JoinedList], declared: DeclaredColumns) -> RolesByPlace:
    """Return the roles of a signature's columns, with joined lists replaced by their parts."""
    roles_by_place = {place: set(roles) for place, roles in _signature_roles(signature).items()}

    def add_role(place: str, role: Role) -> None:
        roles_by_place.setdefault(place, set()).add(role)

    for joined_list in joined_lists:
        if not _is_read(joined_list, signature):
            continue
        for feature in (*joined_list.lists, *joined_list.vectors):
            roles_by_place.pop(joined_list.row_column(feature), None)
        for feature in joined_list.lists[:2]:
            add_role(joined_list.stored_column(feature), "list")
        for name in joined_list.numbers:
            add_role(joined_list.stored_column(f"newest_{name}"), "vector")
        for name in joined_list.sent_columns:
            add_role(name, "list")
        if joined_list.open_list is not None:
            add_role(joined_list.open_list.key, "code")
        for item in joined_list.items:
            kind = declared.column(item.name).type
            add_role(item.place, "list" if kind == "tags" else "number" if item.is_number else "code")
    return {place: frozenset(roles) for place, roles in roles_by_place.items()}


def _signature_roles(signature: Signature) -> RolesByPlace:
    roles: dict[str, frozenset[Role]] = {}
    places: tuple[tuple[Role, Iterable[str]], ...] = (
        ("number", signature.numbers),
        ("code", signature.codes),
        ("list", (list_input.place for list_input in signature.lists)),
        ("vector", (vector.place for vector in signature.vectors)),
    )
    for role, role_places in places:
        for place in role_places:
            roles[place] = roles.get(place, frozenset()) | {role}
    return roles


def _step(
    view: PlannedView,
    place_by_feature: Mapping[str, str],
    declared: DeclaredColumns,
    roles_by_place: Mapping[str, set[Role]],
) -> LookupStep:
    keys = tuple(name for name in view.keys if name != Columns.GLOBAL_KEY)
    places = tuple(declared.row_column(name) for name in keys)
    tags = view.tags if isinstance(view, KeyedView) else ()
    step = _with_roles(
        LookupStep(view.name, places, tuple(name in tags for name in keys)), place_by_feature.values(), roles_by_place
    )
    if not tags or not isinstance(view, KeyedView) or not view.timed:
        return step
    # The newest tag of a row is found by its time, then by its values: all of them are needed.
    newest_places = [
        place_by_feature[name] for name in (LAST_TIME, *(f"last_{name}" for name in view.last_value_columns))
    ]
    sum_places = tuple(place for place in step.numbers if place not in newest_places)
    if len(sum_places) == len(step.numbers):
        return step
    return replace(step, numbers=(*sum_places, *newest_places), lasts=len(newest_places))


def _with_roles(step: LookupStep, places: Iterable[str], roles_by_place: Mapping[str, set[Role]]) -> LookupStep:
    def places_with(role: Role) -> tuple[str, ...]:
        return tuple(place for place in places if role in roles_by_place.get(place, ()))

    places = tuple(dict.fromkeys(places))
    return replace(
        step,
        numbers=places_with("number"),
        codes=places_with("code"),
        lists=places_with("list"),
        tag_lists=places_with("tags"),
        vectors=places_with("vector"),
    )


def _key_roles(step: LookupStep) -> Iterable[tuple[str, Role]]:
    return ((place, "tags" if tags else "code") for place, tags in zip(step.keys, step.tags, strict=True))
