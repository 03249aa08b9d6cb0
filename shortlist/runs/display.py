"""Terminal output of a run: a line per step while it runs, a short table at its end."""

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
from shortlist.report.titles import list_graph_steps, sort_steps, step_title
from shortlist.runs.growth import describe_growth
from shortlist.runs.next_steps import advice_after_failure, next_steps

_REFRESH_SECONDS = 0.1
_RUNNING_SECONDS = 30
"""A running step says so this often, where the output is no terminal."""
_TRACEBACK = "Traceback (most recent call last):"
"""End of the line that begins Python's report of an error; a process that was killed leaves none."""


class Display:
    """Follows the events of a run's steps; draws a table in a terminal, prints a line per step otherwise."""

    def __init__(self, events: Path, models: Mapping[str, str] | None = None, spec_argument: str = "") -> None:
        """Follow a file of events.

        Args:
            events: File of events.
            models: Role of every declared model, by name.
            spec_argument: The spec as the user named it, by name or path; the spec's name by default.
        """
        self.finished: dict[str, dict[str, Any]] = {}
        """Step records by name; a step from the cache has {"cached": True}."""
        self.failed: dict[str, str] = {}
        """Messages of the steps that failed, by name."""
        self.not_measured = False
        """Whether a step failed because it could not measure."""
        self.paths: dict[str, str] = {}
        """Paths that steps announced to write, by artefact, whether they finished or not."""
        self.notes: list[str] = []
        """Sentences of steps, printed below the results."""
        self.interrupted = False
        """Whether the user stopped the run."""
        self._events = events
        self._spec_argument = spec_argument
        self._offset = 0
        self._running: dict[str, dict[str, Any]] = {}
        self._faulty: list[str] = []
        self._models = dict(models or {})
        self._steps: list[str] = []
        self._printed_steps = 0
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
            self._live.update(self._draw_table())
            self._live.__exit__(None, None, None)

    def refresh(self) -> None:
        """Read new events, draw them, and sleep 0.1 s."""
        with self._events.open(encoding="utf-8") as file:
            file.seek(self._offset)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break  # an incomplete line
                self._offset = file.tell()
                self._handle_event(json.loads(line))
        if self._console.is_terminal:
            self._live.update(self._draw_table())
        else:
            self._print_running_steps()
        time.sleep(_REFRESH_SECONDS)

    def _handle_event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "graph":
            self._steps = list_graph_steps(event["steps"], self._models)
        elif kind == "step":
            self._running[event["step"]] = {"since": time.monotonic()}
            self.paths |= event["paths"]
        elif kind == "progress":
            self._running.setdefault(event["step"], {"since": time.monotonic()}).update(event)
        elif kind == "done":
            self._running.pop(event["name"], None)
            self.finished[event["name"]] = event
            self._print_step(event["name"], _format_measures(event))
        elif kind == "note":
            self.notes.append(event["text"])
        elif kind == "cached":
            self.finished[event["step"]] = {"cached": True}
            self._print_step(event["step"], "unchanged, reused")
        elif kind == "failed":
            self._running.pop(event["step"], None)
            self.failed[event["step"]] = event["message"]
            self.not_measured |= event.get("not_measured", False)
            self._print_step(event["step"], "stopped")
        elif kind == "fault":
            self._faulty.append(event["step"])

    @property
    def broken_step(self) -> str:
        """Name of the step that failed without a message for the user: by a fault, else killed; may be empty."""
        return next(iter((*self._faulty, *self._running)), "")

    def _print_step(self, name: str, text: str) -> None:
        if not self._console.is_terminal and sort_steps([name]):
            self._printed_steps += 1
            place = f"[{self._printed_steps:>2}/{max(len(self._steps), self._printed_steps)}]"
            self._console.print(f"{place} {step_title(name):<34} {text}", markup=False, soft_wrap=True)

    def _print_running_steps(self) -> None:
        """Print a line for every step that has run for another half minute since the last one."""
        for name, progress in self._running.items():
            period = int((time.monotonic() - progress["since"]) / _RUNNING_SECONDS)
            if period > progress.get("printed_period", 0) and sort_steps([name]):
                progress["printed_period"] = period
                amount = ""
                if progress.get("total"):
                    amount = f", {progress['label']} {progress['done'] / progress['total']:.0%} {progress['text']}"
                line = f"        {step_title(name):<34} running for {period * _RUNNING_SECONDS} s{amount}"
                self._console.print(line.rstrip(), markup=False, soft_wrap=True)

    def _draw_table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name in self._steps:
            if name in self.failed:
                table.add_row(Text("✗", "red"), step_title(name), Text("stopped", "red"))
            elif name in self._running:
                table.add_row(Spinner("dots", style="cyan"), step_title(name), _progress_row(self._running[name]))
            elif name in self.finished:
                table.add_row(Text("✓", "green"), step_title(name), Text(_format_measures(self.finished[name]), "dim"))
            else:
                table.add_row(Text("·", "dim"), Text(step_title(name), "dim"), "")
        return table

    def internal_error(self, run: Path) -> str:
        """Return the end of the broken step's log, for a run that failed without a message."""
        if self.interrupted:
            return "Stopped by the user."
        log = run / "pipeline.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        prefix = f"{self.broken_step} | "
        lines = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)] or lines
        has_traceback = any(line.endswith(_TRACEBACK) for line in lines)
        if not self._faulty and (self.broken_step or not has_traceback):
            killed = f"The process of the step {self.broken_step}" if self.broken_step else "A process of the run"
            return (
                f"{killed} was killed. Usually the machine ran out of memory:"
                " runtime.steps_at_once: 1 and a smaller runtime.memory_budget_mib need less. Finished steps are kept."
            )
        return "\n".join(["This is a bug in Shortlist. The last lines of its log:", *lines[-12:]])

    def print_results(self, run: Path, code: int, relative_to: Path) -> None:
        """Print the results or the error of a run, and where its page is."""
        seconds = time.monotonic() - self._started
        latest = relative_to / "latest"
        if self.interrupted:
            self._console.print("\nStopped. No file is incomplete; the next run reuses the finished steps.")
        elif code != 0:
            message = "\n".join(self.failed.values()) or self.internal_error(run)
            self._console.print(f"\n[bold red]Stopped[/] after {seconds:.0f} s.\n")
            self._console.print(message, markup=False)
            if advice := advice_after_failure(run, self._spec_argument, self.failed):
                self._console.print(f"\n{advice}", markup=False, soft_wrap=True)
            self._console.print(f"\nPage: {latest / Files.REPORT}    Log: {latest / 'pipeline.log'}", soft_wrap=True)
        else:
            self._console.print()
            self._console.print(_results_view(json.loads((run / Files.SUMMARY).read_text())))
            for note in self.notes:
                self._console.print(note, markup=False, soft_wrap=True)
            if growth := describe_growth(run):
                self._console.print(growth, markup=False, soft_wrap=True)
            self._console.print(f"\nDone in {seconds:.0f} s. Page: {latest / Files.REPORT}", soft_wrap=True)
            champion = self.finished.get("roll_out", {}).get("champion")
            steps = next_steps(run, self._spec_argument, latest / Files.REPORT, self.notes, champion)
            self._console.print(steps, markup=False, soft_wrap=True)


