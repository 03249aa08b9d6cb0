"""The part of a fit's views that a model needs to score the days from one day on, in a folder of its own."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns
from shortlist.features.view_index import INDEX, View, ViewIndex
from shortlist.storage.artefacts import atomic_folder, write_json, write_manifest


def write_views_from(views: ViewIndex, first: date, out: Path) -> None:
    """Write what views say from the start of a day on: each key's newest values until then, and every later change.

    The folder has the form of the views of a fit, so that `ViewIndex.read` opens it, and a manifest. Its `first_day`
    is `first`: of earlier days it knows too little.

    Args:
        views: The views of a fit.
        first: The first day whose rows can be scored.
        out: Folder to write; appears whole or not at all.
    """
    with atomic_folder(out) as staging:
        kept = [_write(views, view, first, staging) for view in views.views]
        index = views.model_copy(update={"views": tuple(kept), "first_day": first})
        write_json(staging / INDEX, index.model_dump(mode="json"))
        write_manifest(staging)


def _write(views: ViewIndex, view: View, first: date, out: Path) -> View:
    at = views.start_of(first)
    rows = pl.scan_parquet(views.path(view))
    before, moment = rows.filter(pl.col(Columns.VALID_FROM) <= at), pl.col(Columns.VALID_FROM)
    newest = before.group_by(view.key_names).agg(moment.max())
    known = before.join(newest, on=[*view.key_names, Columns.VALID_FROM], how="semi")
    kept = pl.concat([known, rows.filter(moment > at)]).sort(moment, maintain_order=True).collect(engine="streaming")
    kept.write_parquet(out / view.path, compression="zstd")
    return view.model_copy(update={"rows": kept.height})
