"""The views that are not keyed by the user, in memory; replaced as a whole when newer ones are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from shortlist.contracts import DataError, ShortlistError
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.server.features.feature_requirements import LookupStep
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.serving.server.features.view_table import ViewTable
from shortlist.storage.artefacts import IntegrityError, sha256


@dataclass(frozen=True)
class Snapshot:
    """Look-up tables of an assembler at one point in time."""

    tables: Mapping[str, ViewTable]
    """Table of each look-up step except the user's, by step name."""
    views: Mapping[str, ViewTable] = field(default_factory=dict)
    """Table of each view that was read, by view name."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Why a view could not be read, by view; its table is the previous one, or empty."""
    empty_views: frozenset[str] = frozenset()
    """Views whose tables are empty."""


def load_snapshot(
    assembler: TensorAssembler, index: ViewIndex, moment: datetime, previous: Snapshot | None = None,
    digests: Mapping[str, str] | None = None,
) -> Snapshot:  # fmt: skip
    """Return the values at a point in time of every view that is not keyed by the user.

    Args:
        assembler: Contains the model's requirements.
        index: The views.
        moment: The point in time.
        previous: Its tables are kept for views that cannot be read now.
        digests: SHA-256 of the published view files, by name; a file with another digest is not read.
    """
    requirements = assembler.requirements
    steps = [step for step in requirements.steps if step not in requirements.user_steps]
    views, broken = _load_views(assembler, index, moment, steps, previous, digests or {})
    previous_views = previous.views.keys() - previous.empty_views if previous is not None else set()
    tables = {step.name: views[step.name] for step in requirements.other_steps}
    if assembler.item is not None:
        tables[assembler.item.name] = assembler.join_views(requirements.item_steps, assembler.item, views)
    return Snapshot(tables, views, broken, frozenset(broken.keys() - previous_views))


def load_with_users(assembler: TensorAssembler, index: ViewIndex, moment: datetime) -> Snapshot:
    """Return the values at a point in time of every view, including those keyed by the user.

    Raises:
        ShortlistError: A view cannot be read.
    """
    requirements = assembler.requirements
    snapshot = load_snapshot(assembler, index, moment)
    user_views, broken = _load_views(assembler, index, moment, requirements.user_steps, None, {})
    for name, reason in {**snapshot.broken, **broken}.items():
        raise ShortlistError(f"{index.folder}: view '{name}' cannot be read: {reason}")
    tables = dict(snapshot.tables)
    if assembler.user is not None:
        tables[assembler.user.name] = assembler.join_views(requirements.user_steps, assembler.user, user_views)
    return Snapshot(tables, {**snapshot.views, **user_views})


def _load_views(
    assembler: TensorAssembler, index: ViewIndex, moment: datetime, steps: Sequence[LookupStep],
    previous: Snapshot | None, digests: Mapping[str, str],
) -> tuple[dict[str, ViewTable], dict[str, str]]:  # fmt: skip
    views: dict[str, ViewTable] = {}
    broken: dict[str, str] = {}
    for step in steps:
        try:
            views[step.name] = ViewTable.from_frame(_frame(index, step, moment, digests), step, assembler.widths)
        # Polars raises its own errors for files that are missing, truncated or of another schema.
        except (ShortlistError, OSError, pl.exceptions.PolarsError) as error:
            broken[step.name] = str(error)
            previous_view = previous.views.get(step.name) if previous is not None else None
            views[step.name] = previous_view or ViewTable.empty(step, assembler.widths)
    return views, broken


def _frame(index: ViewIndex, step: LookupStep, moment: datetime, digests: Mapping[str, str]) -> pl.DataFrame:
    view = index.view(step.name)
    missing_features = {feature.partition(":")[2] for feature in step.places} - set(view.feature_names)
    if missing_features:
        raise DataError(
            f"view '{step.name}' has no '{min(missing_features)}'; the features were fitted for another declaration"
        )
    if view.path in digests and sha256(index.path(view)) != digests[view.path]:
        raise IntegrityError(f"{index.path(view)}: is not the file that was published; publish the features again")
    return index.snapshot(step.name, moment)
