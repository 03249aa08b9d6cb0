"""A search: trials proposed by Optuna, one after another, until the budget is spent."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from models.registry import kind_of
from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.records import LOWER_IS_BETTER, TITLES
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.spec.tune import Dimension, Metric, Tune, apply_section_changes
from shortlist.storage.artefacts import sha256
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress
from shortlist.training.tuning.space import changes_of, distributions, shipped_params, space_of
from shortlist.training.tuning.trial import OnLoss, TrialFailure, TrialJob, deciding_metric, run_trial

if TYPE_CHECKING:
    import optuna

STUDY: Final = "study.db"
_SHIPPED: Final = "shipped"
_PACE: Final = 2.0
"""Rounds times pace between two comparisons with other trials, where a kind has a pace."""
_RANDOM_TRIALS: Final = 8
"""Before the sampler learns from earlier trials."""
_STATES: Final = {"COMPLETE": "finished", "PRUNED": "stopped early", "FAIL": "failed"}


class Trial(BaseModel):
    """What became of a trial."""

    model_config = ConfigDict(frozen=True)

    number: int
    state: str
    """`finished`, `stopped early`, or `failed`."""
    shipped: bool
    """Whether it is the section as it is declared."""
    changes: dict[str, Any]
    """Keys of the section and their values."""
    value: float | None = None
    """Of the metric."""
    auc: float | None = None
    gauc: float | None = None
    """None where no user has rows of both classes, or the log names no users."""
    log_loss: float | None = None
    seconds: float = 0.0
    reason: str = ""
    """Why it failed."""

    @property
    def measured(self) -> dict[Metric, float]:
        """Its measurements on the validation days, in the order of reports."""
        found: dict[Metric, float | None] = {"auc": self.auc, "gauc": self.gauc, "log_loss": self.log_loss}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def figures(self) -> list[str]:
        """The measurements, each with its name."""
        return [f"{TITLES[name]} {value:.4f}" for name, value in self.measured.items()]


class Result(BaseModel):
    """What a search has found so far."""

    model_config = ConfigDict(frozen=True)

    model: str
    metric: Metric
    trials: tuple[Trial, ...]
    importance: dict[str, float] = {}
    """Share of the metric's variation that a key explains (fANOVA), largest first; empty with too few trials."""

    @property
    def shipped(self) -> Trial | None:
        """The trial of the section as it is declared; None when it failed."""
        return next((trial for trial in self.trials if trial.shipped and trial.value is not None), None)

    @property
    def best(self) -> Trial | None:
        """The best trial; of equal ones the first, so that nothing changes for nothing. None when all failed."""
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        measured = [trial for trial in self.trials if trial.value is not None]
        return max(measured, key=lambda trial: (sign * (trial.value or 0), trial.shipped), default=None)


def joined(results: Sequence[Result]) -> Result:
    """Return the trials of several searches for one model as one result, numbered anew.

    Args:
        results: At least one.
    """
    if len(results) == 1:
        return results[0]
    trials = [trial for result in results for trial in result.trials]
    numbered = (trial.model_copy(update={"number": number}) for number, trial in enumerate(trials))
    return results[0].model_copy(update={"trials": tuple(numbered), "importance": {}})


class Search(NamedTuple):
    """What is searched, where, and how long."""

    model: str
    section: ModelSection
    """As it is declared."""
    space: Mapping[str, Dimension]
    metric: Metric
    runtime: Runtime
    table: Path
    """Folder of the feature table."""
    trials: int | None
    """At most, those that the study already has included."""
    minutes: float | None
    seed: int = 0
    """Tells the searches of batches apart."""
    tries_shipped: bool = True
    """Whether the section is tried as it is declared."""

    @classmethod
    def of(cls, tune: Tune, model: str, section: ModelSection, runtime: Runtime, table: Path) -> Search:
        """Return the search that a spec declares for one of its models.

        Raises:
            ShortlistError: There is nothing to change.
        """
        space = space_of(tune, model, section)
        metric = tune.metric or deciding_metric(DayTable.open(table, Files.TABLE))
        return cls(model, section, space, metric, runtime, table, tune.trials, tune.minutes)

    @property
    def key(self) -> str:
        """What the study is called: another section, space, metric, table or seed is another study."""
        space = {key: one.model_dump(mode="json") for key, one in self.space.items()}
        means = [self.section.model_dump(mode="json"), space, self.metric, self.runtime.seed, self.seed]
        text = json.dumps([*means, sha256(self.table / Files.TABLE)], sort_keys=True)
        return f"{self.model}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class RunTrial(Protocol):
    """How a trial is run: `shortlist.training.tuning.trial.run_trial`."""

    def __call__(self, job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float] | None:
        """Return what was measured; None when it was stopped early."""
        ...


