"""Progress events for a parent process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shortlist.system.progress import EVENTS_VARIABLE, emit, progress


def test_progress_events_are_written_for_a_parent_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_VARIABLE, str(events))
    with progress("train", total=10) as advance:
        advance(4, "loss 0.6")
        advance(6, "loss 0.5")
    last_event = json.loads(events.read_text().splitlines()[-1])
    assert (last_event["done"], last_event["total"], last_event["text"]) == (10, 10, "loss 0.5")


def test_nothing_is_written_without_a_terminal_or_parent_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(EVENTS_VARIABLE, raising=False)
    with progress("train", total=10) as advance:
        advance(10)
    emit({"event": "step"})
    assert capfd.readouterr() == ("", "")
