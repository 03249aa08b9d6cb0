"""The benchmark of `/v1/events` kills servers, and finds a lost event, and one that counts twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.targets import TARGETS

pytestmark = pytest.mark.long

PROGRAM = """
import json, sys
from pathlib import Path
from benchmarks import events
from shortlist.storage.append_log.writer import AppendLog

if sys.argv[2] == "forgetful":  # acknowledged before it is written
    append = AppendLog.append
    def forget(self, records):
        done = append(self, records[:0])
        return done
    AppendLog.append = forget
if sys.argv[2] == "twice":  # every batch is sent twice, and a reader that does not compare the events' ids
    from shortlist.collecting import live_labels
    from shortlist.serving.log.outcome_writer import OutcomeWriter
    OutcomeWriter._is_on_disk = lambda self, event: False
    request = events.http.client.HTTPConnection.request
    def twice(self, method, path, *body):
        request(self, method, path, *body)
        if method == "POST":
            self.getresponse().read()
            request(self, method, path, *body)
    events.http.client.HTTPConnection.request = twice
    live_labels.EVENT_ID = "received"
print(json.dumps([line._asdict() for line in events.measure(Path(sys.argv[1]), kills=3, batches=40)]))
"""


@pytest.mark.parametrize(("server", "survived"), [("sound", 3), ("forgetful", 0), ("twice", 0)])
def test_kills_lose_no_event_and_count_none_twice_unless_a_part_is_broken(
    tmp_path: Path, server: str, survived: int
) -> None:
    # It forks itself, so it runs in a process that has no threads.
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), server]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    entries = json.loads(done.stdout)
    asked = [target for target in TARGETS if target.program == "events"]
    assert len(asked) == 2 and all(target.select(entries) for target in asked)
    values = {entry["name"]: entry["value"] for entry in entries}
    assert values["kills survived"] == survived
    assert values["events kept on one core, in batches of 100"] > 0
