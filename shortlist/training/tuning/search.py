"""A search: trials proposed by Optuna, one after another, until the budget is spent.

The study is a file of one process, or is kept in PostgreSQL and shared by the batches of a search: each of them then
proposes by what all have measured.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.metrics.records import LOWER_IS_BETTER, TITLES
from shortlist.ranking.registry import kind_of
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.spec.tune import Dimension, Metric, Tune, apply_section_changes
from shortlist.storage.artefacts import sha256
from shortlist.storage.storage_config import redact_passwords
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress
from shortlist.training.tuning.shared_study import SharedStudy
from shortlist.training.tuning.space import optuna_distributions, search_space, section_changes, shipped_params
from shortlist.training.tuning.trial import OnLoss, TrialFailure, TrialJob, deciding_metric, run_trial

if TYPE_CHECKING:
    import optuna

STUDY: Final = "study.db"
_SHIPPED: Final = "shipped"
_BATCH: Final = "batch"
_PACE: Final = 2.0
"""Rounds times pace between two comparisons of trials, where a kind has a pace."""
_RANDOM_TRIALS: Final = 8
"""Random trials before the sampler uses earlier trials."""
_STATES: Final = {"COMPLETE": "finished", "PRUNED": "stopped early", "FAIL": "failed"}


class Trial(BaseModel):
    """A finished trial."""

    model_config = ConfigDict(frozen=True)

    number: int
    state: str
    """`finished`, `stopped early`, or `failed`."""
    shipped: bool
    """Whether the trial is the declared section."""
    changes: dict[str, Any]
    """Changed keys of the section and their values."""
    value: float | None = None
    """Value of the metric."""
    auc: float | None = None
    gauc: float | None = None
    """None where no user has rows of both classes, or the log names no users."""
    log_loss: float | None = None
    seconds: float = 0.0
    reason: str = ""
    """Reason of a failure."""

    @property
    def measured(self) -> dict[Metric, float]:
        """Metrics on the validation days, in the order of reports."""
        metrics: dict[Metric, float | None] = {"auc": self.auc, "gauc": self.gauc, "log_loss": self.log_loss}
        return {name: value for name, value in metrics.items() if value is not None}

    @property
    def figures(self) -> list[str]:
        """The metrics as texts, each with its title."""
        return [f"{TITLES[name]} {value:.4f}" for name, value in self.measured.items()]


class SearchOutcome(BaseModel):
    """The trials of a search so far."""

    model_config = ConfigDict(frozen=True)

    model: str
    metric: Metric
    trials: tuple[Trial, ...]
    importance: dict[str, float] = {}
    """Share of the metric's variation that a key explains (fANOVA), largest first; empty with too few trials."""

    @property
    def shipped(self) -> Trial | None:
        """The trial of the declared section; None when it failed."""
        return next((trial for trial in self.trials if trial.shipped and trial.value is not None), None)

    @property
    def best(self) -> Trial | None:
        """The best trial; the declared section among equal ones. None when all failed."""
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        measured = [trial for trial in self.trials if trial.value is not None]
        return max(measured, key=lambda trial: (sign * (trial.value or 0), trial.shipped), default=None)


