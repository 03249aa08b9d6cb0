"""The page of a run: complete, safe, and explicit about missing parts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from shortlist.contracts import Files
from shortlist.evaluation.evaluate_gates import Candidate, evaluate_gates
from shortlist.evaluation.metrics.records import Measures, Scores, TrainingOnlyEffect
from shortlist.evaluation.verdict import GateVerdict
from shortlist.report.page import PageStep, RunPage
from shortlist.report.report import render, write_report
from shortlist.report.summary import EngineNumbers, RunFailure
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import IntegrityError, read_json, write_json, write_manifest
from shortlist.storage.tables import DayTableWriter
from tests.page_rules import HOSTILE, injected, planted, problems_of

Frame = Callable[..., pl.DataFrame]
SKEW = {"rows_checked": 500, "historical_mismatches": 0, "online_mismatches": 0, "row_count_ok": True, "columns": {}}
_VOID = {"meta", "link", "br", "hr", "img", "input"}


class Outline(HTMLParser):
    """Checks that tags nest, and collects ids, tags and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids.update(value for name, value in attrs if name == "id" and value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.texts))


@pytest.fixture
def page(tmp_path: Path, frame: Frame, limits: Gates, validate_export: Callable[..., None]) -> RunPage:
    """A finished run with one candidate."""
    rows = pl.DataFrame({"label": [0, 1, 0], "day": [date(2026, 1, 5), date(2026, 1, 6), date(2026, 1, 7)]})
    folders = {name: tmp_path / name for name in ("log", "table", "quarantine", "skew", "champion", "model")}
    for folder in folders.values():
        folder.mkdir()
    writer = DayTableWriter(folders["log"], Files.LOG, chunk_rows=1_000)
    writer.append(rows)
    writer.close({"raw_rows": 1_000, "valid_rows": 990, "quarantined_rows": 10})
    features = DayTableWriter(folders["table"], Files.TABLE, chunk_rows=1_000)
    features.append(rows.with_columns(rate=pl.lit(0.5, pl.Float32), impression_id=pl.int_range(3)))
    columns = [{"name": "rate", "kind": "dense", "size": None, "width": None}]
    split = {"warmup": [], "train": ["2026-01-05"], "validation": ["2026-01-06"], "test": ["2026-01-07"]}
    features.close({"columns": columns, "split": split})
    quarantine = {
        "source_file": ["log.csv"],
        "source_line": [7],
        "rule": ["label_is_0_or_1"],
        "detail": ["label = <b>"],
    }
    pl.DataFrame(quarantine).write_parquet(folders["quarantine"] / Files.QUARANTINE)
    write_json(folders["skew"] / "skew.json", SKEW)
    write_json(folders["champion"] / "champion.json", {"version": ""})
    history = [{"epoch": 1, "train_log_loss": 0.6, "validation_log_loss": 0.55}]
    record = {"kind": "xgboost", "history": history, "importance": {"rate": 1.0}, "train_rows": 700}
    write_json(folders["model"] / Files.MODEL, {**record, "train_seconds": 1.5, "train_rows_per_s": 466.7})
    write_manifest(folders["model"])
    validate_export(folders["model"], tmp_path / "proof", limits)
    for name, scores in (("xgboost", frame()), ("popularity", frame().with_columns(score=pl.lit(0.25)))):
        (tmp_path / name).mkdir()
        scores.write_parquet(tmp_path / name / Files.SCORES)
    candidates = {"xgboost": Candidate(folders["model"], tmp_path / "xgboost", tmp_path / "proof")}
    evidence = folders["log"], folders["skew"], folders["champion"], tmp_path / "popularity"
    evaluate_gates(limits.model_copy(update={"min_slice_rows": 700}), 1, candidates, *evidence, tmp_path / "verdict")
    return RunPage(
        spec="demo",
        started="2026-11-21T09:14:00+00:00",
        seconds=92.0,
        steps=(
            PageStep(name="ingest", title="Read the log", seconds=4.25, peak_mib=310, rows=1_000, rows_per_s=235),
            PageStep(name="validate", cached=True),
        ),
        valid_log=folders["log"],
        quarantine=folders["quarantine"],
        table=folders["table"],
        verdict=tmp_path / "verdict",
        measures=(Measures(model="logistic", role="baseline", problem="logistic has no scores"),),
        models={"xgboost": folders["model"]},
        version="3",
        mlflow_runs={"xgboost": "8c1f7a0d"},
        lineage={"code version": "9be1c7d2"},
    )


