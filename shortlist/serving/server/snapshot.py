"""The views that are not the user's own, held in memory and replaced whole when newer ones are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from shortlist.contracts import DataError, ShortlistError
from shortlist.features.view_index import ViewIndex
from shortlist.serving.server.feature_requirements import Step
from shortlist.serving.server.tensor_assembler import TensorAssembler
from shortlist.serving.server.view_table import ViewTable
from shortlist.storage.artefacts import IntegrityError, sha256


@dataclass(frozen=True)
class Snapshot:
    """The tables of an assembler, as of one moment."""

    tables: Mapping[str, ViewTable]
    """One for every step, the user's left out; by name of the step."""
    views: Mapping[str, ViewTable] = field(default_factory=dict)
    """One for every view that was read."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Why a view could not be read; its table is the one before, or knows nothing."""
    unknown: frozenset[str] = frozenset()
    """The views whose tables know nothing."""


def load(
    assembler: TensorAssembler, index: ViewIndex, at: datetime, before: Snapshot | None = None,
    digests: Mapping[str, str] | None = None,
) -> Snapshot:  # fmt: skip
    """Return what holds at a moment of every view that is not the user's own.

    Args:
        assembler: Knows what the model needs.
        index: The views.
        at: The moment.
        before: Keeps the views that cannot be read now.
        digests: SHA-256 of the views' files as they were published, by name; a file that is another is not read.
    """
    needs = assembler.needs
    steps = [step for step in needs.steps if step not in needs.of_user]
    views, broken = _views(assembler, index, at, steps, before, digests or {})
    kept = before.views.keys() - before.unknown if before is not None else set()
    tables = {step.name: views[step.name] for step in needs.others}
    if assembler.item is not None:
        tables[assembler.item.name] = assembler.joined(needs.of_item, assembler.item, views)
    return Snapshot(tables, views, broken, frozenset(broken.keys() - kept))


def load_with_users(assembler: TensorAssembler, index: ViewIndex, at: datetime) -> Snapshot:
    """Return what holds at a moment of every view, those of the users among them.

    Raises:
        ShortlistError: A view cannot be read.
    """
    needs = assembler.needs
    snapshot = load(assembler, index, at)
    own, broken = _views(assembler, index, at, needs.of_user, None, {})
    for name, reason in {**snapshot.broken, **broken}.items():
        raise ShortlistError(f"{index.folder}: view '{name}' cannot be read: {reason}")
    tables = dict(snapshot.tables)
    if assembler.user is not None:
        tables[assembler.user.name] = assembler.joined(needs.of_user, assembler.user, own)
    return Snapshot(tables, {**snapshot.views, **own})


def _views(
    assembler: TensorAssembler, index: ViewIndex, at: datetime, steps: Sequence[Step], before: Snapshot | None,
    digests: Mapping[str, str],
) -> tuple[dict[str, ViewTable], dict[str, str]]:  # fmt: skip
    views: dict[str, ViewTable] = {}
    broken: dict[str, str] = {}
    for step in steps:
        try:
            views[step.name] = ViewTable.of(_frame(index, step, at, digests), step, assembler.widths)
        # Polars has errors of its own for files that are missing, torn or of another schema.
        except (ShortlistError, OSError, pl.exceptions.PolarsError) as error:
            broken[step.name] = str(error)
            known = before.views.get(step.name) if before is not None else None
            views[step.name] = known or ViewTable.unknown(step, assembler.widths)
    return views, broken


def _frame(index: ViewIndex, step: Step, at: datetime, digests: Mapping[str, str]) -> pl.DataFrame:
    view = index.view(step.name)
    lacking = {place.partition(":")[2] for place in step.places} - set(view.feature_names)
    if lacking:
        raise DataError(f"view '{step.name}' has no '{min(lacking)}'; the features were fitted for another declaration")
    if view.path in digests and sha256(index.path(view)) != digests[view.path]:
        raise IntegrityError(f"{index.path(view)}: is not the file that was published; publish the features again")
    return index.snapshot(step.name, at)
