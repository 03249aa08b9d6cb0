"""What the online store holds of every view: until when, from which past, for which keys."""

from __future__ import annotations

import io
import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

from shortlist.contracts import Columns, ShortlistError
from shortlist.features.feast_store_location import FeastStoreLocation
from shortlist.features.view_index import View, ViewIndex

_EXACT: Final = 2**53  # the largest integer up to which a float holds every one


class Materialised:
    """A record beside the store, `materialised.json`, and one file of keys per view, `keys/<view>.parquet`.

    The store's second slot has its own: `materialised-second.json`, `keys-second/<view>.parquet`.

    Feast remembers only up to when it materialised. That is not enough to write what is new alone: when the rows of
    the past change (another log, another spec), what is online must be written again, and keys that are gone taken out.
    A view that is being written has no record, so a killed run makes the next one write it whole.
    """

    def __init__(self, place: FeastStoreLocation, views: ViewIndex) -> None:
        self._place = place
        self._views = views
        self._of_slot = f"-{place.slot}" if place.slot else ""

    def until(self, name: str) -> datetime | None:
        """Return the moment up to which a view is online, if it is known."""
        known = self._read().get(name)
        return None if known is None else datetime.fromisoformat(known["until"])

    def past_is_unchanged(self, view: View) -> bool:
        """Whether the view's rows up to that moment are the ones that were written."""
        known = self._read().get(view.name)
        if known is None:
            return False
        return bool(known["digest"] == self._digest(view, datetime.fromisoformat(known["until"])))

    def keys_vanished(self, view: View, until: datetime) -> bool:
        """Whether keys are online that the view does not have by a moment."""
        online = self._written_keys(view)
        if online is None:
            return False
        keys = self._keys(view, until)
        return online.schema != keys.schema or online.join(keys, on=view.key_names, how="anti").height > 0

    def changed_keys(self, view: View, start: datetime, until: datetime) -> int:
        """Return how many keys have rows from one moment to another, both included."""
        changed = self._rows(view, until).filter(pl.col(Columns.VALID_FROM) >= start)
        return int(changed.select(pl.struct(view.key_names).n_unique()).collect(engine="streaming").item())

    def begin(self, view: View, until: datetime) -> None:
        """Note that the view is about to be written up to a moment."""
        record = self._read()
        record.pop(view.name, None)
        self._write(record)
        keys, before = self._keys(view, until), self._written_keys(view)
        if before is not None and before.schema == keys.schema:
            keys = pl.concat([before, keys]).unique()
        self._write_keys(view, keys)

    def finish(self, view: View, until: datetime) -> None:
        """Note that the view is written up to a moment."""
        self._write_keys(view, self._keys(view, until))
        record = self._read()
        record[view.name] = {"until": until.isoformat(), "digest": self._digest(view, until)}
        self._write(record)

    @property
    def _record(self) -> str:
        return f"materialised{self._of_slot}.json"

    def _keys_file(self, view: View) -> str:
        return f"keys{self._of_slot}/{view.name}.parquet"

    def _read(self) -> dict[str, Any]:
        known = json.loads(self._place.state.read(self._record) or "{}")
        assert isinstance(known, dict)
        return known

    def _write(self, record: dict[str, Any]) -> None:
        self._place.state.replace(self._record, json.dumps(record, indent=2) + "\n")

    def _written_keys(self, view: View) -> pl.DataFrame | None:
        content = self._place.objects.read(self._keys_file(view))
        return None if content is None else pl.read_parquet(io.BytesIO(content))

    def _write_keys(self, view: View, keys: pl.DataFrame) -> None:
        content = io.BytesIO()
        keys.write_parquet(content)
        self._place.objects.write(self._keys_file(view), content.getvalue())

    def _rows(self, view: View, until: datetime) -> pl.LazyFrame:
        return pl.scan_parquet(self._views.path(view)).filter(pl.col(Columns.VALID_FROM) <= until)

    def _keys(self, view: View, until: datetime) -> pl.DataFrame:
        return self._rows(view, until).select(view.key_names).unique().collect(engine="streaming")

    def _digest(self, view: View, until: datetime) -> str:
        rows = self._rows(view, until).select(*view.key_names, Columns.VALID_FROM, *view.feature_names)
        schema = [column.model_dump() for column in (*view.keys, *view.features)]
        # A sum of row hashes does not depend on the order of the rows, and needs no memory.
        sums = rows.select(pl.struct(pl.all()).hash(1, 2, 3, 4).sum(), pl.len().alias("rows")).collect(
            engine="streaming"
        )
        return f"{sums.row(0)} {schema}"


def check_exact_integers(view: View, path: Path) -> None:
    """Refuse integers that would change on their way online: Feast turns a column with nulls into floats.

    Raises:
        ShortlistError: A feature holds nulls, and integers that a float cannot hold.
    """
    integers = [feature.name for feature in view.features if feature.dtype == "Int64"]
    rounded = [pl.col(name).has_nulls() & (pl.col(name).abs().max() > _EXACT) for name in integers]
    for name, bad in pl.scan_parquet(path).select(rounded).collect(engine="streaming").to_dict(as_series=False).items():
        if bad == [True]:
            raise ShortlistError(
                f"view '{view.name}': '{name}' holds nulls and integers beyond 2**53, which Feast would round;"
                " declare the column with `type: string`"
            )