def merge_outcomes(outcomes: Sequence[SearchOutcome]) -> SearchOutcome:
    """Return the trials of several batches of one model as one outcome, renumbered.

    Args:
        outcomes: Outcomes of the batches, at least one.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    trials = [trial for outcome in outcomes for trial in outcome.trials]
    numbered = (trial.model_copy(update={"number": number}) for number, trial in enumerate(trials))
    return outcomes[0].model_copy(update={"trials": tuple(numbered), "importance": {}})


class SearchSettings(NamedTuple):
    """Space, metric, table and budget of a search."""

    model: str
    section: ModelSection
    """The declared section."""
    space: Mapping[str, Dimension]
    metric: Metric
    runtime: Runtime
    table: Path
    """Folder of the feature table."""
    trials: int | None
    """Most trials, including those of an existing study."""
    minutes: float | None
    batch: int = 0
    """Number of the batch of trials, which is part of its seed; batch 0 tries the declared section."""
    shared_study: SharedStudy | None = None
    """Study of all batches; None: a file of this batch."""

    @classmethod
    def from_spec(cls, tune: Tune, model: str, section: ModelSection, runtime: Runtime, table: Path) -> SearchSettings:
        """Return the search that a spec declares for one of its models.

        Raises:
            ShortlistError: There is no search space.
        """
        space = search_space(tune, model, section)
        metric = tune.metric or deciding_metric(DayTable.open(table, Files.TABLE))
        return cls(model, section, space, metric, runtime, table, tune.trials, tune.minutes)

    @property
    def key(self) -> str:
        """Name of the study, which contains a digest of section, space, metric, table, seed and batch."""
        space = {key: dimension.model_dump(mode="json") for key, dimension in self.space.items()}
        inputs = [self.section.model_dump(mode="json"), space, self.metric, self.runtime.seed, self.batch]
        text = json.dumps([*inputs, sha256(self.table / Files.TABLE)], sort_keys=True)
        return f"{self.model}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class RunTrial(Protocol):
    """Signature of `shortlist.training.tuning.trial.run_trial`."""

    def __call__(self, job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float] | None:
        """Return the metrics; None when the trial was stopped early."""
        ...


def search(
    settings: SearchSettings,
    folder: Path,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    run: RunTrial = run_trial,
) -> SearchOutcome:
    """Run trials until the budget is spent; continue the study.

    The declared section is tried to its end, as the first trial of batch 0, so the best trial is never worse on the
    validation days.

    Args:
        settings: The search.
        folder: Folder of `study.db`.
        on_trial: Called after every trial.
        run: Runs a trial.

    Returns:
        The trials of this batch.

    Raises:
        ShortlistError: Another process searches in this folder, or the study is damaged or cannot be reached.
    """
    with _lock_folder(folder), _silence_optuna(settings.shared_study or folder):
        study = _open_study(settings, folder)
        trials_done = _count_ended_trials(settings, study)
        total = settings.trials if settings.trials is not None else 60 * (settings.minutes or 0)
        unit = "trials" if settings.trials is not None else "s"
        with progress(f"tuning {settings.model}", total, unit) as advance:
            last = time.monotonic()
            deadline = None if settings.minutes is None else last + 60 * settings.minutes
            is_late = False  # one trial is always run, as all are compared with the shipped section
            if settings.trials is not None:
                advance(min(trials_done, settings.trials), _progress_line(settings, study))
            while not is_late and (settings.trials is None or trials_done < settings.trials):
                on_trial(_make_trial(settings, study, deadline, run))
                trials_done += 1
                now = time.monotonic()
                is_late = deadline is not None and now >= deadline
                advance(1 if settings.trials is not None else now - last, _progress_line(settings, study))
                last = now
        return _outcome(settings, study)


def _make_trial(settings: SearchSettings, study: optuna.Study, deadline: float | None, run: RunTrial) -> Trial:
    import optuna

    space = optuna_distributions(settings.space, settings.section)
    if _lacks_shipped(settings, study):
        # Whichever batch asks next tries it.
        study.enqueue_trial(shipped_params(settings.space, settings.section), user_attrs={_SHIPPED: True})
    trial = study.ask(space)
    trial.set_user_attr(_BATCH, settings.batch)
    is_shipped = bool(trial.user_attrs.get(_SHIPPED))
    attributes: dict[str, Any] = {}
    started = time.monotonic()
    changes = {} if is_shipped else section_changes(settings.space, trial.params)
    trial.set_user_attr("changes", changes)
    try:
        section = apply_section_changes(settings.section, changes).without_refit
        job = TrialJob(
            kind=section.kind, name=settings.model, section=section.model_dump(mode="json"), runtime=settings.runtime,
            table=str(settings.table.resolve()), metric=settings.metric,
        )  # fmt: skip
        pruner = _TrialPruner(settings, trial, section)
        # The shipped section is never stopped early, as all trials are compared with it.
        measured = run(
            job, (lambda step, loss: True) if is_shipped else pruner.should_continue, None if is_shipped else deadline
        )
    except (TrialFailure, ValueError) as reason:
        attributes["reason"] = " ".join(str(reason).split())
        value, state = None, optuna.trial.TrialState.FAIL
    except BaseException:
        with suppress(Exception):  # it is failed when the study is opened again
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        raise
    else:
        attributes |= {} if measured is None else {"measured": measured}
        value = None if measured is None else measured[settings.metric]
        state = optuna.trial.TrialState.PRUNED if measured is None else optuna.trial.TrialState.COMPLETE
    attributes["seconds"] = round(time.monotonic() - started, 1)

    def end_trial() -> Trial:
        # Done anew after a lost connection, it may find that the study knows already.
        if not study.trials[trial.number].state.is_finished():
            for key, attribute in attributes.items():
                trial.set_user_attr(key, attribute)
            study.tell(trial, value, state)
        return _to_trial(study.trials[trial.number])

    return end_trial() if settings.shared_study is None else settings.shared_study.run(end_trial)


class _TrialPruner:
    """Stops a trial that is worse than earlier trials at the same progress."""

    def __init__(self, settings: SearchSettings, trial: optuna.Trial, section: ModelSection) -> None:
        pace = kind_of(section.kind).tuning.pace
        self._per_round = float(getattr(section, pace)) / _PACE if pace else 1.0
        self._sign = 1 if settings.metric in LOWER_IS_BETTER else -1
        self._trial = trial
        self._reached = 0

    def should_continue(self, step: int, loss: float) -> bool:
        """Report the validation log loss of an epoch or tree; return whether the training should continue."""
        reached = int(step * self._per_round)
        if reached <= self._reached:
            return True
        self._reached = reached
        self._trial.report(self._sign * loss, reached)
        return not self._trial.should_prune()


def _open_study(settings: SearchSettings, folder: Path) -> optuna.Study:
    import optuna

    trial_state = optuna.trial.TrialState
    shared_study = settings.shared_study
    if shared_study is None:
        storage, name = optuna.storages.RDBStorage(f"sqlite:///{folder / STUDY}"), settings.key
    else:
        storage, name = shared_study.open_storage(), shared_study.name
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        direction="minimize" if settings.metric in LOWER_IS_BETTER else "maximize",
        load_if_exists=True,
        # The worst quarter at the same progress is stopped, but not in the first epoch or trees.
        pruner=optuna.pruners.PercentilePruner(
            75.0, n_startup_trials=5, n_warmup_steps=2 if _has_pace(settings) else 0
        ),
    )
    for trial in _trials_of_batch(settings, study):
        if trial.state == trial_state.RUNNING:
            study.tell(trial.number, state=trial_state.FAIL)  # from a search that was killed
    seed = settings.runtime.seed + 1_000 * settings.batch + len(study.trials)  # a resumed search draws new trials
    # Trials that other batches have begun are no good place for the next one.
    study.sampler = optuna.samplers.TPESampler(
        n_startup_trials=_RANDOM_TRIALS, seed=seed, constant_liar=shared_study is not None
    )
    return study


def _has_pace(settings: SearchSettings) -> bool:
    return bool(kind_of(settings.section.kind).tuning.pace)


def _finished_trials(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]


def _trials_of_batch(settings: SearchSettings, study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    # Another batch's trial that has only begun has no batch yet; in a file it is one of an earlier version.
    default_batch = settings.batch if settings.shared_study is None else None
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.user_attrs.get(_BATCH, default_batch) == settings.batch
    ]


def _count_ended_trials(settings: SearchSettings, study: optuna.Study) -> int:
    """Return the number of the batch's trials that ended by themselves; interrupted ones are not counted."""
    return sum(trial.value is not None or "reason" in trial.user_attrs or "seconds" in trial.user_attrs
               for trial in _trials_of_batch(settings, study))  # fmt: skip


