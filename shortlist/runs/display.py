"""What a terminal shows of a run: a line per step while it goes, a short table at its end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from shortlist.contracts import Files
from shortlist.report.titles import TITLES, step_of, steps_of, title_of
from shortlist.runs.next_steps import after_failure, next_steps
from shortlist.runs.runner import task_steps

_REFRESH_SECONDS = 0.1


class Display:
    """Follows the events of a run's steps; draws when the output is a terminal, prints a line per step otherwise."""

    def __init__(self, events: Path, pipeline: Path, models: Mapping[str, str] | None = None, asked: str = "") -> None:
        """Begin to follow.

        Args:
            events: File of events.
            pipeline: The compiled graph.
            models: Name of every declared model -> its role.
            asked: What the user calls the spec, a name or a path; the spec's name by default.
        """
        self.finished: dict[str, dict[str, Any]] = {}
        """Step records by name; a step from the cache has {"cached": True}."""
        self.failed: dict[str, str] = {}
        """Messages of the steps that stopped, by name."""
        self.current = ""
        """The step that began last."""
        self.paths: dict[str, str] = {}
        """What steps said they write, whether they finished or not."""
        self.notes: list[str] = []
        """What steps want to be said below the results."""
        self.interrupted = False
        """Whether the user stopped the run."""
        self._events = events
        self._asked = asked
        self._offset = 0
        self._running: dict[str, dict[str, Any]] = {}
        self._steps = steps_of(set(task_steps(pipeline).values()), models or {})
        self._said = 0
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8, transient=False)
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._events.touch()
        if self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.update(self._drawing())
            self._live.__exit__(None, None, None)

    def refresh(self) -> None:
        """Read new events, draw them, and sleep a moment."""
        with self._events.open(encoding="utf-8") as file:
            file.seek(self._offset)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break  # half a line: its writer is not done
                self._offset = file.tell()
                self._take(json.loads(line))
        if self._console.is_terminal:
            self._live.update(self._drawing())
        time.sleep(_REFRESH_SECONDS)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "step":
            self.current = event["step"]
            self._running[self.current] = {"since": time.monotonic()}
            self.paths |= event["paths"]
        elif kind == "progress":
            self._running.setdefault(self.current, {"since": time.monotonic()}).update(event)
        elif kind == "done":
            self._running.pop(event["name"], None)
            self.finished[event["name"]] = event
            self._say(event["name"], _measures(event))
        elif kind == "note":
            self.notes.append(event["text"])
        elif kind == "cached":
            self.finished[event["step"]] = {"cached": True}
            self._say(event["step"], "unchanged, reused")
        elif kind == "failed":
            self._running.pop(event["step"], None)
            self.failed[event["step"]] = event["message"]
            self._say(event["step"], "stopped")

    def _say(self, name: str, text: str) -> None:
        if not self._console.is_terminal and step_of(name) in TITLES:
            self._said += 1
            place = f"[{self._said:>2}/{max(len(self._steps), self._said)}]"
            self._console.print(f"{place} {title_of(name):<34} {text}", markup=False, soft_wrap=True)

    def _drawing(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name in self._steps:
            if name in self.failed:
                table.add_row(Text("✗", "red"), title_of(name), Text("stopped", "red"))
            elif name in self._running:
                table.add_row(Spinner("dots", style="cyan"), title_of(name), _bar(self._running[name]))
            elif name in self.finished:
                table.add_row(Text("✓", "green"), title_of(name), Text(_measures(self.finished[name]), "dim"))
            else:
                table.add_row(Text("·", "dim"), Text(title_of(name), "dim"), "")
        return table

    def fault(self, run: Path) -> str:
        """Return what the log says last, for a run that stopped without a message."""
        if self.interrupted:
            return "Stopped by the user."
        log = run / "pipeline.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return "\n".join(["This is a fault of Shortlist, not yours. The last lines of its log:", *lines[-12:]])

    def conclude(self, run: Path, code: int, relative_to: Path) -> None:
        """Print what came out and where it is."""
        seconds = time.monotonic() - self._started
        latest = relative_to / "latest"
        if self.interrupted:
            self._console.print("\nStopped. Nothing is half-written; run again and the finished steps are reused.")
        elif code != 0:
            message = "\n".join(self.failed.values()) or self.fault(run)
            self._console.print(f"\n[bold red]Stopped[/] after {seconds:.0f} s.\n")
            self._console.print(message, markup=False)
            if advice := after_failure(run, self._asked, self.failed):
                self._console.print(f"\n{advice}", markup=False, soft_wrap=True)
            self._console.print(f"\nPage: {latest / Files.REPORT}    Log: {latest / 'pipeline.log'}", soft_wrap=True)
        else:
            self._console.print()
            self._console.print(_results(json.loads((run / Files.SUMMARY).read_text())))
            for note in self.notes:
                self._console.print(note, markup=False, soft_wrap=True)
            self._console.print(f"\nDone in {seconds:.0f} s. Page: {latest / Files.REPORT}", soft_wrap=True)
            self._console.print(next_steps(run, self._asked, latest / Files.REPORT), markup=False, soft_wrap=True)


def _measures(record: dict[str, Any]) -> str:
    if record.get("cached"):
        return "unchanged, reused"
    rate = f"  {record['rows_per_s']:>11,} rows/s" if record.get("rows_per_s") else ""
    return f"{record['seconds']:>6.1f} s  {record['peak_mib']:>6.0f} MiB{rate}"


def _bar(progress: dict[str, Any]) -> Group | Text | Table:
    seconds = time.monotonic() - progress["since"]
    if "done" not in progress:
        return Text(f"{seconds:>6.1f} s", "cyan")
    rate = progress["done"] / max(seconds, 1e-9)
    text = f"{progress['label']}  {rate:,.0f} {progress['unit']}/s  {progress['text']}"
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=progress["total"], completed=progress["done"], width=24)
    row.add_row(f"{seconds:>6.1f} s", bar, Text(text, "dim"))
    return row