def _format_measures(record: dict[str, Any]) -> str:
    if record.get("cached"):
        return "unchanged, reused"
    rate = f"  {record['rows_per_s']:>11,} rows/s" if record.get("rows_per_s") else ""
    return f"{record['seconds']:>6.1f} s  {record['peak_mib']:>6.0f} MiB{rate}"


def _progress_row(progress: dict[str, Any]) -> Group | Text | Table:
    seconds = time.monotonic() - progress["since"]
    if "done" not in progress:
        return Text(f"{seconds:>6.1f} s", "cyan")
    rate = progress["done"] / max(seconds, 1e-9)
    text = f"{progress['label']}  {rate:,.0f} {progress['unit']}/s  {progress['text']}"
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=progress["total"], completed=progress["done"], width=24)
    row.add_row(f"{seconds:>6.1f} s", bar, Text(text, "dim"))
    return row


def _results_view(summary: dict[str, Any]) -> Group:
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
    failed_gates = [
        Text(f"✗ {gate['model']}, gate {gate['name']}: {gate['reason']}", "red")
        for gate in summary["gates"]
        if not gate["passed"]
    ]
    blessed = summary["blessed"]
    failing = {gate["model"] for gate in summary["gates"] if not gate["passed"]}
    passing = {model: reasons for model, reasons in summary.get("reasons", {}).items() if model not in failing}
    passed_gates = [Text(f"{model}: {'; '.join(reasons)}", "dim") for model, reasons in passing.items()]
    tuning = Text(
        "Tune by the validation numbers: candidates are chosen by them; the test days are for evaluation only.", "dim"
    )
    ending = (
        Text(f"Blessed: {blessed['model']}, version {blessed['version']}", "bold green")
        if blessed
        else Text("No model is blessed: every candidate failed a gate", "bold red")
    )
    notice = [Text(summary["notice"], "bold yellow")] if summary.get("notice") else []
    return Group(*notice, table, tuning, *failed_gates, *passed_gates, ending)


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
    """Add the metrics within users, in 80 characters: intervals are below their values."""
    _add_columns(table, ("validation\nlog loss", "test\nAUC", "test\nlog loss", "test\nGAUC", "test\nnDCG@10"))
    for name, model in _by_auc(summary):
        auc, gauc = (f"{_decimals(model.get(metric))}\n{_format_interval(model, metric)}" for metric in ("auc", "gauc"))
        losses = _decimals(model.get("validation_log_loss"), ""), auc, _decimals(model["log_loss"])
        table.add_row(name, *losses, gauc, _decimals(model.get("ndcg_at_10")))
    if best := summary["best_possible"]:
        table.add_row("best possible", "", _decimals(best["auc"]), _decimals(best["log_loss"]), "", "", style="dim")


def _add_columns(table: Table, headings: tuple[str, ...]) -> None:
    for heading in ("model", *headings):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)


def _by_auc(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(summary["models"].items(), key=lambda item: -(item[1]["auc"] or 0))


def _format_interval(model: dict[str, Any], metric: str) -> str:
    ends = [model.get(f"{metric}_{end}") for end in ("low", "high")]
    return "" if None in ends else "\N{EN DASH}".join(f"{end:.3f}" for end in ends)


def _decimals(number: float | None, missing: str = "n/a") -> str:
    return missing if number is None else f"{number:.4f}"
