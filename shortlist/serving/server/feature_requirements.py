"""What a signature needs: which views are looked up by which keys, and which columns a client may send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from shortlist.contracts import Columns
from shortlist.features.columns import DeclaredColumns
from shortlist.features.joined_lists import JoinedList
from shortlist.features.keyed import LAST_TIME, KeyedView
from shortlist.features.open_counts import open_places
from shortlist.features.plan import Plan, View
from shortlist.serving.export.signature import SECOND_OF_DAY, WEEKDAY, Signature

Role = Literal["number", "code", "list", "tags", "vector"]
"""How a column is read: `tags` are a row's distinct values, as keys."""

_CLOCK = frozenset((Columns.TIME, Columns.DAY, SECOND_OF_DAY, WEEKDAY))
Wanted = Mapping[str, frozenset[Role]]
"""By place."""


@dataclass(frozen=True)
class Step:
    """One look-up: the columns that make its key, and what it is to give."""

    name: str
    """Of the view; of the key column where several views are one."""
    keys: tuple[str, ...]
    """Places."""
    tags: tuple[bool, ...] = ()
    """Which of the keys hold several values per row."""
    numbers: tuple[str, ...] = ()
    """Places; the same for the others."""
    codes: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    tag_lists: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    lasts: int = 0
    """How many of the numbers, at their end, are not sums: those of the newest tag, its time first."""

    @property
    def pools(self) -> bool:
        """Whether a row may ask several keys, whose answers become one."""
        return any(self.tags)

    @property
    def places(self) -> frozenset[str]:
        """Everything it gives."""
        return frozenset((*self.numbers, *self.codes, *self.lists, *self.tag_lists, *self.vectors))


@dataclass(frozen=True)
class FeatureRequirements:
    """What must be looked up, in an order in which every key is there when it is needed."""

    declared: DeclaredColumns
    signature: Signature
    steps: tuple[Step, ...]
    """One per view."""
    columns: Mapping[str, frozenset[Role]]
    """Columns of the log."""
    counted: tuple[str, ...] = ()
    """Places of what is counted as it arrives."""
    joined: tuple[JoinedList, ...] = ()
    """Lists that are put together of what is looked up, of what is listed as it arrives, and of what is sent."""

    @classmethod
    def of(cls, plan: Plan, signature: Signature) -> Self:
        """Return what the model of a signature needs of the views in a plan.

        Lists that are put together are named `JoinedList.place` in it: what is read are their parts.
        """
        joined = tuple(one for one in plan.joined if _is_read(one, signature))
        wanted = {place: set(roles) for place, roles in _wanted(signature, plan.joined, plan.declared).items()}
        steps = []
        counted = tuple(place for place in open_places(plan.streaming) if place in wanted)
        for key in plan.streaming.keys if plan.streaming is not None and counted else ():
            wanted.setdefault(key, set()).add("code")
        for view in reversed(plan.views):
            given = {name: f"{view.name}:{name}" for name in view.features}
            if wanted.keys() & set(given.values()):
                step = _step(view, given, plan.declared, wanted)
                steps.append(step)
                for place, role in _keys(step):
                    wanted.setdefault(place, set()).add(role)
        looked_up = {place for step in steps for place in step.places} | _CLOCK | {*counted}
        own = {place: frozenset(roles) for place, roles in wanted.items() if place not in looked_up}
        return cls(plan.declared, signature, tuple(reversed(steps)), own, counted, joined)

    @property
    def of_user(self) -> tuple[Step, ...]:
        """The views keyed by the user alone: their rows come fresh from the online store."""
        return tuple(step for step in self.steps if step.keys == (self.declared.data.user,))

    @property
    def of_item(self) -> tuple[Step, ...]:
        """The views that are known once the item is: by its key, or by what its side table says."""
        item = self.declared.data.item
        known = {item} if item is not None else set()
        steps = []
        for step in self.steps:
            if step.keys and set(step.keys) <= known:
                known |= step.places
                steps.append(step)
        return tuple(steps)

    @property
    def others(self) -> tuple[Step, ...]:
        """The rest."""
        return tuple(step for step in self.steps if step not in self.of_user and step not in self.of_item)

    def merged(self, steps: tuple[Step, ...], key: str) -> Step:
        """Return some steps as one, which gives only what is read outside of them."""
        outside = {place: set(roles) for place, roles in _wanted(self.signature, self.joined, self.declared).items()}
        for step in self.steps:
            if step not in steps:
                for place, role in _keys(step):
                    outside.setdefault(place, set()).add(role)
        given = [place for step in steps for place in sorted(step.places)]
        return _with_roles(Step(key, (key,), (False,)), given, outside)