def test_page_names_the_engine_and_its_operations_on_the_cpu() -> None:
    engine = EngineNumbers(
        name="gpu", device="NVIDIA H200", driver="580.65.06", device_mib=143_771, queries=1_200,
        on_cpu={"ids of texts (<numpy>)": 48},
    )  # fmt: skip
    text = Outline(render(RunPage(spec="demo", steps=(PageStep(name="build_table", engine=engine),)))).text
    assert "Engine: gpu (NVIDIA H200, 143 771 MiB, driver 580.65.06). 1 200 queries on the GPU;" in text
    assert "on the CPU: ids of texts (<numpy>) (48 times)" in text
    cpu = EngineNumbers(name="cpu", reason="the package cudf-polars is not installed")
    text = Outline(render(RunPage(spec="demo", steps=(PageStep(name="build_table", engine=cpu),)))).text
    assert "Engine: cpu (the package cudf-polars is not installed)." in text


STOPPED = RunPage(
    spec="demo",
    steps=(PageStep(name="ingest", cached=True),),
    failure=RunFailure(step="validate", message="3 of 10 <i>"),
)


def test_page_of_a_finished_run_has_all_sections(page: RunPage, tmp_path: Path) -> None:
    write_report(page, tmp_path / "report.html")
    text = Outline((tmp_path / "report.html").read_text()).text
    for text_part in (
        "demo", "21 November 2026, 09:14 UTC", "Blessed", "xgboost, version 3, may be deployed", "possible",  # headline
        "popularity", "not measured: logistic has no scores",  # models
        "✓ pass", "first model: there is no champion yet",  # gates
        "tab = 2", "not judged: fewer than 700 rows: cold user = yes (600 rows)",  # slices
        "label_is_0_or_1", "log.csv, line 7",  # quarantine
        "rate", "dense",  # features
        "Learning: xgboost", "What xgboost looks at",  # learning
        "Read the log", "4.2 s", "reused",  # steps
        "make ui", "8c1f7a0d", "code version", "9be1c7d2", "test days",  # lineage
    ):  # fmt: skip
        assert text_part in text, text_part


@pytest.mark.parametrize("stopped", [False, True])
def test_page_is_complete_and_without_scripts(page: RunPage, stopped: bool) -> None:
    html = render(STOPPED if stopped else page)
    outline = Outline(html)
    assert {name for name, count in outline.ids.items() if count > 1} == set()
    assert outline.tags.keys() & {"script", "link", "img", "iframe", "object"} == set()
    loaded = re.findall(r"""(?:src|href)=["']([^#"'][^"']*)|@import|url\((?!#)([^)]*)""", html)
    assert loaded == []
    assert len(html) < 3_000_000
    assert problems_of(html) == []


def test_the_models_table_and_the_slices_have_the_metrics_of_ranking(page: RunPage) -> None:
    (xgboost_measures,) = (
        model_measures
        for model_measures in GateVerdict.read(page.verdict or Path()).models
        if model_measures.model == "xgboost"
    )
    assert xgboost_measures.gauc and xgboost_measures.ndcg_at_10
    text = Outline(render(page)).text
    for interval in (xgboost_measures.gauc, xgboost_measures.ndcg_at_10):
        assert f"{interval.value:.4f}{interval.low:.3f} \N{EN DASH} {interval.high:.3f}" in text
    assert "log lossGAUCnDCG@10" in text and "GAUC differencenDCG@10 difference" in text


