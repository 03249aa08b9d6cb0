from datetime import date

import pytest

from shortlist.contracts import DataError
from shortlist.spec.data import Data
from shortlist.spec.split import SplitDays, split_days

DAYS = [date(2026, 3, day) for day in range(1, 9)]


def declare(split: dict[str, int], **rules: float) -> Data:
    clock, columns = {"kind": "column", "column": "time", "unit": "s"}, [{"name": "click", "type": "integer"}]
    declared = {"source": {"kind": "files"}, "clock": clock, "label": "click", "columns": columns}
    return Data.model_validate({**declared, "split": split, "rules": rules})


def split_rows(*rows: int, rules: dict[str, float] | None = None, **split: int) -> SplitDays:
    return split_days(dict(zip(DAYS, rows, strict=False)), declare(split, **(rules or {})))


def test_the_last_days_are_for_test_and_the_first_days_for_warm_up() -> None:
    rows_by_day = dict.fromkeys(reversed(DAYS), 100)
    split = split_days(rows_by_day, declare({"warmup_days": 2, "validation_days": 1, "test_days": 2}))
    assert (split.warmup, split.train) == (tuple(DAYS[:2]), tuple(DAYS[2:5]))
    assert (split.validation, split.test) == (tuple(DAYS[5:6]), tuple(DAYS[6:]))
    assert split.fitted_on == tuple(DAYS[:5])


def test_notes_are_iso_dates() -> None:
    notes = split_rows(9, 9, 9, warmup_days=0).notes()
    assert notes == {"warmup": [], "train": ["2026-03-01"], "validation": ["2026-03-02"], "test": ["2026-03-03"]}


def test_a_newest_day_of_a_few_rows_is_tested_with_the_day_before() -> None:
    split = split_rows(100, 100, 100, 100, 100, 8)
    assert (split.test, split.validation) == (tuple(DAYS[4:6]), (DAYS[3],))
    assert split_rows(100, 100, 100, 100, 100, 20).test == (DAYS[5],)  # 0.2 of the median day
    assert split_rows(100, 100, 100, 100, 100, 8, rules={"min_volume_ratio": 0.0}).test == (DAYS[5],)


def test_a_short_day_before_the_test_days_is_validated_on_with_the_day_before() -> None:
    split = split_rows(100, 100, 100, 100, 8, 100)
    assert (split.test, split.validation, split.train) == ((DAYS[5],), tuple(DAYS[3:5]), tuple(DAYS[1:3]))


def test_days_of_less_traffic_than_before_are_tested_together() -> None:
    assert split_rows(100, 100, 100, 100, 100, 10, 10, 10).test == tuple(DAYS[6:8])


def test_a_weekday_with_fewer_rows_than_the_others_is_tested_alone() -> None:
    days = [date(2026, 3, 2 + number) for number in range(21)]  # Monday to Sunday, three times
    rows_by_day = {day: {5: 150, 6: 120}.get(day.weekday(), 1_000) for day in days}
    declared = declare({"warmup_days": 1, "validation_days": 1, "test_days": 1})
    split = split_days(rows_by_day, declared)
    assert (split.validation, split.test) == ((days[-2],), (days[-1],))
    assert split_days(rows_by_day | {days[-1]: 20}, declared).test == tuple(days[-2:])


def test_a_day_is_left_to_train_on_and_to_validate_on_however_few_rows_the_last_ones_have() -> None:
    split = split_rows(100, 100, 100, 0, 0)
    assert (split.warmup, split.train, split.validation) == ((DAYS[0],), (DAYS[1],), (DAYS[2],))
    assert split.test == tuple(DAYS[3:5])


@pytest.mark.parametrize("days", [0, 1, 4])
def test_a_log_without_a_day_to_train_on_is_refused(days: int) -> None:
    with pytest.raises(
        DataError, match=rf"the log has {days} day\(s\); 2 to warm up, 1 to tune and 1 to test need at lea"
    ):
        split_rows(*[100] * days, warmup_days=2)