def _is_shipped(trial: optuna.trial.FrozenTrial) -> bool:
    return bool(trial.user_attrs.get(_SHIPPED))


def _lacks_shipped(settings: SearchSettings, study: optuna.Study) -> bool:
    """Whether the declared section is to be tried.

    Batch 0 begins with it and repeats it until it is measured; any batch repeats it where its pod was killed.
    """
    shipped = [trial for trial in study.get_trials(deepcopy=False) if _is_shipped(trial)]
    if any(trial.state.name != "FAIL" for trial in shipped):
        return False
    return settings.batch == 0 or any("reason" not in trial.user_attrs for trial in shipped[-1:])


def _to_trial(trial: optuna.trial.FrozenTrial) -> Trial:
    attributes = trial.user_attrs
    measured = attributes.get("measured", {})
    return Trial(
        number=trial.number, state=_STATES[trial.state.name], shipped=_is_shipped(trial),
        changes=attributes.get("changes", {}), value=trial.value, auc=measured.get("auc"),
        gauc=measured.get("gauc"), log_loss=measured.get("log_loss"), seconds=attributes.get("seconds", 0.0),
        reason=attributes.get("reason", ""),
    )  # fmt: skip


def _outcome(settings: SearchSettings, study: optuna.Study) -> SearchOutcome:
    trials = tuple(map(_to_trial, _trials_of_batch(settings, study)))
    return SearchOutcome(model=settings.model, metric=settings.metric, trials=trials, importance=_importance(study))


