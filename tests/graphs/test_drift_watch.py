"""The compiled watching pipeline, run for real: logs that servers might have left lead to a page, or to a training."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from monitoring.monitoring_store import open_monitoring_store
from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.features.feast_store_location import SERVING
from shortlist.runs.monitoring_runs import due, run_monitoring_locally
from shortlist.serving.log.logs import PART, item_type, logged_inputs, logged_name, outcome_schema, prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_uri

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
    def book(self) -> Any:
        return open_monitoring_store(str(self.stores), self.spec.name)

    def users(self, day: date, label: pl.Expr, **changes: pl.Expr) -> None:
        """Write what servers and users would have left on a day: the log's newest day again, with other outcomes."""
        log = DayTable.open(Path(json.loads((self.stores / "feast/demo" / SERVING).read_text())["log"]), Files.LOG)
        newest = log.scan({log.days[-1].day}).collect()
        shift = day - log.days[-1].day
        rows = newest.with_columns(pl.col(Columns.TIME) + shift, label=label, **changes)
        requests = [part for (_,), part in rows.group_by("user_id", maintain_order=True)]
        cut = [part[at : at + LIST] for part in requests for at in range(0, part.height, LIST)]
        places = ServingPaths.of(self.runs, self.spec.name)
        self._write(
            places.predictions / f"{day}", prediction_schema(self.spec.data), [self._answer(one) for one in cut]
        )
        outcomes = [outcome for one in cut for outcome in self._outcomes(one)]
        self._write(places.outcomes / f"{day}", outcome_schema(item_type(self.spec.data)), outcomes)

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

    def _write(self, folder: Path, schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> None:
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), folder / PART.format(number=0))


def _name(rows: pl.DataFrame) -> str:
    return f"{rows[Columns.TIME].dt.date()[0]}-{rows[Columns.IMPRESSION][0]}"


@pytest.fixture(scope="module")
def served(finished: Any) -> Served:
    """A champion, and two days on which users did what they always do."""
    assert finished.code == 0
    one = Served(parse_spec(yaml.safe_dump(finished.spec)), finished.runs)
    for number in (14, 15):
        one.users(date(2026, 1, number), pl.col("label"))
    return one


def test_days_like_those_before_lead_to_nothing(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    runs = set(served.runs.iterdir())
    assert run_monitoring_locally(served.spec, None, served.runs) == 0
    said = capfd.readouterr().out
    assert "2026-01-14 00:00 healthy" in said and "2026-01-15 00:00 healthy" in said
    assert "hold: 0 of 2 windows are bad" in said
    assert set(served.runs.iterdir()) - runs == {served.runs / "monitoring"}  # a look alone leaves no run behind
    page = (served.book.folder / "status.html").read_text()
    assert "Healthy" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert not list(served.book.folder.glob("windows/*/drift.html"))  # pages are for bad windows


def test_a_column_that_vanishes_pages_and_trains_nothing(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    served.users(date(2026, 1, 16), pl.col("label"), surface=pl.lit(None, pl.String))
    assert run_monitoring_locally(served.spec, None, served.runs) == 1
    assert "page: " in capfd.readouterr().out
    newest = served.book.reports()[-1]
    assert (newest.verdict, newest.columns) == ("broken", ("surface",))
    assert served.book.retrainings() == ()
    assert (served.book.folder / "windows/20260116T000000Z/drift.html").is_file()


def test_users_who_changed_lead_to_one_training_that_knows_why(served: Served) -> None:
    for number in (17, 18):
        served.users(date(2026, 1, number), (pl.col(Columns.IMPRESSION).hash(seed=number) % 10 < 3).cast(pl.Int8))
    run_monitoring_locally(served.spec, None, served.runs)
    (retraining,) = served.book.retrainings()
    assert retraining.state in {"not_promoted", "held"}  # there is no stack to roll it out on
    decision = next(one for one in served.book.decisions() if one.key == retraining.key)
    assert (decision.action, decision.until) == ("retrain", datetime(2026, 1, 19, tzinfo=UTC))
    assert {"auc", "hit_rate"} <= set(decision.columns)
    assert "auc of version 1" in " ".join(decision.reasons)
    tracker = Tracker(tracking_uri(served.stores), "demo")
    new, *_ = tracker._client.search_runs([tracker._experiment], "tags.kind = 'xgboost'")
    assert (new.data.tags["trigger"], new.data.tags["decision"]) == ("drift", decision.key)
    assert (served.runs / "latest/report.html").is_file()
    # Whoever looks again finds it done.
    run_monitoring_locally(served.spec, None, served.runs)
    assert len(served.book.retrainings()) == 1


def test_a_locked_store_is_a_clear_word_and_loses_nothing(served: Served) -> None:
    served.users(date(2026, 1, 19), pl.col("label"))
    before = served.book.reports()
    with closing(sqlite3.connect(served.stores / "mlflow.db", isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ShortlistError, match="database is locked"):
            run_monitoring_locally(served.spec, None, served.runs)
    assert served.book.reports() == before
    run_monitoring_locally(served.spec, None, served.runs)
    assert served.book.reports()[-1].start == datetime(2026, 1, 19, tzinfo=UTC)


def test_the_schedule_starts_each_of_its_moments_once(served: Served) -> None:
    from monitoring.monitoring_job import MonitoringJob

    watch = MonitoringJob("demo", str(served.stores), served.spec.monitoring, ())
    four = datetime(2026, 3, 1, 4, tzinfo=UTC)
    begun, now = four - timedelta(hours=1), four + timedelta(minutes=5)
    assert due(served.spec, watch, since=four + timedelta(minutes=1), now=now) is None  # the watching began after it
    decision = due(served.spec, watch, begun, now)
    assert decision is not None and (decision.trigger, decision.until) == ("schedule", four)
    assert due(served.spec, watch, begun, now) is None  # somebody runs it already
    watch.book.finish(decision.key, "failed", reason="a test")
    assert due(served.spec, watch, begun, now) is None  # and it is not run again


def test_looking_before_anybody_asked_says_what_is_missing(small_spec: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match="no runs yet"):
        run_monitoring_locally(parse_spec(yaml.safe_dump(small_spec)), None, tmp_path / "runs")