def search(
    what: Search, folder: Path, on_trial: Callable[[Trial], None] = lambda trial: None, run: RunTrial = run_trial
) -> Result:
    """Try settings until the budget is spent; go on with the study that the folder has.

    The declared section is always tried first, to its end: the best trial is never worse on the validation days.

    Args:
        what: What to search.
        folder: Gets `study.db`.
        on_trial: Called after every trial.
        run: How a trial is run.

    Raises:
        ShortlistError: Another process searches in this folder, or the study is damaged.
    """
    with _alone_in(folder), _quiet(folder):
        study = _study(what, folder)
        done = _settled(study)
        total = what.trials if what.trials is not None else 60 * (what.minutes or 0)
        unit = "trials" if what.trials is not None else "s"
        with progress(f"tuning {what.model}", total, unit) as advance:
            last = time.monotonic()
            deadline = None if what.minutes is None else last + 60 * what.minutes
            late = False  # one trial is always made: without the shipped section nothing could be compared
            if what.trials is not None:
                advance(min(done, what.trials), _progress_line(what, study))
            while not late and (what.trials is None or done < what.trials):
                on_trial(_one_trial(what, study, deadline, run))
                done += 1
                now = time.monotonic()
                late = deadline is not None and now >= deadline
                advance(1 if what.trials is not None else now - last, _progress_line(what, study))
                last = now
        return _result(what, study)


def _one_trial(what: Search, study: optuna.Study, deadline: float | None, run: RunTrial) -> Trial:
    import optuna

    space = distributions(what.space, what.section)
    first = what.tries_shipped and not any(_is_shipped(one) for one in _finished(study))
    if first:
        study.enqueue_trial(shipped_params(what.space, what.section))
    trial = study.ask(space)
    if first:
        trial.set_user_attr(_SHIPPED, True)
    began = time.monotonic()
    changes = {} if first else changes_of(what.space, trial.params)
    trial.set_user_attr("changes", changes)
    try:
        section = apply_section_changes(what.section, changes).without_refit
        job = TrialJob(
            kind=section.kind, name=what.model, section=section.model_dump(mode="json"), runtime=what.runtime,
            table=str(what.table.resolve()), metric=what.metric,
        )  # fmt: skip
        watch = _Pace(what, trial, section)
        # Nothing is compared with a section that was not tried to its end.
        measured = run(job, (lambda step, loss: True) if first else watch.goes_on, None if first else deadline)
    except (TrialFailure, ValueError) as reason:
        trial.set_user_attr("reason", " ".join(str(reason).split()))
        trial.set_user_attr("seconds", round(time.monotonic() - began, 1))
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    except BaseException:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        raise
    else:
        trial.set_user_attr("seconds", round(time.monotonic() - began, 1))
        if measured is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            trial.set_user_attr("measured", measured)
            study.tell(trial, measured[what.metric])
    return _trial_of(study.trials[trial.number])


class _Pace:
    """Compares a training with the earlier ones that got as far."""

    def __init__(self, what: Search, trial: optuna.Trial, section: ModelSection) -> None:
        pace = kind_of(section.kind).tuning.pace
        self._per_round = float(getattr(section, pace)) / _PACE if pace else 1.0
        self._sign = 1 if what.metric in LOWER_IS_BETTER else -1
        self._trial = trial
        self._reached = 0

    def goes_on(self, step: int, loss: float) -> bool:
        """Take the validation log loss of an epoch or tree; return whether the training is worth going on."""
        reached = int(step * self._per_round)
        if reached <= self._reached:
            return True
        self._reached = reached
        self._trial.report(self._sign * loss, reached)
        return not self._trial.should_prune()