def test_a_feature_that_alone_is_near_the_model_is_marked(page: RunPage, tmp_path: Path) -> None:
    label = pl.Series([0, 1] * 40)
    days = [date(2026, 1, 6)] * 40 + [date(2026, 1, 7)] * 40
    writer = DayTableWriter(tmp_path, Files.TABLE, chunk_rows=1_000)
    rows = {"label": label, "day": days, "impression_id": range(80), "leak": -label, "constant": [1.0] * 80}
    writer.append(pl.DataFrame(rows))
    columns = [{"name": name, "kind": "dense", "size": None, "width": None} for name in ("constant", "leak")]
    split = {"train": [], "validation": ["2026-01-06"], "test": ["2026-01-07"]}
    writer.close({"columns": columns, "split": split})
    text = Outline(render(page.model_copy(update={"table": tmp_path}))).text
    assert "AUC alone is that of one feature by itself, in its better direction, on 40 test rows" in text
    assert re.search(r"leak near the model ?dense ?1\.0000.*constant ?dense ?0\.5000", text)
    assert text.count("near the model") == 1
    assert "AUC alone is" not in Outline(render(page)).text  # three rows rank nothing


def test_every_link_leads_somewhere(page: RunPage) -> None:
    for run_page in (page, STOPPED):
        html = render(run_page)
        assert set(re.findall(r'<a href="#([\w-]+)"', html)) <= set(Outline(html).ids)


def test_untrusted_text_is_escaped(page: RunPage) -> None:
    assert "label = &lt;b&gt;" in render(page)
    assert "3 of 10 &lt;i&gt;" in render(STOPPED)


def test_texts_of_a_run_are_not_executed_on_its_page(
    page: RunPage, tmp_path: Path, frame: Frame, limits: Gates, validate_export: Callable[..., None]
) -> None:
    tabs = pl.concat_str(pl.lit(HOSTILE), pl.col("slice_tab").cast(pl.String))
    for name, scores in (("xgboost", frame()), ("popularity", frame().with_columns(score=pl.lit(0.25)))):
        scores.with_columns(slice_tab=tabs).write_parquet(tmp_path / name / Files.SCORES)
    wrong = {"source_file": [f"{HOSTILE}.csv"], "source_line": [7], "rule": [HOSTILE], "detail": [HOSTILE]}
    pl.DataFrame(wrong).write_parquet(tmp_path / "quarantine" / Files.QUARANTINE)
    record = read_json(tmp_path / "model" / Files.MODEL) | {"importance": {HOSTILE: 1.0}}
    write_json(tmp_path / "model" / Files.MODEL, record)
    write_manifest(tmp_path / "model")
    validate_export(tmp_path / "model", tmp_path / "proof", limits)
    candidates = {"xgboost": Candidate(tmp_path / "model", tmp_path / "xgboost", tmp_path / "proof")}
    evidence = (tmp_path / name for name in ("log", "skew", "champion", "popularity"))
    evaluate_gates(limits, 1, candidates, *evidence, tmp_path / "verdict")
    folders = {"models": page.models, "mlflow_runs": {"xgboost": HOSTILE}}
    failed = page.model_copy(update={"failure": RunFailure(step="validate", message="no"), "notice": "no better"})
    for run_page in (page, failed):
        html = render(planted(run_page, kept={"started", "role"}).model_copy(update=folders))
        assert injected(html, least=12) == []
        assert problems_of(html) == []


def test_page_of_a_stopped_run_names_step_reason_and_missing_parts() -> None:
    text = Outline(render(STOPPED)).text
    assert "✕ Stopped at validate" in text
    assert "3 of 10 <i>" in text
    assert "The run did not reach: models, gates, slices, log, features, learning." in text


def test_a_stopped_run_shows_its_quarantine(page: RunPage) -> None:
    text = Outline(render(STOPPED.model_copy(update={"quarantine": page.quarantine}))).text
    assert "label_is_0_or_1" in text
    assert "There is no validated log." in text


