"""What the training benchmark says of lines that are too slow."""

from __future__ import annotations

from benchmarks.bench import Line
from benchmarks.train import too_slow


def test_a_line_below_its_bound_is_named_with_what_was_wanted() -> None:
    slow = Line("train kinds", "din", 30_000, "rows/processor s", "dlrm", 0.75)
    lines = [slow, slow._replace(name="dcn", ratio=0.8), slow._replace(name="finalnet", ratio=1.3)]
    assert too_slow(lines, {"din": 0.8, "dcn": 0.8}) == [
        "Too slow: 'din' learns 30,000 rows/processor s, 0.75 times 'dlrm'; at least 0.8 was wanted."
    ]
    assert too_slow(lines, {"din": 0.7}) == []
