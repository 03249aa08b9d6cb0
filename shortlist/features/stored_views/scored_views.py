"""The part of a fit's views that a model needs to score days from a given day on, in a folder of its own."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns
from shortlist.features.stored_views.view_index import INDEX, StoredView, ViewIndex
from shortlist.storage.artefacts import atomic_folder, write_json, write_manifest


def write_views_from(views: ViewIndex, first: date, out: Path) -> None:
    """Write the values of views from the start of a day on: each key's newest values until then, and later changes.

    The folder has the layout of the views of a fit, so that `ViewIndex.read` opens it, and a manifest. Its `first_day`
    is `first`: it lacks values of earlier days.

    Args:
        views: The views of a fit.
        first: The first day whose rows can be scored.
        out: Folder to write; appears whole or not at all.
    """
    with atomic_folder(out) as staging:
        written_views = [_write(views, view, first, staging) for view in views.views]
        index = views.model_copy(update={"views": tuple(written_views), "first_day": first})
        write_json(staging / INDEX, index.model_dump(mode="json"))
        write_manifest(staging)


def _write(views: ViewIndex, view: StoredView, first: date, out: Path) -> StoredView:
    start = views.start_of(first)
    rows = pl.scan_parquet(views.path(view))
    rows_before, valid_from = rows.filter(pl.col(Columns.VALID_FROM) <= start), pl.col(Columns.VALID_FROM)
    newest = rows_before.group_by(view.key_names).agg(valid_from.max())
    known_rows = rows_before.join(newest, on=[*view.key_names, Columns.VALID_FROM], how="semi")
    rows_to_write = (
        pl.concat([known_rows, rows.filter(valid_from > start)])
        .sort(valid_from, maintain_order=True)
        .collect(engine="streaming")
    )
    rows_to_write.write_parquet(out / view.path, compression="zstd")
    return view.model_copy(update={"rows": rows_to_write.height})
