from datetime import date

import pytest

from shortlist.contracts import DataError
from shortlist.features.declared.split import split_days
from shortlist.spec.data import Split

DAYS = [date(2026, 3, day) for day in range(1, 9)]


def test_the_last_days_are_for_test_and_the_first_days_for_warm_up() -> None:
    split = split_days(reversed(DAYS), Split(warmup_days=2, validation_days=1, test_days=2))
    assert (split.warmup, split.train) == (tuple(DAYS[:2]), tuple(DAYS[2:5]))
    assert (split.validation, split.test) == (tuple(DAYS[5:6]), tuple(DAYS[6:]))
    assert split.fitted_on == tuple(DAYS[:5])


def test_notes_are_iso_dates() -> None:
    notes = split_days(DAYS[:3], Split(warmup_days=0)).notes()
    assert notes == {"warmup": [], "train": ["2026-03-01"], "validation": ["2026-03-02"], "test": ["2026-03-03"]}


@pytest.mark.parametrize("days", [0, 1, 4])
def test_a_log_without_a_day_to_train_on_is_refused(days: int) -> None:
    with pytest.raises(
        DataError, match=rf"the log has {days} day\(s\); 2 to warm up, 1 to tune and 1 to test need at lea"
    ):
        split_days(DAYS[:days], Split(warmup_days=2))
