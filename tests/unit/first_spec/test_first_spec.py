"""`shortlist init` writes a first spec that is valid for an unknown log without editing."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import exp
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from shortlist.cli import main
from shortlist.contracts import Columns, DataError, Files
from shortlist.data.ingest import ingest
from shortlist.data.sample_check import check_sample
from shortlist.data.validate import validate
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.first_spec.columns import profile_column
from shortlist.first_spec.draft import SpecDraft
from shortlist.first_spec.roles import find_outcomes
from shortlist.first_spec.write import choose_likeliest, draft_spec, write_spec
from shortlist.spec.data import EventClock
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.load import load_spec, parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.training.train import train

GENRES = ["Action", "Comedy", "Drama", "War"]


def write_film_ratings(folder: Path, rows: int = 3_000, days: int = 24) -> Path:
    """Write ratings in RecBole's format: typed headers, sessions in bursts, not in time order, and both side tables."""
    draw = random.Random(1)
    genres = {film: draw.sample(GENRES, draw.randint(1, 3)) for film in range(1, 121)}
    quality = {film: draw.gauss(0, 0.6) for film in genres}
    lines: list[str] = []
    while len(lines) < rows:
        user, start = draw.randint(1, 150), 873_000_000 + draw.random() * days * 86_400
        for place, film in enumerate(draw.sample(sorted(genres), draw.randint(2, 12))):
            stars = min(5, max(1, round(3.4 + quality[film] + (user % 3 - 1) * 0.5 + draw.gauss(0, 0.7))))
            lines.append(f"{user}\t{film}\t{stars}\t{int(start) + 40 * place}\n")
    draw.shuffle(lines)
    (folder / "films.inter").write_text(
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "".join(lines)
    )
    items = "".join(
        f"{film}\tFilm {film}\t{1950 + film % 40}\t{' '.join(film_genres)}\n" for film, film_genres in genres.items()
    )
    header = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    (folder / "films.item").write_text(header + items)
    users = "".join(f"{user}\t{18 + user % 50}\t{'MF'[user % 2]}\t0{1000 + user}\n" for user in range(1, 151))
    (folder / "films.user").write_text("user_id:token\tage:token\tgender:token\tzip_code:token\n" + users)
    return folder


def write_sparse_clicks(folder: Path, requests: int = 900, days: int = 30) -> Path:
    """Write a sparse log of clicks: four rows of a request share its id, 5 % clicks, dates that are not ISO."""
    draw = random.Random(2)
    lines = []
    for number, day in enumerate(sorted(draw.random() * days for _ in range(requests))):
        user, time = draw.randrange(200), datetime(2024, 3, 1, tzinfo=UTC) + timedelta(days=day)
        for slot, product in enumerate(draw.sample(range(150), 4), 1):
            clicked = int(draw.random() < 1 / (1 + exp(3.4 - 1.5 * (user % 10 == product % 10) + 0.2 * slot)))
            columns = f"p{product},c{product % 10},{slot},{product % 40}.99"
            lines.append(f"r{number},{time:%d/%m/%Y %H:%M},v{user},{columns},{clicked}\n")
    (folder / "log.csv").write_text("request_id,when,visitor,product,category,slot,price,clicked\n" + "".join(lines))
    return folder


def write_checked_spec(location: Path) -> tuple[SpecDraft, Spec]:
    draft = draft_spec(location, choose_likeliest)
    written = write_spec(draft, "mine")
    assert written.problems == ()
    spec = parse_spec(written.text)
    assert check_sample(spec.data, location).problems == ()
    return draft, spec


def test_a_spec_is_written_for_ratings_with_typed_headers(tmp_path: Path) -> None:
    _, spec = write_checked_spec(write_film_ratings(tmp_path))
    data = spec.data
    assert (data.label, data.user, data.item) == ("rating", "user_id", "item_id")
    assert data.positive is not None and data.positive.at_least == 4
    assert isinstance(data.clock, EventClock)
    assert (data.clock.column, data.clock.unit, data.clock.earliest.year) == ("timestamp:float", "s", 1997)
    assert {table.name: table.key for table in data.side_tables} == {"users": "user_id", "items": "item_id"}
    assert data.by_name["class"].type == "tags" and data.by_name["zip_code"].type == "string"  # a leading zero is kept
    assert {"user_id_rate", "item_id_seen", "user_id_class_rate", "release_year_log"} <= set(spec.features.names)
    assert "user_id_gender_rate" not in spec.features.names  # tells no two films of a user apart
    assert spec.gates.min_test_rows < 600


