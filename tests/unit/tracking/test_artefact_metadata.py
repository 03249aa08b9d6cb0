from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shortlist.report.assembly import page_steps, step_records
from shortlist.tracking.artefact_metadata import read_metadata, write_metadata
from tests.kubeflow_backend.sitecustomize import encode_metadata


@pytest.mark.parametrize("store", [encode_metadata, dict], ids=["kubeflow", "kfp.local"])
@pytest.mark.parametrize(
    "value",
    [
        "candidate",
        "",
        "json:text",
        '{"a": 1}',
        12,
        0.25,
        True,
        False,
        None,
        {"name": "train", "rows": 3, "engine": None},
        ["dlrm", "dcn"],
        [],
        {},
        {"struct": {"list": [1, {"deep": [True, None]}]}},
    ],
    ids=repr,
)
def test_every_backend_returns_the_value_that_was_written(store: Any, value: Any) -> None:
    written = SimpleNamespace(metadata={})
    write_metadata(written, key=value)
    read = read_metadata(SimpleNamespace(metadata=store(written.metadata)), "key")
    assert read == value
    assert type(read) is type(value)


def test_report_reads_step_records_that_kubeflow_stored() -> None:
    written = SimpleNamespace(path="table", metadata={})
    record = {"name": "build_table", "started": "2026-01-02T03:04:05.678+00:00", "seconds": 1.5, "peak_mib": 200.1}
    write_metadata(written, step=record, rows=3)
    table = SimpleNamespace(path="table", metadata=encode_metadata(written.metadata))
    without_record = SimpleNamespace(path="log", metadata={})
    records = step_records([""], [table, without_record])
    assert records == [record]
    assert page_steps(records, "2026-01-02T03:00:00+00:00")[0].seconds == 1.5


def test_missing_key_reads_as_the_default() -> None:
    assert read_metadata(SimpleNamespace(metadata={}), "members", ()) == ()


def test_missing_key_without_a_default_is_an_error() -> None:
    with pytest.raises(KeyError, match="step"):
        read_metadata(SimpleNamespace(metadata={}), "step")
