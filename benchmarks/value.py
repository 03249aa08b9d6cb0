"""Coverage of the estimators of value in small worlds whose truth is known.

A world has 400 items and 400 users. Each request has 40 candidates, those of its user; a noisy ranker orders them, and
a share of its slates of ten places is drawn by Gumbel noise. A row is clicked with the probability that its place is
examined times the attraction of its item. The lists to be valued come from other noisy rankers, whose noise is chosen
so that the list is better than the log's best order, equal to it, or 12 % worse.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from rich.table import Table
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.bench import Line, console, record
from benchmarks.targets import exit_code
from shortlist.evaluation.value.estimate import LogExtent, estimate_difference, estimate_value
from shortlist.evaluation.value.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from shortlist.evaluation.value.evidence import Floats, Ints, ValueEvidence
from shortlist.evaluation.value.reward_model import RewardModel
from shortlist.system.place_probabilities import plackett_luce_places

EXPLORATION: Final = (0.02, 0.05, 0.2)
BIAS: Final = {"weak": 0.3, "strong": 1.0}
SLATES: Final = (2_000, 20_000)
KINDS: Final = {"better": None, "equal": 1.0, "12 % worse": 0.88}
"""Value of the candidates' lists as a multiple of that of the log's best order; None: a better ranker's."""
WORLDS: Final = 100
_ITEMS, _USERS, _CANDIDATES, _PLACES = 400, 400, 40, 10
_CONFIDENCE: Final = 0.95


class Corner(NamedTuple):
    """Settings of a group of worlds."""

    exploration: float
    bias: str
    slates: int

    def __str__(self) -> str:
        return f"{self.exploration:.0%}, {self.bias}, {self.slates}"


class SmallWorld(NamedTuple):
    """Users with candidates, and the policy of the log; U users, C candidates, K places."""

    attraction_UC: Floats  # noqa: N815
    item_UC: Ints  # noqa: N815
    ranker_UC: Floats  # noqa: N815
    """Score of the log's ranker."""
    placement_UCK: Floats  # noqa: N815
    """Probability of each candidate at each place, over explored and other slates."""
    examination: Floats

    def exposure(self, places_UC: Ints) -> Floats:
        """Return the examination of the candidates' places; 0 beyond the last."""
        return np.where(places_UC < _PLACES, np.append(self.examination, 0.0)[np.minimum(places_UC, _PLACES)], 0.0)

    def value(self, scores_UC: Floats) -> float:
        """Return the expected reward of the slates in the order of scores."""
        return float((self.exposure(ranks(scores_UC)) * self.attraction_UC).sum(axis=1).mean())


def ranks(scores_UC: Floats) -> Ints:
    """Return the place of each candidate, from 0."""
    return np.argsort(np.argsort(-scores_UC, axis=1, kind="stable"), axis=1, kind="stable")


def build_small_world(corner: Corner, random: np.random.Generator) -> SmallWorld:
    """Return a world of a corner."""
    item_UC = np.stack([random.choice(_ITEMS, _CANDIDATES, replace=False) for _ in range(_USERS)])
    quality = random.normal(0, 0.8, _ITEMS)
    log_odds_UC = -1.2 + quality[item_UC] + random.normal(0, 0.3, (_USERS, 1))
    log_odds_UC = log_odds_UC + random.normal(0, 0.7, (_USERS, _CANDIDATES))
    ranker_UC = log_odds_UC + random.normal(0, 1.0, log_odds_UC.shape)
    everyone = np.arange(_CANDIDATES)
    explored_UCK = np.stack([plackett_luce_places(weights, everyone, _PLACES) for weights in np.exp(ranker_UC)])
    best_UCK = ranks(ranker_UC)[:, :, None] == np.arange(_PLACES)
    placement_UCK = corner.exploration * explored_UCK + (1 - corner.exploration) * best_UCK
    examination = (1.0 + np.arange(_PLACES)) ** -BIAS[corner.bias]
    return SmallWorld(expit(log_odds_UC), item_UC, ranker_UC, placement_UCK, examination)


def draw_candidate(small_world: SmallWorld, ratio: float | None, random: np.random.Generator) -> Floats:
    """Return the scores of a candidate whose slates are worth a multiple of the log's best order, shape (U, C)."""
    log_odds = np.log(small_world.attraction_UC / (1 - small_world.attraction_UC))
    noise = random.normal(0, 1, log_odds.shape)
    if ratio is None:
        return log_odds + 0.5 * noise
    target = ratio * small_world.value(small_world.ranker_UC)
    scale = brentq(lambda scale: small_world.value(log_odds + scale * noise) - target, 0.0, 50.0, xtol=1e-4)
    return log_odds + scale * noise