def test_a_spec_is_written_for_a_sparse_log_of_clicks(tmp_path: Path) -> None:
    draft, spec = write_checked_spec(write_sparse_clicks(tmp_path))
    data = spec.data
    assert (data.label, data.user, data.item, data.request) == ("clicked", "visitor", "product", "request_id")
    assert isinstance(data.clock, EventClock) and data.clock.format == "%d/%m/%Y %H:%M"
    assert data.positive is None and data.impression is None and draft.outcomes == {}
    assert {"product_rate", "visitor_category_rate", "price_number"} <= set(spec.features.names)
    assert data.position == "slot" and not any("slot" in name for name in spec.features.names)
    assert not any("request" in name for name in spec.features.names)
    assert spec.gates.max_rate_error > 0.1  # few clicks: chance alone moves the rate


@pytest.mark.parametrize("answers", [("no", "yes"), ("FALSE", "TRUE")])
def test_a_label_of_two_answers_is_read(tmp_path: Path, answers: tuple[str, str]) -> None:
    log = write_sparse_clicks(tmp_path) / "log.csv"
    frame = pl.read_csv(log, infer_schema=False)
    answer = pl.col("clicked").replace({"0": answers[0], "1": answers[1]}).alias("saved")
    frame.with_columns(answer).drop("clicked").write_csv(log)
    draft, spec = write_checked_spec(tmp_path)
    if draft.positive is not None:
        assert spec.data.positive is not None and spec.data.positive.any_of == (answers[1],)
        assert spec.data.by_name["saved"].allowed == answers  # so that events may say no, and nothing else
    assert (spec.data.label, draft.positive is None) == ("saved", answers[0] == "FALSE")


def test_a_log_without_a_header_and_label_is_refused(tmp_path: Path) -> None:
    draw = random.Random(3)
    rows = [
        (draw.randint(1, 90), draw.randint(1, 60), draw.randint(1, 5), 880_000_000 + n * 700 % 1_700_000)
        for n in range(2_500)
    ]
    (tmp_path / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    with pytest.raises(
        DataError, match="no column holds 0 and 1, yes and no, ratings, or names of events; a log needs"
    ):
        draft_spec(tmp_path / "u.data", choose_likeliest)


def test_a_spec_is_written_for_pairs_of_items_and_clicks(tmp_path: Path) -> None:
    draw = random.Random(4)
    start = datetime(2019, 11, 9, tzinfo=UTC)
    rows = [
        {
            "user": f"U{draw.randrange(80)}",
            "time": f"{start + timedelta(hours=n // 3):%m/%d/%Y %I:%M:%S %p}",
            "impressions": " ".join(f"N{news}-{int(draw.random() < 0.2)}" for news in draw.sample(range(50), 5)),
        }
        for n in range(900)
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "behaviors.tsv", separator="\t")
    _, spec = write_checked_spec(tmp_path)
    assert spec.data.explode is not None and spec.data.explode.columns == ("shown_item", "is_click")
    assert (spec.data.item, spec.data.user) == ("shown_item", "user_value")  # `user` is Shortlist's own name
    assert isinstance(spec.data.clock, EventClock) and spec.data.clock.format == "%m/%d/%Y %I:%M:%S %p"


def test_outcomes_are_found_by_name_and_by_auc(tmp_path: Path) -> None:
    draw = random.Random(5)
    rows = 3_000
    label = [int(draw.random() < 0.3) for _ in range(rows)]
    pl.DataFrame({
        "user_id": [draw.randrange(99) for _ in range(rows)], "item_id": [draw.randrange(60) for _ in range(rows)],
        "ts": [1_700_000_000 + n * 300 for n in range(rows)], "is_like": [draw.randrange(2) for _ in range(rows)],
        "seconds": [click * 20 + draw.random() for click in label], "price": [draw.random() for _ in range(rows)],
        "replied": ["yes" if click and draw.random() < 0.2 else "no" for click in label],
        "premium": ["yes" if draw.random() < 0.2 else "no" for _ in range(rows)], "is_click": label,
    }).write_parquet(tmp_path / "log.parquet")  # fmt: skip
    draft, spec = write_checked_spec(tmp_path / "log.parquet")
    assert draft.outcomes["replied"] == "all of its rows with 'yes' have is_click 1, as only outcomes do"
    assert "its name is that of an outcome" in draft.outcomes["is_like"]
    assert "orders the labels with an AUC of 1.00" in draft.outcomes["seconds"]
    assert {name for name, column in spec.data.by_name.items() if column.known == "after"} == {
        "is_like", "replied", "seconds",
    }  # fmt: skip


def test_values_of_rows_without_a_label_say_nothing_of_outcomes() -> None:
    columns = (profile_column("note", pl.Series([None] * 40 + ["kept"] * 5 + ["left"] * 5), typed=True),)
    labels = pl.Series([0, 1] * 20 + [None] * 10)
    assert find_outcomes(SimpleNamespace(columns=columns), "label", labels, [], None) == {}  # type: ignore[arg-type]


def test_days_of_logs_in_several_files_become_one_log(tmp_path: Path) -> None:
    lines = (write_sparse_clicks(tmp_path) / "log.csv").read_text().splitlines(keepends=True)
    (tmp_path / "log.csv").unlink()
    for part, first in enumerate(range(1, len(lines), 1_000)):
        (tmp_path / f"day_{part}.csv").write_text("".join([lines[0], *lines[first : first + 1_000]]))
    draft, spec = write_checked_spec(tmp_path)
    assert spec.data.source.model_dump()["path"] == "" and len(draft.log.files) == 4


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line; return its exit code, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["shortlist", *arguments])
        with pytest.raises(SystemExit) as exit_error:
            main()
        return int(exit_error.value.code or 0), *capsys.readouterr()

    return run