def shared_importance(shared_study: SharedStudy) -> dict[str, float]:
    """Return the importance of keys by the trials of all batches; see `SearchOutcome`.

    Raises:
        ShortlistError: PostgreSQL cannot be reached.
    """
    import optuna

    with _silence_optuna(shared_study):
        return _importance(optuna.load_study(study_name=shared_study.name, storage=shared_study.open_storage()))


def _importance(study: optuna.Study) -> dict[str, float]:
    import optuna

    if len(_finished_trials(study)) < _RANDOM_TRIALS:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    try:
        return {key: float(share) for key, share in
                optuna.importance.get_param_importances(study, evaluator=evaluator).items()}  # fmt: skip
    except (RuntimeError, ValueError):  # all values are equal
        return {}


def _progress_line(settings: SearchSettings, study: optuna.Study) -> str:
    finished = _finished_trials(study)
    if not finished:
        return ""
    values = [trial.value for trial in finished if trial.value is not None]
    best = min(values) if settings.metric in LOWER_IS_BETTER else max(values)
    return f"{len(study.trials)} trials, best {TITLES[settings.metric]} {best:.4f}"


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "search.lock", timeout=0):
            yield
    except Timeout:
        raise ShortlistError(f"{folder}: another process searches here; wait for its end, or stop it") from None


@contextmanager
def _silence_optuna(location: Path | SharedStudy) -> Iterator[None]:
    """Silence Optuna's logs, and raise a `ShortlistError` for a damaged study, or one that cannot be reached."""
    import optuna

    previous_verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if not type(error).__module__.startswith(("sqlalchemy.", "optuna.")):
            raise
        reason = redact_passwords(str(error).splitlines()[0])
        if isinstance(location, SharedStudy):
            raise ShortlistError(
                f"runtime.database: the study {location.name} cannot be read or written: {reason}. Run the step again;"
                " ended trials are kept."
            ) from None
        raise ShortlistError(
            f"{location / STUDY}: cannot be read or written: {reason}. Delete it to search anew."
        ) from None
    finally:
        optuna.logging.set_verbosity(previous_verbosity)
