"""The loop: releases before users who answer, day after day; real steps refresh, train, judge and promote.

The old recommender of the generated world shows the log's first days. From `data.live.since` on, users see the slates
of the champion, computed in this process by the stages that servers run. Each night the day's rows are collected, and
the spec's schedule refreshes and trains; a version that passes the gates is promoted.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from monitoring.retraining.training_starts import newest_scheduled_time
from shortlist.contracts import ShortlistError
from shortlist.data.collected import CollectedLog
from shortlist.data.world.answering_world import AnsweringWorld, Requests
from shortlist.data.world.random_streams import Ints
from shortlist.data.world.traffic import SLOTS
from shortlist.deployment.registration import promote
from shortlist.loop.collected_day import EXPLORED, VERSION, publish_day
from shortlist.loop.in_process_release import DayHistories, InProcessRelease
from shortlist.loop.loop_page import loop_table, write_loop
from shortlist.loop.loop_record import Loop
from shortlist.loop.policies import FROZEN, LOOP, Policy, slate_matrix
from shortlist.loop.policy_rewards import LoopEvent, PolicyDay, measure_policies
from shortlist.runs.local_training import NOT_MEASURED, run_locally
from shortlist.runs.refresh_runs import run_refresh_locally
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.data import GeneratedSource
from shortlist.spec.spec import Spec
from shortlist.tracking.run_context import RunContext

SLATES_PER_DAY: Final = 5_000
_LOG: Final = "runs.log"
"""File with what trainings and refreshes print."""


def run_loop(spec: Spec, runs: Path, slates_per_day: int = SLATES_PER_DAY) -> Loop:
    """Live through the days of a spec's generated world; write `loop.json` and `loop.html` into `<runs>/latest`.

    Args:
        spec: A spec with a generated log, retrieval, and `data.live`.
        runs: Folder of runs; the loop has stores of its own in the folder of its run.
        slates_per_day: Expected slates of a day on which three in ten seen items are clicked.

    Raises:
        ShortlistError: The spec does not fit, no first version passes the gates, or a training or refresh fails.
    """
    first_day = first_live_day(spec)
    state = RunsFolder.open(runs)
    run = state.new_run(f"{spec.name}-loop")
    loop = LivedLoop(spec, run, slates_per_day)
    console = Console(file=sys.stdout, highlight=False)
    days = range(first_day, loop.source.days)
    console.print(
        f"{len(days)} days of about {slates_per_day:,} slates. Training on the {first_day} days before;"
        f" what runs print is in {run / _LOG}.",
        soft_wrap=True,
    )
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} days"), \
        TimeElapsedColumn(), TimeRemainingColumn()  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("first training", total=len(days))
        loop.begin()
        for day in days:
            progress.update(task, description=f"{loop.date_of(day)}: users")
            loop.live(day)
            if day + 1 < loop.source.days:
                progress.update(task, description=f"{loop.date_of(day)}: refresh, training")
                loop.pass_night(day)
            progress.advance(task)
    summary = loop.summary()
    write_loop(summary, run)
    state.point_latest_at(run)
    console.print(loop_table(summary))
    console.print(f"\nPage: {runs / 'latest' / 'loop.html'}", soft_wrap=True)
    return summary


def first_live_day(spec: Spec) -> int:
    """Return the first day on which users see slates of releases, counted from the world's first one.

    Raises:
        ShortlistError: The spec is not that of a loop.
    """
    source, since = spec.data.source, spec.data.live.since
    if not isinstance(source, GeneratedSource):
        raise ShortlistError(
            f"spec '{spec.name}': a loop needs users who answer; got data.source of kind"
            f" '{source.kind}', wanted kind: generated"
        )
    if source.chapters is not None or source.lifetime is not None or source.likes is not None:
        raise ShortlistError(
            f"spec '{spec.name}': data.source has chapters, lifetime or likes, which users who answer do not have;"
            " leave them out"
        )
    if spec.retrieval is None or spec.data.user is None or spec.data.item is None:
        raise ShortlistError(f"spec '{spec.name}': declares no retrieval; a loop shows users what a release recommends")
    if not spec.data.live.collect or since is None:
        raise ShortlistError(
            f"spec '{spec.name}': wanted data.live with collect: true and since: the moment from which users see the"
            " slates of releases; the log ends there"
        )
    start = datetime.combine(source.start, datetime.min.time(), UTC)
    first_day, rest = divmod(since - start, timedelta(days=1))
    if rest or not 0 < first_day < source.days:
        raise ShortlistError(
            f"data.live.since: got {since.isoformat()}; a loop wants a midnight (UTC) between"
            f" {start:%Y-%m-%d} and {start + timedelta(days=source.days):%Y-%m-%d}, the days of the world"
        )
    return first_day


@dataclass
class _Day:
    """What happened on a day."""

    requests: list[Requests] = field(default_factory=list)
    slates: dict[Policy, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    best_slates: list[Ints] = field(default_factory=list)
    """Slates of the loop without exploration."""
    events: list[pl.DataFrame] = field(default_factory=list)


class LivedLoop:
    """The state of a loop between its days.

    Args:
        spec: The spec; trainings read it anew, so that a test may change it between days.
        folder: Folder of the loop's own runs and stores.
        slates_per_day: See `run_loop`.
    """

    def __init__(self, spec: Spec, folder: Path, slates_per_day: int = SLATES_PER_DAY) -> None:
        assert isinstance(spec.data.source, GeneratedSource)
        self.spec, self.source = spec, spec.data.source
        self.state = RunsFolder.open(folder / "world")
        stores = self.state.storage_parameter(spec.runtime)
        self.context = RunContext(name=spec.name, stores=stores)
        self.world = AnsweringWorld(self.source, slates_per_day, first_live_day(spec))
        self._collected = CollectedLog.open(stores, spec.name)
        self._output = folder / _LOG
        self._champion: InProcessRelease | None = None
        self._frozen: InProcessRelease | None = None
        self._days: list[PolicyDay] = []
        self._events: list[LoopEvent] = []
        self._given_up = self._greedy_reward = 0.0
        self._answered, self._answer_seconds = 0, 0.0

    def date_of(self, day: int) -> date:
        """Return the date of a day counted from the world's first one."""
        return self.source.start + timedelta(days=day)

    def begin(self) -> None:
        """Train on the log of the old recommender, and promote the blessed version.

        Raises:
            ShortlistError: The training fails, or no candidate passes the gates.
        """
        if self._train() != "promoted":
            raise ShortlistError(
                f"{self.state.root / 'latest'}: no candidate of the first training passes the gates, so that there is"
                " nothing to show; see report.html there"
            )
        self._open_champion()
        self._frozen = self._champion

    def live(self, day: int) -> None:
        """Let users ask, see the champion's slates and answer for a day, and collect what they saw."""
        assert self._champion is not None and self._frozen is not None
        for drift in self.source.drifts:
            if drift.from_day == day:
                self._events.append(LoopEvent(day=self.date_of(day), kind=drift.kind))
        lived, histories = _Day(), DayHistories()
        while (requests := self.world.ask(day + 1.0)).user.size:
            self._serve(requests, lived, histories)
        if lived.requests:
            answered = pl.concat(lived.events)
            assert self.spec.retrieval is not None
            publish_day(self._collected, self.spec.data, self.spec.name, answered, self.spec.retrieval.context)
            self._measure(day, lived)

    def pass_night(self, day: int) -> None:
        """Refresh and train after a day, in the order of the schedule, and promote a version that passes the gates.

        Raises:
            ShortlistError: A refresh or a training fails.
        """
        tomorrow, schedule = self.date_of(day + 1), self.spec.schedule
        actions = (schedule.refresh, self._refresh), (schedule.retrain, self._retrain)
        due = [(moment, act) for cron, act in actions if (moment := _due_time(cron, tomorrow)) is not None]
        for _, act in sorted(due, key=lambda timed: timed[0]):
            act(tomorrow)
        self._open_champion()

    def summary(self) -> Loop:
        """Return the result of the days so far."""
        return Loop(
            spec=self.spec.name,
            days=tuple(self._days),
            exploration_cost=self._given_up / self._greedy_reward,
            events=tuple(self._events),
            requests_per_second=self._answered / self._answer_seconds,
        )

    def _refresh(self, tomorrow: date) -> None:
        with self._captured_output():
            code = run_refresh_locally(self.spec, None, self.state.root)
        if code:
            raise ShortlistError(f"{self._output}: the refresh before {tomorrow} failed; its message is at the end")
        self._events.append(LoopEvent(day=tomorrow, kind="refreshed"))

    def _retrain(self, tomorrow: date) -> None:
        kind = self._train()
        version = self.context.tracker.registry.version_of("champion") if kind == "promoted" else None
        self._events.append(LoopEvent(day=tomorrow, kind=kind, version=version))

    def _train(self) -> Any:
        """Train and judge; promote a new blessed version. Return what came of it, as a `LoopEvent.kind`."""
        registry = self.context.tracker.registry
        before = registry.version_of("candidate")
        with self._captured_output():
            code = run_locally(self.spec, None, self.state.root)
        if code == NOT_MEASURED:
            return "not_measured"
        if code:
            raise ShortlistError(f"{self.state.root / 'latest'}: the training failed; see report.html there")
        if (candidate := registry.version_of("candidate")) == before or candidate is None:
            return "held"
        promote(self.context, candidate)
        return "promoted"

    @contextmanager
    def _captured_output(self) -> Iterator[None]:
        with self._output.open("a", encoding="utf-8") as file, redirect_stdout(file):
            yield

    def _open_champion(self) -> None:
        version = self.context.tracker.registry.version_of("champion")
        assert version is not None
        self._champion = InProcessRelease.open(self.context, version, self.spec.data)

    def _serve(self, requests: Requests, lived: _Day, histories: DayHistories) -> None:
        assert self._champion is not None and self._frozen is not None
        sent = requests.frame(self.source)
        began = time.perf_counter()
        assert self.spec.retrieval is not None
        context = self.spec.retrieval.context
        answers = self._champion.answer(self._champion.slate_requests(sent, context, histories))
        self._answer_seconds += time.perf_counter() - began
        self._answered += len(answers)
        frozen = answers
        if self._frozen is not self._champion:
            frozen = self._frozen.answer(self._frozen.slate_requests(sent, context, histories))
        slates = slate_matrix([answer.slate.items for answer in answers], SLOTS)
        events = self.world.answer(requests, slates)
        explored = pl.DataFrame(
            {"request_id": sent["request_id"], EXPLORED: [answer.slate.explored for answer in answers]}
        )
        events = events.join(explored, on="request_id", how="left", maintain_order="left")
        lived.events.append(events.with_columns(pl.lit(self._champion.version).alias(VERSION)))
        lived.requests.append(requests)
        lived.slates[LOOP].append(slates)
        lived.slates[FROZEN].append(slate_matrix([answer.slate.items for answer in frozen], SLOTS))
        lived.best_slates.append(slate_matrix([answer.best_slate.items for answer in answers], SLOTS))
        if self._champion.stages.window is not None or self._frozen.stages.window is not None:
            histories.add(events.filter("seen"))

    def _measure(self, day: int, lived: _Day) -> None:
        """Add the expected rewards of all policies on the day's requests."""
        assert self._champion is not None
        requests = Requests.concatenate(lived.requests)
        slates = {policy: np.concatenate(parts) for policy, parts in lived.slates.items()}
        self._days += measure_policies(self.world, day, requests, slates, self._champion.stages.retriever)
        greedy = self.world.expected_rewards(requests, np.concatenate(lived.best_slates))
        self._given_up += float((greedy - self.world.expected_rewards(requests, slates[LOOP])).sum())
        self._greedy_reward += float(greedy.sum())


def _due_time(cron: str | None, day: date) -> datetime | None:
    """Return the last time of a schedule on a day (UTC); None where it has none then."""
    if cron is None:
        return None
    begin = datetime.combine(day, datetime.min.time(), UTC)
    moment = newest_scheduled_time(cron, begin + timedelta(days=1))
    return moment if moment >= begin else None