def _study(what: Search, folder: Path) -> optuna.Study:
    import optuna

    trial_state = optuna.trial.TrialState
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / STUDY}")
    study = optuna.create_study(
        storage=storage,
        study_name=what.key,
        direction="minimize" if what.metric in LOWER_IS_BETTER else "maximize",
        load_if_exists=True,
        # The worst quarter of those that got as far is stopped; the first epoch, or trees, say little.
        pruner=optuna.pruners.PercentilePruner(75.0, n_startup_trials=5, n_warmup_steps=2 if _has_pace(what) else 0),
    )
    for left in study.get_trials(deepcopy=False, states=(trial_state.RUNNING, trial_state.WAITING)):
        study.tell(left.number, state=trial_state.FAIL)  # of a search that was killed
    seed = what.runtime.seed + 1_000 * what.seed + len(study.trials)  # a resumed search goes on, and repeats nothing
    study.sampler = optuna.samplers.TPESampler(n_startup_trials=_RANDOM_TRIALS, seed=seed)
    return study


def _has_pace(what: Search) -> bool:
    return bool(kind_of(what.section.kind).tuning.pace)


def _finished(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]


def _settled(study: optuna.Study) -> int:
    """Return how many trials have come to an end by themselves; one that was cut off is not counted."""
    return sum(trial.value is not None or "reason" in trial.user_attrs or "seconds" in trial.user_attrs
               for trial in study.get_trials(deepcopy=False))  # fmt: skip


def _is_shipped(trial: optuna.trial.FrozenTrial) -> bool:
    return bool(trial.user_attrs.get(_SHIPPED))


def _trial_of(trial: optuna.trial.FrozenTrial) -> Trial:
    said = trial.user_attrs
    measured = said.get("measured", {})
    return Trial(
        number=trial.number, state=_STATES[trial.state.name], shipped=_is_shipped(trial),
        changes=said.get("changes", {}), value=trial.value, auc=measured.get("auc"),
        gauc=measured.get("gauc"), log_loss=measured.get("log_loss"), seconds=said.get("seconds", 0.0),
        reason=said.get("reason", ""),
    )  # fmt: skip


def _result(what: Search, study: optuna.Study) -> Result:
    trials = tuple(_trial_of(trial) for trial in study.get_trials(deepcopy=False))
    return Result(model=what.model, metric=what.metric, trials=trials, importance=_importance(study))


def _importance(study: optuna.Study) -> dict[str, float]:
    import optuna

    if len(_finished(study)) < _RANDOM_TRIALS:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    try:
        return {key: float(share) for key, share in
                optuna.importance.get_param_importances(study, evaluator=evaluator).items()}  # fmt: skip
    except (RuntimeError, ValueError):  # all values are equal: nothing explains anything
        return {}


def _progress_line(what: Search, study: optuna.Study) -> str:
    finished = _finished(study)
    if not finished:
        return ""
    values = [trial.value for trial in finished if trial.value is not None]
    best = min(values) if what.metric in LOWER_IS_BETTER else max(values)
    return f"{len(study.trials)} trials, best {TITLES[what.metric]} {best:.4f}"


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "search.lock", timeout=0):
            yield
    except Timeout:
        raise ShortlistError(f"{folder}: another process searches here; wait for its end, or stop it") from None


@contextmanager
def _quiet(folder: Path) -> Iterator[None]:
    """Keep Optuna's chatter from the user, and turn a damaged study into a message."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if not type(error).__module__.startswith(("sqlalchemy.", "optuna.")):
            raise
        reason = str(error).splitlines()[0]
        raise ShortlistError(
            f"{folder / STUDY}: cannot be read or written: {reason}. Delete it to search anew."
        ) from None
    finally:
        optuna.logging.set_verbosity(before)
