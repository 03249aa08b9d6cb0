"""The page and the terminal's table of a rollout say what happened, whatever there is to say."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path

import pytest
from rich.console import Console

from shortlist.evaluation.metrics.records import ConfidenceInterval
from shortlist.rollout.checks.observations import CheckRecord, GuardedRates, Observation, TrackSummary
from shortlist.rollout.evidence.counts import RequestTotals, TrackCounts
from shortlist.rollout.page import headline, render, rollout_plot, write_page
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.events import Abort, Event, PhaseCompleted, StepAnalyzed
from shortlist.rollout.states.phases import Phase, RolloutState
from shortlist.rollout.states.state_machine import advance
from shortlist.rollout.terminal import show_progress, status_line, verdict_table
from shortlist.rollout.verdict import make_verdict
from shortlist.spec.serving import Canary, Guard
from tests.page_rules import injected, planted, problems_of

STEPS = (5, 25, 50, 100)


PLAIN = Canary()
GUARDED = Canary.model_validate({"guards": {"like": {"max_drop": 0.01}, "long_view": {"max_relative_drop": 0.1}}})


def observation(second: int, percent: int, decision: str, slower: float = 1.0, policy: Canary = PLAIN) -> Observation:
    canary = 12 * second * percent // 100
    wide = 0.9 / math.sqrt(second + 4 * percent)
    checks = (
        CheckRecord(name="minimum_traffic", passed=True, reason=f"{canary} requests on the canary"),
        CheckRecord(
            name="p99", passed=slower < 3, reason=f"p99 {9 * slower:.1f} ms against 8.6 ms of the stable track"
        ),
        CheckRecord(name="kpi", passed=None, reason="too few users to tell"),
    )
    return Observation(
        decision=decision,  # type: ignore[arg-type]
        reason={"hold": "124 of 200 requests on the canary", "roll_back": "p99 86 ms > 26 ms: 3 times stable"}.get(
            decision, "enough traffic, no guardrail breached"
        ),
        checks=checks,
        stable=TrackSummary(requests=12 * second - canary, users=300, p99_ms=8.6 + math.sin(second), kpi=0.31),
        canary=TrackSummary(
            requests=canary, failed=int(slower > 1), users=15, p99_ms=9 * slower + math.cos(second), kpi=0.315
        ),
        canary_share=percent / 100 + 0.002,
        kpi_difference=ConfidenceInterval(
            low=0.005 - wide, value=0.005 + 0.02 * math.sin(second / 5) / percent, high=0.005 + wide
        ),
        guards=tuple(rates(label, guard, wide) for label, guard in policy.guards.items()),
        requests=RequestTotals(stable=TrackCounts(requests=12 * second)),
    )


def rates(label: str, guard: Guard, wide: float) -> GuardedRates:
    """Of a label that the canary shows a little less of; nothing is known of the first bounds."""
    interval = ConfidenceInterval(low=-0.004 - wide, value=-0.004, high=-0.004 + wide) if wide < 0.1 else None
    return GuardedRates(
        label=label, stable=0.051, canary=0.047, difference=interval, allowed=guard.allowed, relative=guard.is_relative
    )


def story(
    former: int | None = 1, bad_step: int | None = None, stop: Phase | None = None, policy: Canary = PLAIN
) -> RolloutRecord:
    """A rollout as a controller would have recorded it, in which a step takes twenty seconds."""
    state = RolloutState(
        rollout="20261121-120000-demo-0a1b", candidate=2, former=former, champion=former, stable=former, steps=STEPS
    )
    record = RolloutRecord(spec="demo", state=state, kind="dlrm", digest="0123456789abcdef", policy=policy)
    record = record.with_state(state)
    while not record.state.final and record.state.phase is not stop:
        record = record.with_elapsed(record.elapsed_seconds + 1)
        state = record.state
        event: Event = PhaseCompleted(state.phase, state.step)
        if state.phase is Phase.WATCHING:
            second = int(record.at_step_seconds)
            bad = state.step == bad_step and second > 8
            decision = "roll_back" if bad else "hold" if second < 20 else "proceed"
            slower = 10 if state.step == bad_step else 1
            step_observation = observation(second, state.percent, decision, slower, policy)
            record = record.with_observation(step_observation)
            event = StepAnalyzed(state.step, step_observation.decision, step_observation.reason)
        record = record.with_state(advance(state, event)[0])
    totals = RequestTotals(stable=TrackCounts(requests=9_000), canary=TrackCounts(requests=600, failed=1), logged=9_600)
    return record.model_copy(update={"requests": totals})


def aborted() -> RolloutRecord:
    record = story(stop=Phase.WATCHING)
    record = record.with_state(advance(record.state, Abort("interrupted by SIGTERM"))[0])
    return record.with_state(advance(record.state, PhaseCompleted(Phase.ABORTING, 0))[0])


def text(record: RolloutRecord, width: int = 160) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(verdict_table(record))
    return captured.get()


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (story(), "version 2 (dlrm) serves everybody in place of version 1"),
        (story(former=None), "version 2 (dlrm) serves everybody"),
        (story(bad_step=1), "version 2 (dlrm) is withdrawn; version 1 serves everybody"),
        (aborted(), "version 2 (dlrm) is withdrawn; version 1 serves everybody"),
        (story(stop=Phase.SHIFTING), "version 2 (dlrm), beside version 1, gets 5 % of the users"),
    ],
)
def test_the_headline_says_who_serves(record: RolloutRecord, sentence: str) -> None:
    assert headline(record) == sentence
    page = render(record)
    assert sentence in page
    assert problems_of(page) == []
    assert escape(record.state.reason) in page


@pytest.mark.parametrize(
    ("record", "outcome"),
    [(story(), "rolled back"), (story(bad_step=1), "rollback failed"), (aborted(), "rollback aborted")],
)
def test_a_rollback_is_not_called_a_promotion(record: RolloutRecord, outcome: str) -> None:
    rollback = record.model_copy(update={"returning": True})
    page, terminal_text = render(rollback), text(rollback)
    assert f" {outcome.capitalize()}</span>" in page and f"{outcome.capitalize()}: version 2 (dlrm)" in terminal_text
    assert f'<th scope="row">{outcome}</th>' in page and "romoted" not in page + terminal_text


def test_the_page_names_checks_that_were_skipped() -> None:
    record = story()
    last = record.steps[-1].last
    assert last is not None
    skipped = CheckRecord(name="distribution", passed=True, skipped=True, reason="not compared: version 1 was retired")
    step = record.steps[-1].model_copy(update={"last": last.model_copy(update={"checks": (skipped,)})})
    page = render(record.model_copy(update={"steps": (*record.steps[:-1], step)}))
    assert " skipped</span><b>distribution</b><span>not compared: version 1 was retired</span>" in page


def test_the_page_is_one_file_without_scripts_or_links(tmp_path: Path) -> None:
    write_page(story(), tmp_path / "rollout.html")
    page = (tmp_path / "rollout.html").read_text()
    assert "default-src 'none'" in page
    assert not any(tag in page for tag in ("<script", "src=", "@import", 'href="http'))
    counts = len(("requests", "failed"))
    assert page.count("<tr>") == 1 + len(STEPS) + 1 + counts + 1 + len(story().history)
    assert "<svg" in page


def test_what_others_printed_is_shown_and_not_obeyed() -> None:
    record = story(bad_step=0)
    state = record.state.model_copy(update={"reason": "server-v2 ended:\n <script>alert(1)</script>"})
    page = render(record.model_copy(update={"state": state}))
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize("record", [story(bad_step=1), story(stop=Phase.SHIFTING), aborted()])
def test_no_text_of_a_record_runs_on_the_page(record: RolloutRecord) -> None:
    page = render(planted(record, kept={"time", "began", "rollout", "digest"}))
    assert injected(page, least=5) == []
    assert problems_of(page) == []


def test_there_is_no_plot_when_no_user_got_the_canary() -> None:
    assert rollout_plot(story(former=None)) is None
    assert "No user got the candidate" in render(story(former=None))


def test_the_interval_of_every_guarded_label_is_shown_beside_what_is_allowed() -> None:
    record = story(policy=GUARDED)
    page = render(record)
    assert problems_of(page) == []
    wide = 0.9 / math.sqrt(20 + 4 * 100)  # at the last step
    assert f"-0.0040<small>{-0.004 - wide:+.4f} to {-0.004 + wide:+.4f}</small>" in page
    assert f"-0.4 %<small>{100 * (-0.004 - wide):+.1f} % to {100 * (-0.004 + wide):+.1f} %</small>" in page
    assert page.count(">0.01</td>") == page.count(">10 % of the stable track</td>") == len(STEPS)
    assert page.count('<th scope="row">like</th>') == len(STEPS)
    assert "0.01 of KPI and guards together" in page
    assert "long_view may fall by 10 % of the stable track" in page
    plain, plot = rollout_plot(story()), rollout_plot(record)
    assert plain is not None and plot is not None
    assert "like, long_view" in plot.caption and "guarded" not in plain.caption
    assert all(f">{label}<" in plot.svg and f">{label}<" not in plain.svg for label in GUARDED.guards)
    assert "Guarded labels" not in render(story())


def test_the_terminal_and_the_verdict_have_the_guarded_labels() -> None:
    record = story(policy=GUARDED)
    terminal_text, wide = text(record), 0.9 / math.sqrt(20 + 4 * 100)
    bounds = f"[{-0.004 - wide:+.4f}, {-0.004 + wide:+.4f}]"
    assert f"like: 0.051 / 0.047, -0.0040 {bounds}; may fall by 0.01" in terminal_text
    assert "long_view: 0.051 / 0.047, -0.4 % [" in terminal_text
    early = story(policy=GUARDED, stop=Phase.WATCHING).with_observation(observation(1, 5, "hold", policy=GUARDED))
    assert "like: 0.051 / 0.047, not known yet; may fall by 0.01" in text(early)
    verdict = json.loads(make_verdict(record).model_dump_json())
    first, second = verdict["steps"][-1]["guards"]
    assert (first["label"], first["allowed"], first["relative"], first["stable"]) == ("like", 0.01, False, 0.051)
    assert first["difference"]["low"] == pytest.approx(-0.004 - wide)
    assert (second["label"], second["allowed"], second["relative"]) == ("long_view", 0.1, True)


def test_a_step_without_an_observation_has_a_row() -> None:
    assert "ended before anything was seen" in render(aborted())
    assert "ended before anything was seen" in text(aborted())


def test_the_table_ends_with_the_verdict() -> None:
    terminal_text = text(story())
    assert terminal_text.count("proceed") == len(STEPS)
    assert "Promoted: version 2 (dlrm) serves everybody in place of version 1" in terminal_text
    assert "requests 9\u202f000 / 600, failed 0 / 1; of both, 9\u202f600 logged, 0 lost" in terminal_text.replace(
        "\n", " "
    )
    assert "p99 86 ms > 26 ms" in text(story(bad_step=1))


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_a_narrow_terminal(width: int) -> None:
    terminal_text = text(story(bad_step=1), width)
    assert max(len(text_line) for text_line in terminal_text.splitlines()) <= width
    assert "…" not in terminal_text
    assert all(number in terminal_text for number in ("89.1", "+0.006", "0.087", "roll back"))


def test_a_rollout_is_one_line_while_it_runs() -> None:
    record = story(stop=Phase.WATCHING).with_observation(observation(20, 5, "hold"))
    assert status_line(record) == (
        "watching version 2 at 5 %  4.0\u202fs  requests: stable 228, canary 12  p99: stable 9.5 ms, canary 9.4 ms"
        "  hold: 124 of 200 requests on the canary"
    )


def test_a_command_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress() as show:
        show(story(stop=Phase.STARTING))
        show(story(stop=Phase.DRAINING))
    assert capsys.readouterr().err == (
        "starting version 2  1.0\u202fs  its servers start; nobody gets it yet\n"
        "draining version 2 at 100 %  1\u202fmin 29\u202fs  everybody gets it; the former servers finish their requests"
        " and stop\n"
    )


def test_nothing_is_shown_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress() as show:
        show(story())
    assert capsys.readouterr() == ("", "")


def test_progress_is_sent_to_a_parent_that_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORTLIST_PROGRESS", str(tmp_path / "events.jsonl"))
    with show_progress() as show:
        show(story(stop=Phase.SHIFTING))
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["label"], event["done"], event["text"]) == ("rollout", 5.0, "shifting version 2 at 5 %  3.0\u202fs")
