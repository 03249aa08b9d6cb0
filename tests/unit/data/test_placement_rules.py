"""Propensities, positions, policies and randomised rows of a log are checked before anything is learnt from them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Columns, DataError
from shortlist.data.rules import table_rules
from shortlist.data.rules.log_facts import LogFacts
from shortlist.data.rules.placement_rules import propensities_sum_to_one

NOON = 1_704_110_400  # 2024-01-01 12:00 UTC
DAY = 86_400
COLUMNS = [
    {"name": "item_id", "type": "integer"},
    {"name": "place", "type": "integer", "known": "after"},
    {"name": "chance", "type": "number", "known": "after"},
    {"name": "who", "type": "string", "known": "after", "allowed": ["v1", "v2"]},
    {"name": "drawn", "type": "integer", "known": "after"},
    {"name": "click", "type": "integer"},
]
ROLES = {"item": "item_id", "position": "place", "propensity": "chance", "policy": "who", "randomized": "drawn"}
RULES = {"max_quarantined_share": 1, "max_duplicate_share": 1, "min_rows": 1, "max_volume_ratio": 1e9}
SPLIT = {"warmup_days": 0, "validation_days": 1, "test_days": 1}
ITEMS = 50
Rows = list[tuple[object, ...]]


@pytest.fixture
def judge_rows(
    tmp_path: Path, declare: Callable[..., Any], judge: Callable[..., Any]
) -> Callable[[Rows], list[tuple[str, str]]]:
    """Validate rows (item, place, chance, who, drawn) beside good ones; return the rule and detail of refused rows."""

    def judge_log(rows: Rows) -> list[tuple[str, str]]:
        good = [(item, 1, 0.5, "v1", 0) for item in range(4)]
        lines = [
            ",".join(str(value) for value in (NOON + DAY * day + number, *row, number % 2))
            for day, day_rows in enumerate(([*good, *rows], good, good, good))
            for number, row in enumerate(day_rows)
        ]
        header = "time,item_id,place,chance,who,drawn,click"
        (tmp_path / "log.csv").write_text("\n".join([header, *lines]) + "\n")
        rules = {**RULES, "min_volume_ratio": 0, "max_label_rate_change": 1}
        _, quarantined, _ = judge(declare(COLUMNS, rules=rules, split=SPLIT, **ROLES), tmp_path / "log.csv")
        return list(zip(quarantined["rule"], quarantined["detail"], strict=True))

    return judge_log


@pytest.mark.parametrize(
    ("row", "rule", "detail"),
    [
        ((7, 1, 0, "v1", 0), "propensity", "chance: got '0.0', wanted a probability above 0 and at most 1"),
        ((7, 1, 1.5, "v1", 0), "propensity", "chance: got '1.5', wanted a probability above 0 and at most 1"),
        ((7, 0, 0.5, "v1", 0), "position_from_1", "place: got '0', wanted a place, from 1"),
        ((7, 1, 0.5, "v3", 0), "allowed_value", "who: got 'v3', wanted one of v1, v2"),
        ((7, 1, 0.5, "", 0), "policy_of_propensity", "who: got nothing, wanted the policy of the propensity"),
        ((7, 1, 0.5, "v1", 2), "randomized", "drawn: got '2', wanted 0 or 1"),
    ],
)
def test_a_row_that_cannot_be_true_is_quarantined(
    judge_rows: Callable[[Rows], list[tuple[str, str]]], row: tuple[object, ...], rule: str, detail: str
) -> None:
    assert judge_rows([row, (8, 2, 1, "v2", 1), (9, "", "", "", "")]) == [(rule, detail)]


def _random_rows(chance: float) -> Rows:
    items = np.random.default_rng(1).integers(0, ITEMS, 400)
    return [(int(item), 1, chance, "v1", 1) for item in items]


def test_uniform_propensities_sum_to_1(judge_rows: Callable[[Rows], list[tuple[str, str]]]) -> None:
    assert judge_rows(_random_rows(1 / ITEMS)) == []


@pytest.mark.parametrize(("chance", "total"), [(0.2, "10"), (0.001, "0.15")])
def test_propensities_that_do_not_sum_up_stop_the_run(
    judge_rows: Callable[[Rows], list[tuple[str, str]]], chance: float, total: str
) -> None:
    with pytest.raises(DataError, match=r"propensities do not sum up: on 2024-01-01, those of all items at place 1"):
        judge_rows(_random_rows(chance))


def test_slates_of_our_servers_for_each_user_are_not_summed(
    declare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user's own item is likely for that user alone, so that the propensities of all items sum to many."""
    shown = {Columns.DAY: date(2024, 1, 1), "place": 1, "chance": 0.8, "drawn": 1}
    served = [{**shown, "item_id": number % 20} for number in range(400)]
    monkeypatch.setattr(table_rules, "TABLE_RULES", (propensities_sum_to_one,))
    data = declare(COLUMNS, rules=RULES, split=SPLIT, **ROLES)
    of_files, of_all = _facts([{**shown, "item_id": 1, "chance": 1.0}] * 400), _facts(served)
    assert table_rules.find_log_problems(of_all, of_files, data) == ([], [])
    problems, sentences = table_rules.find_log_problems(of_all, of_all, data)  # the same rows in files
    assert ([problem.rule for problem in problems], sentences) == (["propensities_sum_to_one"], [])


def _facts(rows: list[dict[str, Any]]) -> LogFacts:
    sample = SimpleNamespace(rows=lambda: pl.DataFrame(rows))
    return cast(LogFacts, SimpleNamespace(profile=SimpleNamespace(rows=len(rows), sample=sample)))


def test_randomised_rows_of_one_item_stop_the_run(judge_rows: Callable[[Rows], list[tuple[str, str]]]) -> None:
    with pytest.raises(
        DataError, match=r"all rows with 'drawn' = 1 are of item_id 7; slates that were drawn at random"
    ):
        judge_rows([(7, 1, 1, "v1", 1)] * 3)