def _results(summary: dict[str, Any]) -> Group:
    table = Table(
        title=f"{summary['spec']}: {summary['rows']['test']:,} test rows",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    if any(model.get("gauc") is not None for model in summary["models"].values()):
        _add_within_users(table, summary)
    else:
        _add_without_users(table, summary)
    held = [
        Text(f"✗ {gate['model']}, gate {gate['name']}: {gate['reason']}", "red")
        for gate in summary["gates"]
        if not gate["passed"]
    ]
    blessed = summary["blessed"]
    failing = {gate["model"] for gate in summary["gates"] if not gate["passed"]}
    passing = {model: said for model, said in summary.get("reasons", {}).items() if model not in failing}
    why = [Text(f"{model}: {'; '.join(said)}", "dim") for model, said in passing.items()]
    tuning = Text(
        "Tune by the validation numbers: candidates are chosen by them; the test days are for evaluation only.", "dim"
    )
    ending = (
        Text(f"Blessed: {blessed['model']}, version {blessed['version']}", "bold green")
        if blessed
        else Text("Nothing is blessed: every candidate is held by a gate", "bold red")
    )
    notice = [Text(summary["notice"], "bold yellow")] if summary.get("notice") else []
    return Group(*notice, table, tuning, *held, *why, ending)


def _add_without_users(table: Table, summary: dict[str, Any]) -> None:
    headings = "validation\nAUC", "validation\nlog loss", "test\nAUC", "95 %\ninterval", "test\nlog loss"
    _add_columns(table, headings)
    for name, model in _by_auc(summary):
        interval = "\N{EN DASH}".join(_decimals(model[end]) for end in ("auc_low", "auc_high"))
        validation = (_decimals(model.get(f"validation_{name}"), "") for name in ("auc", "log_loss"))
        table.add_row(name, *validation, _decimals(model["auc"]), interval, _decimals(model["log_loss"]))
    if best := summary["best_possible"]:
        figures = _decimals(best["auc"]), "", _decimals(best["log_loss"])
        table.add_row("best possible", "", "", *figures, style="dim")


def _add_within_users(table: Table, summary: dict[str, Any]) -> None:
    """Fit the metrics within users into 80 columns: intervals stand below their values."""
    _add_columns(table, ("validation\nlog loss", "test\nAUC", "test\nlog loss", "test\nGAUC", "test\nnDCG@10"))
    for name, model in _by_auc(summary):
        auc, gauc = (f"{_decimals(model.get(one))}\n{_between(model, one)}" for one in ("auc", "gauc"))
        losses = _decimals(model.get("validation_log_loss"), ""), auc, _decimals(model["log_loss"])
        table.add_row(name, *losses, gauc, _decimals(model.get("ndcg_at_10")))
    if best := summary["best_possible"]:
        table.add_row("best possible", "", _decimals(best["auc"]), _decimals(best["log_loss"]), "", "", style="dim")


def _add_columns(table: Table, headings: tuple[str, ...]) -> None:
    for heading in ("model", *headings):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)


def _by_auc(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(summary["models"].items(), key=lambda item: -(item[1]["auc"] or 0))


def _between(model: dict[str, Any], metric: str) -> str:
    ends = [model.get(f"{metric}_{end}") for end in ("low", "high")]
    return "" if None in ends else "\N{EN DASH}".join(f"{end:.3f}" for end in ends)


def _decimals(number: float | None, missing: str = "n/a") -> str:
    return missing if number is None else f"{number:.4f}"
