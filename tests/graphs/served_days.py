"""Writes logs of servers and users of a champion for a day."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from monitoring.store.monitoring_store import open_monitoring_store
from shortlist.contracts import Columns, Files
from shortlist.features.feast.feast_store_location import SERVING
from shortlist.serving.log.logs import item_type, logged_inputs, logged_name, outcome_schema, prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable
from tests.served_log import write_rows

LIST = 10
"""Rows of a request."""


class Served(NamedTuple):
    """A spec with a champion, and logs that its users left."""

    spec: Spec
    runs: Path

    @property
    def stores(self) -> Path:
        return self.runs / "stores"

    @property
    def monitoring_store(self) -> Any:
        return open_monitoring_store(str(self.stores), self.spec.name)

    def users(self, day: date, label: pl.Expr, **changes: pl.Expr) -> pl.DataFrame:
        """Write what servers and users would have left on a day: the log's newest day again, with other outcomes.

        Returns:
            The rows.
        """
        log = DayTable.open(Path(json.loads((self.stores / "feast/demo" / SERVING).read_text())["log"]), Files.LOG)
        newest = log.scan({log.days[-1].day}).collect()
        shift = day - log.days[-1].day
        rows = newest.with_columns(pl.col(Columns.TIME) + shift, label=label, **changes)
        requests = [part for (_,), part in rows.group_by("user_id", maintain_order=True)]
        cut = [part[at : at + LIST] for part in requests for at in range(0, part.height, LIST)]
        paths = ServingPaths.for_spec(self.runs, self.spec.name)
        answers = [self._answer(request) for request in cut]
        write_rows(paths.predictions, prediction_schema(self.spec.data), answers)
        outcomes = [outcome for request in cut for outcome in self._outcomes(request)]
        write_rows(paths.outcomes, outcome_schema(item_type(self.spec.data)), outcomes)
        return rows

    def published_an_hour_ago(self) -> tuple[Path, str]:
        """Pretend that the statistics were published an hour ago, so that a moment of any schedule has passed since.

        Returns:
            The file that says so, and the moment.
        """
        pointer, moment = self.stores / "feast/demo" / SERVING, (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        write_json(pointer, {**read_json(pointer), "published": moment})
        return pointer, moment

    def _answer(self, rows: pl.DataFrame) -> dict[str, Any]:
        sent = {logged_name(name): rows[name].to_list() for name in logged_inputs(self.spec.data)}
        # Scores as good as can be: what changes is what users do.
        return {
            "time": rows[Columns.TIME].max(), "request_id": _name(rows), "user": str(rows["user_id"][0]), "version": 1,
            "track": "stable", "status": 200, "items": rows["item_id"].to_list(), "digest": "0" * 16,
            "scores": rows[Columns.BEST].to_list(), Columns.TIME: rows[Columns.TIME].to_list(), **sent,
        }  # fmt: skip

    def _outcomes(self, rows: pl.DataFrame) -> list[dict[str, Any]]:
        moment = rows[Columns.TIME].max()
        return [
            {"time": moment, "request_id": _name(rows), "row": row, "label": label}
            for row, label in enumerate(rows["label"].to_list())
        ]


def _name(rows: pl.DataFrame) -> str:
    return f"{rows[Columns.TIME].dt.date()[0]}-{rows[Columns.IMPRESSION][0]}"
