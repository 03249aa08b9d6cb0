"""`shortlist init` on ten logs that nobody has seen, nine with planted signal and one without any.

Two logs of all forms that reach further than the reading of files go through a whole run, and the others through its
steps up to the trained models, at a third of the time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.metrics.measure import scores_file
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.evaluation.metrics.scores import read_scores
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.system.project import PACKAGES
from shortlist.training.train import train

pytestmark = pytest.mark.long

ROOT: Final = Path(__file__).parents[2]
START: Final = datetime(2026, 3, 2, tzinfo=UTC)
DAYS, ROWS, USERS, ITEMS = 14, 12_000, 140, 48
MIN_SHARE: Final = 0.9
"""Least share of the planted lift, the AUC of the planted probabilities above 0.5, that a blessed model has."""


@dataclass(frozen=True)
class World:
    """Rows with planted probabilities, in time order."""

    rows: pl.DataFrame
    """`user`, `item`, `device`, `price`, `label`, `time`, and what else was logged."""
    probability: np.ndarray

    def planted_auc(self, test_days: int) -> float:
        """Return the AUC of the planted probabilities on the newest days."""
        is_test = (self.rows["time"] >= START + timedelta(days=DAYS - test_days)).to_numpy()
        return auc(self.rows["label"].to_numpy()[is_test].astype(float), self.probability[is_test])


def plant(seed: int, signal: float = 1.0) -> World:
    """Return a world in which items, devices, prices and users matter; with signal 0 nothing does."""
    draw = np.random.default_rng(seed)
    seconds = np.sort(draw.integers(0, DAYS * 86_400, ROWS))
    users, items = draw.integers(0, USERS, ROWS), draw.integers(0, ITEMS, ROWS)
    devices, prices = draw.integers(0, 3, ROWS), np.round(np.exp(draw.normal(2.5, 0.7, ROWS)), 2)
    item_effect, user_effect = draw.normal(0, 0.8, ITEMS), draw.normal(0, 0.5, USERS)
    effect = (
        item_effect[items] + user_effect[users] + np.array([-0.9, 0.0, 0.9])[devices] - 0.6 * (np.log(prices) - 2.5)
    )
    probability = 1 / (1 + np.exp(1.1 - signal * effect))
    rows = pl.DataFrame(
        {
            "user": users + 501,
            "item": items + 1,
            "device": np.array(["ios", "android", "web"])[devices],
            "price": prices,
            "category": [f"c{item % 6}" for item in items],
            "label": (draw.random(ROWS) < probability).astype(np.int8),
            "time": [START + timedelta(seconds=int(second)) for second in seconds],
        }
    )
    return World(rows, probability)


def plant_without_signal(seed: int) -> World:
    """Return a world in which nothing matters."""
    return plant(seed, signal=0.0)


def plant_visits(seed: int) -> World:
    """Return a world of visits with five places each, in which an item is liked on one of two devices."""
    visits, places, users, items = DAYS * 300, 5, 200, 60
    draw = np.random.default_rng(seed)
    seconds, visitors = np.sort(draw.integers(0, DAYS * 86_400, visits)), draw.integers(0, users, visits)
    is_ios, place = draw.random(visits) < 0.5, np.arange(1, places + 1)
    shown_items = draw.random((visits, items)).argsort(axis=1)[:, :places]
    item_effect, user_effect = draw.normal(0, 1, items), draw.normal(0, 1, users)
    prices = np.round(np.exp(draw.normal(2.5, 0.7, items)), 2)
    device_effect = np.where(is_ios[:, None] == (shown_items % 2 == 0), 0.8, -0.8)
    log_odds = item_effect[shown_items] + user_effect[visitors][:, None] + device_effect - 0.2 * place - 1
    probability = 1 / (1 + np.exp(-log_odds))
    by_visit = {
        "user": [f"s{visitor:04}" for visitor in visitors],
        "visit": [f"v{visit:06}" for visit in range(visits)],
        "device": np.where(is_ios, "ios", "android"),
        "time": [START + timedelta(seconds=int(second)) for second in seconds],
    }
    by_place = {
        "item": shown_items + 1,
        "place": np.tile(place, (visits, 1)),
        "price": prices[shown_items],
        "label": (draw.random((visits, places)) < probability).astype(np.int8),
    }
    lists = {name: values.tolist() for name, values in by_place.items()}
    return World(pl.DataFrame(by_visit | lists).explode(*by_place), probability.ravel())


def plain_csv(world: World, folder: Path) -> None:
    names = {"user": "user_id", "item": "item_id", "label": "clicked"}
    world.rows.rename(names).write_csv(folder / "log.csv")


def folders_of_parquet_with_hashed_users(world: World, folder: Path) -> None:
    hashes = pl.Series(np.random.default_rng(3).integers(0, 2**64, USERS + 501, dtype=np.uint64))
    log = world.rows.with_columns(hashes.gather(world.rows["user"]).alias("user"))
    log = log.rename({"user": "user_id", "item": "sku", "label": "purchased"})
    for (day,), rows in log.group_by(pl.col("time").dt.date(), maintain_order=True):
        (folder / f"day={day}").mkdir()
        rows.write_parquet(folder / f"day={day}" / "part-0.parquet")


def decimal_comma() -> pl.Expr:
    return pl.col("price").cast(pl.String).str.replace(".", ",", literal=True)


def semicolons_and_decimal_commas(world: World, folder: Path) -> None:
    time = pl.col("time").dt.strftime("%d.%m.%Y %H:%M:%S").alias("time")
    names = {"user": "customer", "item": "product", "label": "bought", "time": "Zeitpunkt"}
    world.rows.with_columns(decimal_comma(), time).rename(names).write_csv(folder / "export.csv", separator=";")


def json_lines_of_text_keys(world: World, folder: Path) -> None:
    log = world.rows.with_columns(
        pl.format("u-{}", "user").alias("user"), pl.format("video-{}", "item").alias("item"),
        pl.col("time").dt.epoch("ms"), pl.col("label").cast(pl.Boolean),
    )  # fmt: skip
    log.rename({"user": "user", "item": "video", "label": "played", "time": "ts"}).write_ndjson(folder / "plays.jsonl")


def visits_with_requests_and_ranks(world: World, folder: Path) -> None:
    order = world.rows.with_columns(hour=pl.col("time").dt.truncate("1h")).with_row_index("row")
    session = pl.format("{}-{}", "user", pl.col("hour").dt.epoch("s"))
    log = order.with_columns(session_id=session, rank=pl.col("row") % 8 + 1)
    names = {"user": "shopper", "item": "product", "label": "clicked"}
    log.drop("hour", "row").rename(names).select(
        "session_id", "shopper", "product", "rank", "device", "price", "category", "clicked", "time"
    ).write_csv(folder / "log.csv")


def ratings_with_tables_of_items_and_users(world: World, folder: Path) -> None:
    draw = np.random.default_rng(8)
    liked = world.rows["label"].to_numpy() == 1
    stars = np.where(liked, draw.integers(3, 6, ROWS), draw.integers(1, 3, ROWS))
    world.rows.select(
        pl.col("user").alias("user_id"), pl.col("item").alias("movie_id"), "device", "price",
        pl.Series("rating", stars), pl.col("time").dt.epoch("s").alias("timestamp"),
    ).write_csv(folder / "ratings.tsv", separator="\t")  # fmt: skip
    write_tables(world, folder, "user_id", "movie_id")


def write_tables(world: World, folder: Path, user: str, item: str) -> None:
    items = world.rows.select(pl.col("item").alias(item), "category").unique().sort(item)
    items.with_columns(title=pl.format("The film number {} of all", item)).write_csv(folder / "movies.csv")
    pl.DataFrame({user: range(501, 501 + USERS), "city": [f"city {n % 7}" for n in range(USERS)]}).write_csv(
        folder / "users.csv"
    )


def days_with_tables_a_crawler_a_late_column_and_a_broken_value(world: World, folder: Path) -> None:
    log = with_crawler(world).rows.drop("category")
    broken = pl.when(pl.int_range(pl.len()) == 7_000).then(pl.lit("-")).otherwise(pl.col("price").cast(pl.String))
    log = log.rename({"user": "visitor_id", "item": "article_id", "label": "click", "time": "shown_at"})
    log = log.with_columns(price=broken, app=pl.lit("new"))
    for number, ((day,), rows) in enumerate(log.group_by(pl.col("shown_at").dt.date(), maintain_order=True)):
        columns = rows if number >= 6 else rows.drop("app")
        columns.write_csv(folder / f"{day}.csv.gz", compression="gzip")
    write_tables(world, folder, "visitor_id", "article_id")


def no_header_and_seconds(world: World, folder: Path) -> None:
    world.rows.select(
        "user", "item", "category", "device", "price", "label", pl.col("time").dt.epoch("s")
    ).write_csv(folder / "clicks.csv", include_header=False)  # fmt: skip


def with_crawler(world: World) -> World:
    """Return a world in which a fifth of the rows are of one user who never clicks."""
    rows = world.rows.with_columns(planted=pl.Series(world.probability))
    crawled = rows.gather_every(4).with_columns(user=pl.lit(9_999, pl.Int64), label=pl.lit(0, pl.Int8), planted=0.0)
    rows = pl.concat([rows, crawled]).sort("time", maintain_order=True)
    return World(rows.drop("planted"), rows["planted"].to_numpy())


def visits_of_items_that_are_liked_on_one_device(world: World, folder: Path) -> None:
    names = {"user": "shopper", "item": "product", "place": "idx", "label": "bought"}
    log = world.rows.with_columns(decimal_comma(), pl.col("time").dt.strftime("%Y-%m-%d %H:%M:%S"))
    log.rename(names).write_csv(folder / "the export.csv", separator=";")


LOGS: Final[dict[str, tuple[Callable[[World, Path], None], Callable[[int], World]]]] = {
    write.__name__: (write, plant)
    for write in (
        plain_csv, folders_of_parquet_with_hashed_users, semicolons_and_decimal_commas, json_lines_of_text_keys,
        visits_with_requests_and_ranks, ratings_with_tables_of_items_and_users, no_header_and_seconds,
        days_with_tables_a_crawler_a_late_column_and_a_broken_value,
    )
} | {
    "no_signal": (plain_csv, plant_without_signal),
    "visits_of_items_that_are_liked_on_one_device": (visits_of_items_that_are_liked_on_one_device, plant_visits),
}  # fmt: skip


TRAINED_ONLY: Final = (
    "plain_csv", "folders_of_parquet_with_hashed_users", "semicolons_and_decimal_commas", "json_lines_of_text_keys",
    "visits_with_requests_and_ranks", "ratings_with_tables_of_items_and_users", "no_header_and_seconds",
)  # fmt: skip


class Paths(NamedTuple):
    """Where a user works, and what the user says."""

    project: Path
    log: Path
    spec: str
    runs: Path

    @classmethod
    def plain(cls, folder: Path) -> Paths:
        """All in one folder."""
        return cls(folder, folder / "in", "first.yaml", folder / "runs")

    def shortlist(self, *arguments: str) -> str:
        """Return what a command printed that succeeded."""
        command = Path(sys.executable).with_name("shortlist")
        environment = {**os.environ, "NO_COLOR": "1"}
        if (self.project / "shortlist").is_dir():  # a checkout of its own
            environment["PYTHONPATH"] = str(self.project)
        ended = subprocess.run(
            [command, *arguments], check=False, cwd=self.project, env=environment, capture_output=True, text=True,
            timeout=900,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-2_000:]
        return ended.stdout

    def init(self, name: str) -> tuple[World, str]:
        """Write a log and its first spec; return the world, and what was printed."""
        write, plant_world = LOGS[name]
        world = plant_world(20 + list(LOGS).index(name))
        self.log.mkdir()
        write(world, self.log)
        return world, self.shortlist("init", str(self.log), "--out", self.spec, "--yes")

    def run(self) -> tuple[dict[str, Any], str]:
        """Run the spec once; return the summary, and what was printed."""
        printed = self.shortlist("run", self.spec, "--data", str(self.log), "--runs", str(self.runs))
        return json.loads((self.runs / "latest" / "summary.json").read_text()), printed

    def parsed_spec(self) -> Spec:
        """Return the first spec."""
        return parse_spec((self.project / self.spec).read_text())


def check_lift(measured_auc: float, world: World, spec: Spec) -> None:
    """Pass when an AUC on the test days has most of the planted lift, and not more than chance adds."""
    planted_lift = world.planted_auc(spec.data.split.test_days) - 0.5
    assert MIN_SHARE * planted_lift <= measured_auc - 0.5 <= planted_lift + 0.03


def check_blessed(summary: dict[str, Any], world: World, spec: Spec) -> None:
    """Pass when a model is blessed that has most of the planted lift."""
    assert summary["blessed"] is not None, [gate["reason"] for gate in summary["gates"] if not gate["passed"]]
    check_lift(summary["models"][summary["blessed"]["model"]]["auc"], world, spec)


@pytest.mark.parametrize("name", TRAINED_ONLY)
def test_the_first_spec_trains_models_that_have_most_of_the_planted_lift(name: str, tmp_path: Path) -> None:
    paths = Paths.plain(tmp_path)
    (world, _), spec = paths.init(name), paths.parsed_spec()
    ingest(spec.data, tmp_path / "in", tmp_path / "raw", spec.runtime)
    moment = START + timedelta(days=DAYS + 1)
    validate(spec.data, tmp_path / "raw", tmp_path / "log", tmp_path / "quarantine", spec.runtime, moment)
    sections = spec.data, spec.features, spec.gates, spec.runtime
    fit(*sections, tmp_path / "log", tmp_path / "fitted")
    build_table(*sections, tmp_path / "log", tmp_path / "fitted", tmp_path / "table")
    table = DayTable.open(tmp_path / "table", Files.TABLE)
    test_auc = {}
    for model in ("trees", "logistic"):
        section = spec.models[model]
        train(section.kind, section, table, spec.runtime, tmp_path / model, tmp_path / f"{model}_scores")
        rows = read_scores(scores_file(tmp_path / f"{model}_scores"), "test")
        test_auc[model] = auc(rows.labels, rows.scores)
    check_lift(max(test_auc.values()), world, spec)


def test_one_try_on_tables_a_crawler_and_a_late_column_ends_with_a_blessed_model_that_has_most_of_the_planted_lift(
    tmp_path: Path,
) -> None:
    paths = Paths.plain(tmp_path)
    world, _ = paths.init("days_with_tables_a_crawler_a_late_column_and_a_broken_value")
    summary, _ = paths.run()
    check_blessed(summary, with_crawler(world), paths.parsed_spec())


def test_one_try_on_visits_under_paths_with_blanks_quotes_and_accents_ends_with_such_a_model(tmp_path: Path) -> None:
    checkout = tmp_path / "my projects" / "d'été"
    for name in ("shortlist", *PACKAGES, "deploy"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    paths = Paths(checkout, tmp_path / 'a "log"', "my spec.yaml", tmp_path / "all $RUNS; here")
    world, printed = paths.init("visits_of_items_that_are_liked_on_one_device")
    assert f"make run SPEC='my spec.yaml' DATA='{paths.log}'" in printed
    summary, printed = paths.run()
    assert f"DATA='{paths.log}'" in printed
    check_blessed(summary, world, paths.parsed_spec())


def test_a_log_without_signal_is_held_for_that_reason(tmp_path: Path) -> None:
    paths = Paths.plain(tmp_path)
    paths.init("no_signal")
    summary, _ = paths.run()
    assert summary["blessed"] is None
    held = [gate for gate in summary["gates"] if not gate["passed"] and gate["name"] == "absolute"]
    assert {gate["model"] for gate in held} == {"trees", "logistic", "both"}
    assert all("AUC, lower bound 0." in gate["reason"] and "(min_auc" in gate["reason"] for gate in held)
