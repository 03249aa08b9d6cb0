"""Record of what the online store holds of every view: up to which moment, from which rows, for which keys."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

from shortlist.contracts import Columns, ShortlistError
from shortlist.features.feast.feast_store_location import FeastStoreLocation
from shortlist.features.stored_views.view_index import StoredView, ViewIndex

_EXACT: Final = 2**53  # the largest integer up to which a float holds every one


class MaterialisationRecord:
    """A record beside the store, `materialised.json`, and one file of keys per view, `keys/<view>.parquet`.

    The store's second slot has its own: `materialised-second.json`, `keys-second/<view>.parquet`.

    Feast records only the moment up to which it materialised. That is not enough to write only new rows: when past rows
    change (another log, another spec), the online rows must be written again, and removed keys deleted.
    A view that is being written has no record, so a killed run makes the next one write it whole.
    """

    def __init__(self, location: FeastStoreLocation, views: ViewIndex) -> None:
        self._location = location
        self._views = views
        self._slot_suffix = f"-{location.slot}" if location.slot else ""

    def until(self, name: str) -> datetime | None:
        """Return the moment up to which a view is online, if it is known."""
        record = self._read_records().get(name)
        return None if record is None else datetime.fromisoformat(record["until"])

    def past_is_unchanged(self, view: StoredView) -> bool:
        """Return whether the view's rows up to that moment are the ones that were written."""
        record = self._read_records().get(view.name)
        if record is None:
            return False
        return bool(record["digest"] == self._digest(view, datetime.fromisoformat(record["until"])))

    def keys_vanished(self, view: StoredView, until: datetime) -> bool:
        """Return whether keys are online that the view does not have at a moment."""
        online = self._written_keys(view)
        if online is None:
            return False
        keys = self._keys(view, until)
        return online.schema != keys.schema or online.join(keys, on=view.key_names, how="anti").height > 0

    def changed_keys(self, view: StoredView, start: datetime, until: datetime) -> int:
        """Return how many keys have rows from one moment to another, both included."""
        changed = self._rows(view, until).filter(pl.col(Columns.VALID_FROM) >= start)
        return int(changed.select(pl.struct(view.key_names).n_unique()).collect(engine="streaming").item())

    def begin(self, view: StoredView, until: datetime) -> None:
        """Record that the view is about to be written up to a moment."""
        records = self._read_records()
        records.pop(view.name, None)
        self._write_records(records)
        keys, previous_keys = self._keys(view, until), self._written_keys(view)
        if previous_keys is not None and previous_keys.schema == keys.schema:
            keys = pl.concat([previous_keys, keys]).unique()
        self._write_keys(view, keys)

    def finish(self, view: StoredView, until: datetime) -> None:
        """Record that the view is written up to a moment."""
        self._write_keys(view, self._keys(view, until))
        records = self._read_records()
        records[view.name] = {
            "until": until.isoformat(),
            "digest": self._digest(view, until),
            "views": str(self._views.folder),
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._write_records(records)

    def by_view(self) -> dict[str, Any]:
        """Return the record of every view that is online: until when, from which folder, and when it was written.

        A view that is being written has none.
        """
        return self._read_records()

    @property
    def _record_file(self) -> str:
        return f"materialised{self._slot_suffix}.json"

    def _keys_file(self, view: StoredView) -> str:
        return f"keys{self._slot_suffix}/{view.name}.parquet"

    def _read_records(self) -> dict[str, Any]:
        records = json.loads(self._location.state.read(self._record_file) or "{}")
        assert isinstance(records, dict)
        return records

    def _write_records(self, records: dict[str, Any]) -> None:
        self._location.state.replace(self._record_file, json.dumps(records, indent=2) + "\n")

    def _written_keys(self, view: StoredView) -> pl.DataFrame | None:
        content = self._location.objects.read(self._keys_file(view))
        return None if content is None else pl.read_parquet(io.BytesIO(content))

    def _write_keys(self, view: StoredView, keys: pl.DataFrame) -> None:
        content = io.BytesIO()
        keys.write_parquet(content)
        self._location.objects.write(self._keys_file(view), content.getvalue())

    def _rows(self, view: StoredView, until: datetime) -> pl.LazyFrame:
        return pl.scan_parquet(self._views.path(view)).filter(pl.col(Columns.VALID_FROM) <= until)

    def _keys(self, view: StoredView, until: datetime) -> pl.DataFrame:
        return self._rows(view, until).select(view.key_names).unique().collect(engine="streaming")

    def _digest(self, view: StoredView, until: datetime) -> str:
        rows = self._rows(view, until).select(*view.key_names, Columns.VALID_FROM, *view.feature_names)
        schema = [column.model_dump() for column in (*view.keys, *view.features)]
        # A sum of row hashes does not depend on the order of the rows, and needs no memory.
        sums = rows.select(pl.struct(pl.all()).hash(1, 2, 3, 4).sum(), pl.len().alias("rows")).collect(
            engine="streaming"
        )
        return f"{sums.row(0)} {schema}"


def check_exact_integers(view: StoredView, path: Path) -> None:
    """Check that no integer would be rounded in the online store: Feast turns a column with nulls into floats.

    Raises:
        ShortlistError: A feature holds nulls, and integers that a float cannot hold.
    """
    integers = [feature.name for feature in view.features if feature.dtype == "Int64"]
    is_lossy = [pl.col(name).has_nulls() & (pl.col(name).abs().max() > _EXACT) for name in integers]
    for name, lossy in (
        pl.scan_parquet(path).select(is_lossy).collect(engine="streaming").to_dict(as_series=False).items()
    ):
        if lossy == [True]:
            raise ShortlistError(
                f"view '{view.name}': '{name}' holds nulls and integers beyond 2**53, which Feast would round;"
                " declare the column with `type: string`"
            )