def _is_read(joined: JoinedList, signature: Signature) -> bool:
    read = {*(each.place for each in signature.lists), *(each.place for each in signature.vectors)}
    return any(joined.place(feature) in read for feature in (*joined.lists, *joined.vectors))


def _wanted(signature: Signature, joined: Iterable[JoinedList], declared: DeclaredColumns) -> Wanted:
    """Return what a signature reads, with the parts of lists that are put together in their place."""
    wanted = {place: set(roles) for place, roles in _of_signature(signature).items()}

    def want(place: str, role: Role) -> None:
        wanted.setdefault(place, set()).add(role)

    for one in joined:
        if not _is_read(one, signature):
            continue
        for feature in (*one.lists, *one.vectors):
            wanted.pop(one.place(feature), None)
        for feature in one.lists[:2]:
            want(one.stored(feature), "list")
        for name in one.numbers:
            want(one.stored(f"newest_{name}"), "vector")
        for name in one.sent_columns:
            want(name, "list")
        if one.opened is not None:
            want(one.opened.key, "code")
        for item in one.items:
            kind = declared.column(item.name).type
            want(item.place, "list" if kind == "tags" else "number" if item.is_number else "code")
    return {place: frozenset(roles) for place, roles in wanted.items()}


def _of_signature(signature: Signature) -> Wanted:
    roles: dict[str, frozenset[Role]] = {}
    places: tuple[tuple[Role, Iterable[str]], ...] = (
        ("number", signature.numbers),
        ("code", signature.codes),
        ("list", (each.place for each in signature.lists)),
        ("vector", (each.place for each in signature.vectors)),
    )
    for role, named in places:
        for place in named:
            roles[place] = roles.get(place, frozenset()) | {role}
    return roles


def _step(view: View, given: Mapping[str, str], declared: DeclaredColumns, wanted: Mapping[str, set[Role]]) -> Step:
    keys = tuple(name for name in view.keys if name != Columns.EVERYTHING)
    places = tuple(declared.place(name) for name in keys)
    tags = view.tags if isinstance(view, KeyedView) else ()
    step = _with_roles(Step(view.name, places, tuple(name in tags for name in keys)), given.values(), wanted)
    if not tags or not isinstance(view, KeyedView) or not view.timed:
        return step
    # The newest of a row's tags is told by its time, then by its values: all of them are needed.
    newest = [given[name] for name in (LAST_TIME, *(f"last_{name}" for name in view.lasts))]
    sums = tuple(place for place in step.numbers if place not in newest)
    if len(sums) == len(step.numbers):
        return step
    return replace(step, numbers=(*sums, *newest), lasts=len(newest))


def _with_roles(step: Step, given: Iterable[str], wanted: Mapping[str, set[Role]]) -> Step:
    def having(role: Role) -> tuple[str, ...]:
        return tuple(place for place in given if role in wanted.get(place, ()))

    given = tuple(dict.fromkeys(given))
    return replace(
        step,
        numbers=having("number"),
        codes=having("code"),
        lists=having("list"),
        tag_lists=having("tags"),
        vectors=having("vector"),
    )


def _keys(step: Step) -> Iterable[tuple[str, Role]]:
    return ((place, "tags" if tags else "code") for place, tags in zip(step.keys, step.tags, strict=True))