def test_the_command_explains_its_choices_and_never_replaces_a_file(tmp_path: Path, command: Command) -> None:
    folder, out = write_sparse_clicks(tmp_path), tmp_path / "mine.yaml"
    code, output, _ = command("init", str(folder), "--out", str(out), "--yes")
    assert code == 0 and "item       product: named as items are; 150 of them" in output
    assert load_spec(out).name == "mine"
    code, _, error = command("init", str(folder), "--out", str(out), "--yes")
    assert code == 2 and "exists already. .venv/bin/shortlist init" in error


def test_without_a_terminal_nothing_is_written_and_the_option_is_named(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, error = command("init", str(write_sparse_clicks(tmp_path)), "--out", str(tmp_path / "mine.yaml"))
    assert code == 2 and "no terminal to answer on, so nothing is written; --yes (make init ... YES=1)" in error
    assert not (tmp_path / "mine.yaml").exists()


def test_a_model_of_the_written_spec_beats_popularity(tmp_path: Path, command: Command) -> None:
    log, out = tmp_path / "films", tmp_path / "mine.yaml"
    log.mkdir()
    assert command("init", str(write_film_ratings(log, rows=6_000)), "--out", str(out), "--yes")[0] == 0
    spec = load_spec(out)
    raw, valid, fitted, table = (tmp_path / name for name in ("raw", "valid", "fitted", "table"))
    ingest(spec.data, log, raw, spec.runtime)
    validate(spec.data, raw, valid, tmp_path / "quarantine", spec.runtime, datetime.now(UTC))
    declared = DeclaredSections(spec.data, spec.features, spec.gates)
    fit(*declared, spec.runtime, valid, fitted)
    build_table(*declared, spec.runtime, valid, fitted, table)
    test_scores = {}
    for kind in ("xgboost", "popularity"):
        section = next((model for model in spec.models.values() if model.kind == kind), None)
        scores = tmp_path / f"{kind}-scores"
        train(kind, section, DayTable.open(table, Files.TABLE), spec.runtime, tmp_path / kind, scores)
        test_scores[kind] = pl.read_parquet(scores / Files.SCORES).filter(split="test").sort(Columns.IMPRESSION)
    assert test_scores["xgboost"].height > 500
    assert test_scores["xgboost"]["label"].equals(test_scores["popularity"]["label"])
    trees_auc, popularity_auc = (
        roc_auc_score(model_scores["label"], model_scores["score"]) for model_scores in test_scores.values()
    )
    assert trees_auc > popularity_auc + 0.02 and trees_auc > 0.7, (trees_auc, popularity_auc)


def test_a_folder_without_a_log_is_refused(tmp_path: Path, command: Command) -> None:
    code, _, error = command("init", str(tmp_path), "--yes", "--out", str(tmp_path / "mine.yaml"))
    assert code == 2 and "no file that can be a log; wanted CSV, TSV, JSON lines or Parquet" in error
    assert not (tmp_path / "mine.yaml").exists()
