"""From an alarm to at most one run: the book decides, a claim makes it one, the run begins."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

from monitoring.book import Book
from monitoring.records import RetrainDecision
from monitoring.trigger import decide
from shortlist.config.monitoring import RetrainPolicy
from shortlist.contracts import ShortlistError
from shortlist.stores import without_secret

_log = logging.getLogger(__name__)


class Start(Protocol):
    """Starts trainings elsewhere; `pipelines` has the one for Kubeflow."""

    def __call__(self, decision: RetrainDecision, /) -> str:
        """Start the run of a decision, or find the one that was started for its key before; return its id.

        Raises:
            ShortlistError: It could not be started now.
        """


class NotNowError(ShortlistError):
    """Nothing is lost and nothing was started: ask again."""


@dataclass(frozen=True)
class Answer:
    """What came of an alarm."""

    result: Literal["started", "hold", "page"]
    reason: str
    run: str = ""
    """Of what was started."""


class Retrainer:
    """Starts the trainings of one spec.

    It has no memory of its own: ten of them on ten machines start one run, because they share the book.

    Args:
        book: Of the spec.
        policy: As the spec declares it.
        start: Starts a run.
        clock: Tells the time; it changes no decision, only when it was made.
    """

    def __init__(
        self,
        book: Book,
        policy: RetrainPolicy,
        start: Start,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.book = book
        self._policy = policy
        self._start = start
        self._clock = clock

    def consider(self) -> Answer:
        """Decide from the book, as a look at live traffic does, and start a training where that is the decision.

        Raises:
            NotNowError: Kubeflow is away, or another process has claimed the training and not begun yet.
            ShortlistError: The book cannot be read.
        """
        self.book.recover()
        reports = self.book.reports()
        if not reports:
            return Answer("hold", "no window of live traffic was looked at yet; make watch does")
        decision = decide(self.book.spec, reports, self.book.retrainings(), self._policy, self._clock())
        if decision.action != "retrain":
            return Answer(decision.action, decision.reasons[0])
        if not self.book.claim(decision):
            raise NotNowError(f"{self.book.spec}: another process has claimed {decision.key} and not begun yet")
        return begin(self.book, decision, self._start)


def begin(book: Book, decision: RetrainDecision, start: Start) -> Answer:
    """Start the training of a claimed decision and note that in the book.

    A process that dies in between leaves a claim without a training: after ten minutes anybody may claim it, and
    finds the run that was started by its key.

    Args:
        book: In which this process has claimed it.
        decision: To retrain.
        start: Starts a run.

    Raises:
        NotNowError: It could not be started; the claim is given back.
    """
    try:
        run = start(decision)
    except ShortlistError as problem:
        book.release(decision.key)
        raise NotNowError(f"{book.spec}: no training could be started: {without_secret(str(problem))}") from None
    except BaseException:
        book.release(decision.key)
        raise
    if not book.start(decision, run):  # it took longer than a claim holds, and somebody else found the same run
        return Answer("hold", f"another process has begun {decision.key}", run)
    _log.info("%s: run %s began for %s", book.spec, run, decision.key)
    return Answer("started", decision.reasons[0], run)
