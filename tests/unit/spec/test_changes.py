"""Changes of a spec's values by `--set`: in lists, with spaces and quotes, also through make."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shortlist.spec.load import SpecError, load_spec

ROOT = Path(__file__).parents[3]
MINIMAL = ROOT / "tests/specs/valid/minimal.yaml"


@pytest.mark.parametrize(
    "change",
    [
        "features.columns.0.prior=50",
        "features.columns.item_rate.prior=50",
        "features.item_rate.prior=50",
        "features.0={kind: target, key: [item_id], name: item_rate, prior: 50}",
        "name='other' features.item_rate.prior=50",
    ],
)
def test_a_list_element_is_addressed_by_position_or_name(change: str) -> None:
    (feature,) = [
        feature for feature in load_spec(MINIMAL, [change]).features.columns if "item_rate" in feature.outputs
    ]
    assert feature.model_dump()["prior"] == 50


def test_a_feature_of_several_columns_is_addressed_by_its_output() -> None:
    changed = load_spec(MINIMAL, ["features.price.clip=[0, 9]", "data.columns.price.min=0"])
    assert changed.features.columns[1].model_dump()["clip"] == (0.0, 9.0)
    assert changed.data.by_name["price"].min == 0


def test_plus_appends_to_a_list() -> None:
    feature = "features.columns.+={kind: vocabulary, each: item_id}"
    changed = load_spec(MINIMAL, [feature, "models.xgboost.features.+=item_id_id", "data.rules.allow_leak.+=price"])
    assert changed.features.names[-1] == "item_id_id"
    assert changed.models["xgboost"].model_dump()["features"] == ("*", "item_id_id")
    assert changed.data.rules.allow_leak == ("price",)


def test_one_text_holds_several_changes_and_spaces_in_values() -> None:
    text = 'gates.min_auc=0.6  data.rules.allow_leak=[price, item_id] data.source.null_values=["", "not known"]'
    changed = load_spec(MINIMAL, [text, "data.clock={kind: column, column: time, format: '%d/%m/%Y %H:%M'}"])
    assert changed.gates.min_auc == 0.6
    assert changed.data.rules.allow_leak == ("price", "item_id")
    assert changed.data.source.model_dump()["null_values"] == ("", "not known")
    assert changed.data.clock.model_dump()["format"] == "%d/%m/%Y %H:%M"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("features.item_rat.prior=5", "'features' is a list without an element 'item_rat'; did you mean 'item_rate'"),
        ("data.columns.9.type=hex", "wanted a position from 0 to 3, or one of the names user_id, item_id, price"),
        ("name.of.it=3", "'name' is no section, so it has no key 'of'"),
    ],
)
def test_an_unknown_key_is_refused_with_its_name(change: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(MINIMAL, [change])
    assert message in str(caught.value)


def test_make_passes_spaces_and_quotes_unchanged(tmp_path: Path) -> None:
    fake = tmp_path / "shortlist"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    value = """data.clock.format="%d/%m/%Y %H:%M" name='it''s'"""
    ready = ["-o", ".venv/.ready-run", "-o", ".venv-triton/.ready"]
    command = ["make", "-s", *ready, "run", f"BIN={tmp_path}", f"SET={value}", "DATA=a folder/log.csv"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    expected = ["run", "demo", "--data", "a folder/log.csv", "--set", value, "--runs", "runs"]
    assert completed.stdout.splitlines() == expected