class SmallLog(NamedTuple):
    """Rows of a log; all arrays of shape (rows,), or (requests,) for the users."""

    user: Ints
    candidate: Ints
    """Number of the row's candidate among those of its user, shape (requests, K)."""
    reward: Floats


def draw_log(small_world: SmallWorld, corner: Corner, random: np.random.Generator) -> SmallLog:
    """Draw the slates of the log's policy and their clicks."""
    user = random.integers(0, _USERS, corner.slates)
    scores = small_world.ranker_UC[user]
    is_explored = random.random(corner.slates) < corner.exploration
    scores = scores + is_explored[:, None] * random.gumbel(size=scores.shape)
    candidate = np.argsort(-scores, axis=1)[:, :_PLACES]
    attraction = small_world.attraction_UC[user[:, None], candidate]
    reward = (random.random(candidate.shape) < attraction * small_world.examination).astype(float)
    return SmallLog(user, candidate, reward)


def collect_evidence(small_world: SmallWorld, log: SmallLog, lists: Mapping[str, Floats]) -> dict[str, ValueEvidence]:
    """Return the evidence on the slates of each ranker, by name; nothing but the log and the scores is read."""
    requests = log.user.size
    row_user, row_candidate = np.repeat(log.user, _PLACES), log.candidate.reshape(-1)
    place, reward = np.tile(np.arange(_PLACES), requests), log.reward.reshape(-1)
    scores = np.stack([small_world.ranker_UC, *lists.values()], axis=2)
    features_UCX = np.concatenate([scores, _item_log_odds(small_world, log)], axis=2)
    # Rows of the same user, candidate and place have the same features; they are fitted once, with their number.
    cells, cell, rows = np.unique(
        (row_user * _CANDIDATES + row_candidate) * _PLACES + place, return_inverse=True, return_counts=True
    )
    cell_user, cell_candidate = np.divmod(cells // _PLACES, _CANDIDATES)
    features, cell_place = features_UCX[cell_user, cell_candidate], cells % _PLACES
    rates = np.bincount(cell, reward) / rows
    model = RewardModel.fit(features, cell_place, rates, cell_user, _PLACES, rows.astype(float))
    examination = model.examination_K
    expected = model.expected(features, cell_user, cell_place)[cell]
    log_exposure_UC = small_world.placement_UCK @ examination
    users = np.repeat(np.arange(_USERS), _CANDIDATES)
    evidence = {}
    for name, scores_UC in lists.items():
        place_UC = ranks(scores_UC)
        exposure_UC = np.where(place_UC < _PLACES, np.append(examination, 0)[np.minimum(place_UC, _PLACES)], 0.0)
        rewards = model.expected(features_UCX.reshape(users.size, -1), users, place_UC.reshape(-1))
        expected_UC = np.where(place_UC < _PLACES, rewards.reshape(_USERS, _CANDIDATES), 0.0)
        weight_UC = np.divide(exposure_UC, log_exposure_UC, out=np.zeros_like(exposure_UC), where=log_exposure_UC > 0)
        evidence[name] = ValueEvidence(
            request=np.repeat(np.arange(requests), _PLACES),
            reward=reward,
            expected=expected,
            examination=examination[place],
            weight=weight_UC[row_user, row_candidate],
            list_expected=expected_UC.sum(axis=1)[log.user],
            list_exposure=exposure_UC.sum(axis=1)[log.user],
            user=log.user,
        )
    return evidence


def _item_log_odds(small_world: SmallWorld, log: SmallLog) -> Floats:
    """Return the log-odds of each candidate's item by the clicks of other users' folds, shape (U, C, 1)."""
    odds_UC = np.empty((_USERS, _CANDIDATES))
    rate = log.reward.mean()
    for fold in range(2):
        is_other = log.user % 2 != fold
        items = small_world.item_UC[log.user[is_other][:, None], log.candidate[is_other]]
        by_place = log.reward[is_other].mean(axis=0) / rate
        clicks = np.bincount(items.reshape(-1), log.reward[is_other].reshape(-1), _ITEMS)
        views = np.bincount(items.reshape(-1), np.broadcast_to(by_place, items.shape).reshape(-1), _ITEMS)
        rates = np.clip((clicks + 20 * rate) / (views + 20), 1e-3, 1 - 1e-3)
        users = np.arange(_USERS) % 2 == fold
        odds_UC[users] = np.log(rates / (1 - rates))[small_world.item_UC[users]]
    return odds_UC[:, :, None]


class Trial(NamedTuple):
    """Outcome of one list of a world with one estimator."""

    corner: Corner
    kind: str
    estimator: str
    is_known: bool
    covers: bool
    """Whether the interval holds the truth."""
    error: float
    """Relative error of the estimate."""
    is_held: bool
    """Whether the paired upper bound says that the list is worse than the log's best order."""
    unsupported: float


def run_world(number: int, corner: Corner) -> list[Trial]:
    """Return the outcomes of one world: a candidate of each kind with each estimator."""
    random = np.random.default_rng([number, round(1e3 * corner.exploration), len(corner.bias), corner.slates])
    small_world = build_small_world(corner, random)
    log = draw_log(small_world, corner, random)
    extent = LogExtent(days=7, explored=corner.exploration)
    trials = []
    for kind, ratio in KINDS.items():
        scores = draw_candidate(small_world, ratio, random)
        truth = small_world.value(scores)
        evidence = collect_evidence(small_world, log, {"candidate": scores, "champion": small_world.ranker_UC})
        for name, estimator in ESTIMATORS.items():
            candidate, champion = (estimator().contributions(evidence[role]) for role in ("candidate", "champion"))
            estimate = estimate_value(candidate, log.user, _CONFIDENCE, extent)
            difference = estimate_difference(candidate, champion, log.user, extent)
            assert estimate.estimate is not None
            covers = estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high
            is_held = difference.high is not None and difference.high < 0
            error = abs(estimate.estimate / truth - 1)
            trials.append(Trial(corner, kind, name, estimate.is_known, covers, error, is_held, estimate.unsupported))
    return trials


def run_worlds(corners: Iterable[Corner], worlds: int) -> list[Trial]:
    """Return the outcomes of some worlds of each corner, computed by one process per core."""
    jobs = [(number, corner) for corner in corners for number in range(worlds)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        return [trial for trials in pool.starmap(run_world, jobs, chunksize=4) for trial in trials]


def list_corners() -> list[Corner]:
    """Return all corners."""
    return [Corner(*settings) for settings in product(EXPLORATION, BIAS, SLATES)]


def build_lines(trials: Sequence[Trial]) -> list[Line]:
    """Return the figures of the results: of each corner, and of all worlds."""
    default = [trial for trial in trials if trial.estimator == DEFAULT_ESTIMATOR]
    known_trials = [trial for trial in default if trial.is_known]
    errors = {name: _median_error(trials, name) for name in ESTIMATORS}
    lines = [_line("all corners: interval holds the truth", [trial.covers for trial in known_trials])]
    lines += [
        Line("value", f"error of {DEFAULT_ESTIMATOR} against {name}", errors[DEFAULT_ESTIMATOR], "share", name,
             errors[DEFAULT_ESTIMATOR] / errors[name])
        for name in ESTIMATORS if name != DEFAULT_ESTIMATOR
    ]  # fmt: skip
    for corner in sorted({trial.corner for trial in trials}):
        rows = [trial for trial in default if trial.corner == corner]
        lines.append(_line(f"{corner}: interval holds the truth", [trial.covers for trial in rows if trial.is_known]))
        lines.append(_line(f"{corner}: value is given", [trial.is_known for trial in rows]))
        lines += [
            _line(f"{corner}: {kind} is held", [trial.is_held for trial in rows if trial.kind == kind])
            for kind in ("12 % worse", "equal")
        ]
    return lines


def _line(name: str, outcomes: Sequence[bool]) -> Line:
    return Line("value", name, float(np.mean(outcomes)) if outcomes else float("nan"), "share")


def _median_error(trials: Iterable[Trial], estimator: str) -> float:
    return float(np.median([trial.error for trial in trials if trial.estimator == estimator]))


def build_table(trials: Sequence[Trial]) -> Table:
    """Return the table of all corners: coverage, median relative errors, and lists that are held."""
    table = Table(
        "explored, bias, slates", "given", "covered", "error", "IPS", "direct", "no support", "-12 %", "equal"
    )
    for corner in sorted({trial.corner for trial in trials}):
        rows = [trial for trial in trials if trial.corner == corner]
        default = [trial for trial in rows if trial.estimator == DEFAULT_ESTIMATOR]
        shares = [
            [trial.is_known for trial in default],
            [trial.covers for trial in default if trial.is_known],
            *([trial.is_held for trial in default if trial.kind == kind] for kind in ("12 % worse", "equal")),
        ]
        given, covered, worse, equal = (f"{np.mean(outcomes):.2f}" if outcomes else "-" for outcomes in shares)
        errors = (f"{_median_error(rows, name):.3f}" for name in (DEFAULT_ESTIMATOR, "inverse_propensity", "direct"))
        unsupported = f"{np.mean([trial.unsupported for trial in default]):.3f}"
        table.add_row(str(corner), given, covered, *errors, unsupported, worse, equal)
    return table


def main() -> int:
    """Print the table of all corners and record its figures; the argument is the number of worlds of a corner."""
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS
    trials = run_worlds(list_corners(), worlds)
    console().print(build_table(trials))
    lines = build_lines(trials)
    record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
