"""A run that has no digest of its log beforehand, because the clock started it."""

from __future__ import annotations

from shortlist.training.continued_training import _reads_same_log


def test_it_never_takes_an_earlier_model_for_one_of_the_same_log() -> None:
    assert _reads_same_log({"data_digest": "0123/table"}, "0123", "")
    assert not _reads_same_log({"data_digest": "0123/table"}, "", "")
    assert not _reads_same_log({"data_digest": "/table"}, "", "")