def test_a_held_run_does_not_look_blessed(page: RunPage, tmp_path: Path, limits: Gates) -> None:
    write_json(tmp_path / "skew/skew.json", {**SKEW, "online_mismatches": 4})
    candidates = {"xgboost": Candidate(tmp_path / "model", tmp_path / "xgboost", tmp_path / "proof")}
    evidence = (tmp_path / name for name in ("log", "skew", "champion", "popularity"))
    evaluate_gates(limits, 1, candidates, *evidence, tmp_path / "verdict")
    text = Outline(render(page)).text
    assert "Nothing blessed" in text
    assert "✕ hold" in text
    assert "4 answers differ from Feast's online ones" in text
    assert "may be deployed" not in text


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (pl.lit(0.25), "AUC"),  # as a network that learnt nothing gives
        (pl.when(pl.col("impression_id") % 2 == 0).then(0.2).otherwise(0.7), "AUC"),
        (pl.when(pl.col("impression_id") % 2 == 0).then(1e-7).otherwise(1 - 1e-7), "AUC"),
        (pl.lit(float("nan")), "scores are missing (NaN)"),
    ],
    ids=["constant", "two-valued", "saturated", "NaN"],
)
def test_uninformative_scores_fail_the_gates_and_have_a_page(
    score: pl.Expr, reason: str, page: RunPage, tmp_path: Path, limits: Gates, frame: Frame
) -> None:
    bad = frame().with_columns(score=score.cast(pl.Float32))
    bad.write_parquet(tmp_path / "xgboost" / Files.SCORES)
    candidates = {"xgboost": Candidate(tmp_path / "model", tmp_path / "xgboost", tmp_path / "proof")}
    evidence = (tmp_path / name for name in ("log", "skew", "champion", "popularity"))
    assert evaluate_gates(limits, 1, candidates, *evidence, tmp_path / "verdict") is None
    outline = Outline(render(page))
    assert "Nothing blessed" in outline.text and reason in outline.text
    assert ("Score distribution" in outline.text) == (reason == "AUC")


def test_page_reports_a_diverged_training(page: RunPage, tmp_path: Path, limits: Gates) -> None:
    (tmp_path / "xgboost" / Files.SCORES).unlink()
    write_json(tmp_path / "xgboost" / Files.PROBLEM, {"problem": "the loss is nan at step 3"})
    candidates = {"xgboost": Candidate(tmp_path / "model", tmp_path / "xgboost", tmp_path / "proof")}
    evidence = (tmp_path / name for name in ("log", "skew", "champion", "popularity"))
    assert evaluate_gates(limits, 1, candidates, *evidence, tmp_path / "verdict") is None
    assert "the loss is nan at step 3" in Outline(render(page)).text


def test_page_refuses_an_edited_verdict(page: RunPage, tmp_path: Path) -> None:
    path = tmp_path / "verdict/blessing.json"
    path.write_text(path.read_text().replace("xgboost", "xgboast"))
    with pytest.raises(IntegrityError, match="changed after it was written"):
        render(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_colours_have_enough_contrast(scheme: str) -> None:
    """WCAG 2.2, 1.4.3: contrast of at least 4.5 for text."""
    css = render(STOPPED).split("prefers-color-scheme: dark")[scheme == "dark"]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", css))
    pairs = [(text, ground) for text in ("ink", "muted", "s1") for ground in ("paper", "card", "wash")]
    colour_pairs = [(name, f"{name}-wash") for name in ("good", "bad", "warn")]
    for text, ground in [*pairs, *colour_pairs, ("ink", "good-wash"), ("muted", "good-wash")]:
        assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for number in range(1, 6):  # 1.4.11: graphics need 3
        assert _contrast(colours[f"s{number}"], colours["card"]) >= 3


def _contrast(colour: str, background: str) -> float:
    light, dark = sorted((_luminance(colour), _luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_page_shows_training_only_effects_and_best_possible_labels(page: RunPage) -> None:
    effect = TrainingOnlyEffect(
        feature="position_training", served=1.0, rows=2_000, mean_scores=((1.0, 0.31), (5.0, 0.1205)),
        auc_as_served=0.6, auc_as_shown=0.7,
    )  # fmt: skip
    like = Measures(model="net", role="baseline", problem="one class", best_possible=Scores(auc=0.8123, log_loss=0.4))
    net = Measures(model="net", role="baseline", training_only=(effect,), labels={"like": like}, problem="not measured")
    assert "Features that serving fixes" not in Outline(render(page)).text
    text = Outline(render(page.model_copy(update={"measures": (net,)}))).text
    assert "position_training1 in serving, 2 000 rows" in text.replace("\N{NO-BREAK SPACE}", " ").replace("\u202f", " ")
    assert "1: 0.3100, 5: 0.1205" in text
    assert "AUC 0.8123 and log loss 0.4000 possible" in text
