"""All specs in tests/specs/invalid fail with the message in their first line; all valid ones parse."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import jsonschema
import pytest
import yaml

from shortlist.contracts import ShortlistError
from shortlist.spec.base import Section
from shortlist.spec.data import Data
from shortlist.spec.load import SpecError, canonical_json, digest, load_spec, parse_spec
from shortlist.spec.models import model_sections
from shortlist.spec.spec import Spec

ROOT = Path(__file__).parents[3]
INVALID = sorted((ROOT / "tests/specs/invalid").glob("*.yaml"))
VALID = sorted([*(ROOT / "pipelines/specs").glob("*.yaml"), *(ROOT / "tests/specs/valid").glob("*.yaml")])


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_an_invalid_spec_is_refused_with_the_expected_message(path: Path) -> None:
    expected = path.read_text().splitlines()[0].removeprefix("# ")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.fixture(scope="module")
def schema() -> jsonschema.protocols.Validator:
    """Validator of the spec's JSON Schema, built once, which takes two seconds."""
    json_schema = Spec.model_json_schema()
    validator_class = jsonschema.validators.validator_for(json_schema)
    validator_class.check_schema(json_schema)
    return validator_class(json_schema)


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_valid_spec_parses_and_agrees_with_the_schema(path: Path, schema: jsonschema.protocols.Validator) -> None:
    schema.validate(load_spec(path).model_dump(mode="json"))


def test_a_missing_spec_is_refused_with_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text("")
    with pytest.raises(SpecError, match=r"no such spec; did you mean 'demo\.yaml'"):
        load_spec(tmp_path / "dem.yaml")


def test_every_field_has_a_description() -> None:
    def all_subclasses(section: type[Section]) -> set[type[Section]]:
        return {section}.union(*(all_subclasses(subclass) for subclass in section.__subclasses__()))

    undescribed = [
        f"{section.__name__}.{name}"
        for section in all_subclasses(Section)
        for name, field in section.model_json_schema()["properties"].items()
        if not field.get("description", "").strip()
    ]
    assert undescribed == []


def test_the_docstring_below_a_field_is_its_description() -> None:
    class DescribedSection(Section):
        first: int = 1
        """One line."""
        second: Literal["a"] = "a"
        third: int = 3
        """Two lines,
        of which this is the second."""

    class DerivedSection(DescribedSection):
        third: int = 4
        fourth: DescribedSection = DescribedSection()
        """A section."""

    description_by_name = {
        name: field.get("description") for name, field in DerivedSection.model_json_schema()["properties"].items()
    }
    two = "Two lines,\nof which this is the second."
    assert description_by_name == {"first": "One line.", "second": None, "third": two, "fourth": "A section."}


def test_all_disagreements_between_sections_are_listed_at_once() -> None:
    text = (ROOT / "tests/specs/valid/minimal.yaml").read_text()
    text = text.replace("each: price", "each: prise").replace('features: ["*"]', "features: [hour]")
    text += "gates: {baseline: trees, slices: [prize]}\nmonitoring: {drift: {ignore: [userid]}}\n"
    text += "tune: {models: {xgbost: {}}}\nordering: {}\n"
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    header, *lines = str(caught.value).splitlines()
    assert header == "spec: 7 problem(s)"
    assert [line.split(": ")[0].strip() for line in lines] == [
        "ordering", "features", "models.xgboost.features", "gates.baseline", "tune.models.xgbost",
        "monitoring.drift.ignore", "gates.slices",
    ]  # fmt: skip


def test_an_unknown_key_hides_no_disagreement_between_sections() -> None:
    text = (ROOT / "tests/specs/valid/minimal.yaml").read_text()
    text = text.replace("kind: xgboost", "kind: xgboost, round: 3") + "gates: {baseline: trees, min_acu: 0.6}\n"
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    problems = [line.split(": ")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert problems == ["models.xgboost.round", "gates.min_acu", "gates.baseline"]
    invalid = text.replace("round: 3", "rounds: many")  # a section without a valid value agrees with nothing
    with pytest.raises(SpecError, match=r"^spec: 2 problem"):
        parse_spec(invalid)


def test_a_typo_in_the_settings_of_a_gate_suggests_a_key_of_that_gate() -> None:
    text = (ROOT / "tests/specs/valid/minimal.yaml").read_text()
    with pytest.raises(SpecError, match=r"unknown_values\.max_shft: unknown key; did you mean 'max_shift'\?"):
        parse_spec(text + "gates: {custom: {unknown_values: {max_shft: 0.2}}}\n")


def test_all_faults_of_slices_queries_and_gates_settings_are_listed_at_once() -> None:
    text = (ROOT / "tests/specs/valid/minimal.yaml").read_text()
    sql = {"a": "SELECT avg(prize) FROM test_rows", "b": "SELECT 1, 2", "c": "SELECT 1"}
    queries = {name: {"sql": query, "min": 1} for name, query in sql.items()}
    gates: dict[str, object] = {"slices": ["prize", {"where": "prise > 3", "min_auc": 0.6}], "queries": queries}
    expected = ["gates.slices: 'prize'", "gates.slices: 'prise > 3'", "gates.queries.a: Binder", "gates.queries.b: the"]
    with pytest.raises(SpecError) as caught:
        parse_spec(text + yaml.safe_dump({"gates": gates}))
    assert [" ".join(line.split()[:2]) for line in str(caught.value).splitlines()[1:]] == [
        " ".join(line.split()[:2]) for line in expected
    ]
    # Faults of other sections, and of other keys of this one, hide none of them.
    del queries["c"]["min"]
    gates |= {"min_auc": "high", "custom": {"unknown_values": {"max_shft": 0.2}, "retrievl": {}}}
    with pytest.raises(SpecError) as caught:
        parse_spec(text + yaml.safe_dump({"gates": gates, "serving": {"max_rows": "all"}}))
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert {line.split(": ")[0] for line in lines} == {
        "gates.min_auc", "gates.queries.c", "gates.custom.unknown_values.max_shft", "gates.custom.retrievl",
        "serving.max_rows", "gates.slices", "gates.queries.a", "gates.queries.b",
    }  # fmt: skip
    assert len(lines) == 9 and all(any(line.startswith(start) for line in lines) for start in expected)
    with pytest.raises(SpecError, match=r"^spec: 1 problem"):  # without sound columns nothing is said of them
        parse_spec(text.replace("label:", "labels: [x]\n  label:") + yaml.safe_dump({"gates": {"slices": ["prize"]}}))


def test_equal_declarations_have_equal_digests() -> None:
    text = (ROOT / "tests/specs/valid/minimal.yaml").read_text()
    reordered = yaml.safe_dump(yaml.safe_load(text), sort_keys=True)
    changed = text.replace("log: true", "log: false")
    assert digest(parse_spec(text)) == digest(parse_spec(reordered))
    assert digest(parse_spec(text)) != digest(parse_spec(changed))


@pytest.mark.parametrize(
    ("declared", "workers", "refits"),
    [
        ("", "", True),
        ("", "{xgboost: {nodes: 2}}", False),  # workers keep no scores from before, which blends are fitted on
        (", refit: true", "{xgboost: {nodes: 2}}", True),
        (", refit: false", "", False),
    ],
)
def test_trees_are_refitted_by_default_only_without_workers(declared: str, workers: str, refits: bool) -> None:
    text = (ROOT / "tests/specs/valid/minimal.yaml").read_text()
    text = text.replace("kind: xgboost, ", f"kind: xgboost{declared}, ")
    text += f"runtime: {{cluster: {{workers: {workers}}}}}\n" if workers else ""
    spec = parse_spec(text)
    assert spec.models["xgboost"].model_dump()["refit"] is refits
    assert parse_spec(canonical_json(spec)) == spec


def test_a_section_survives_its_canonical_json() -> None:
    spec = load_spec(ROOT / "tests/specs/valid/minimal.yaml")
    assert Data.model_validate_json(canonical_json(spec.data)) == spec.data


def test_a_range_of_names_is_expanded() -> None:
    text = (
        (ROOT / "tests/specs/valid/minimal.yaml")
        .read_text()
        .replace("name: price", "name: 'p{1..3}'")
        .replace("each: price", "each: 'p{1..3}'")
    )
    spec = parse_spec(text)
    assert [name for name in spec.features.names if name.startswith("p")] == ["p1_number", "p2_number", "p3_number"]


def test_single_values_of_a_spec_can_be_changed_from_outside() -> None:
    path = ROOT / "tests/specs/valid/minimal.yaml"
    changed = load_spec(path, ["gates.min_auc=0.6", "serving.canary.steps=[50, 100]"])
    assert changed.gates.min_auc == 0.6
    assert changed.serving.canary.steps == (50, 100)
    assert changed.data == load_spec(path).data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("gates.min_auc", "wanted key.of.section=value"),
        ("gates.min_ac=0.6", "unknown key; did you mean 'min_auc'"),
        ("rules.min_volume_ratio=0", "rules: unknown key; did you mean data.rules or "),
        ("models.xgboost.features=['*_log']", "models.xgboost.features: no feature matches '*_log'"),
        ("name.of=3", "'name' is no section"),
        ("gates.min_auc=[", "is not a YAML value"),
        ("gates.min_auc=7", "less than or equal to 1"),
    ],
)
def test_an_invalid_change_is_refused_with_the_reason(change: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(ROOT / "tests/specs/valid/minimal.yaml", [change])
    assert message in str(caught.value)


def test_baselines_are_added_where_none_of_their_kind_is_declared() -> None:
    models = load_spec(ROOT / "tests/specs/valid/minimal.yaml").models
    assert {name: (model.kind, model.role) for name, model in models.items()} == {
        "xgboost": ("xgboost", "candidate"),
        "logistic": ("logistic", "baseline"),
        "popularity": ("popularity", "baseline"),
    }
    assert models["logistic"].reads == models["xgboost"].reads


def test_several_models_of_a_kind_have_different_names() -> None:
    spec = load_spec(ROOT / "tests/specs/valid/several_of_a_kind.yaml")
    kinds = {name: model.kind for name, model in spec.models.items()}
    assert kinds == {
        "shallow": "xgboost", "deep": "xgboost", "earlier": "xgboost", "popular": "popularity", "logistic": "logistic",
    }  # fmt: skip
    assert spec.reference_baseline == "earlier"
    spec_without_gates = parse_spec(
        (ROOT / "tests/specs/valid/several_of_a_kind.yaml").read_text(), changes=["gates={}"]
    )
    assert spec_without_gates.reference_baseline == "popular"


def test_the_schema_requires_the_kind_of_a_model() -> None:
    schema = Spec.model_json_schema()["$defs"]["XGBoostModel"]
    declared = {"kind": "xgboost", "features": ["*"]}
    jsonschema.validate(declared, schema)
    with pytest.raises(jsonschema.ValidationError, match="'kind' is a required property"):
        jsonschema.validate({"features": ["*"]}, schema)


def test_a_missing_model_registry_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "models.registry", None)
    with pytest.raises(ShortlistError, match=r"no module models\.registry on Python's path; run from the root"):
        model_sections()


def test_a_column_that_no_candidate_has_of_its_own_gives_a_notice() -> None:
    (notice,) = load_spec(ROOT / "pipelines/specs/demo.yaml", ["retrieval.item_columns=[]"]).notices
    assert notice.startswith("retrieval: features read 'duration', of which a request for recommendations sends one")
    both = "retrieval.item_columns: 'device' is in retrieval.context too"
    with pytest.raises(ShortlistError, match=both):
        load_spec(ROOT / "pipelines/specs/demo.yaml", ["retrieval.item_columns=[device]"])


def test_a_feature_that_no_candidate_reads_gives_a_notice() -> None:
    demo = ROOT / "pipelines/specs/demo.yaml"
    (notice,) = load_spec(demo, ["models.logistic.role=baseline"]).notices
    assert notice.startswith("features: no candidate reads 'user_last_watch', computed, stored and compared in every")
    declared = [
        'features.columns.+={"kind": "target", "key": "device", "name": "quota", "prior": 10}',
        'features.columns.+={"kind": "expression", "name": "surplus", "value": "LN(1 + features.quota)"}',
    ]
    (notice,) = load_spec(demo, ["models.logistic.role=baseline", *declared]).notices
    assert "no candidate reads 'user_last_watch', 'quota', 'surplus', computed" in notice
    names = '["user_last_watch", "surplus"]'  # what a read expression reads is read
    assert load_spec(demo, [f"models.logistic.features={names}", *declared]).notices == ()


def test_a_seen_filter_on_a_cluster_gives_a_notice() -> None:
    demo = ROOT / "pipelines/specs/demo.yaml"
    assert load_spec(demo).notices == ()
    cluster = (
        'runtime={"profile": "cluster", "target": "kserve", "objects": {"kind": "bucket", "url": "s3://models/demo"}}'
    )
    assert load_spec(demo, [cluster]).notices == ()
    seen_filter = 'filters.rules.+={"kind": "seen", "window": "7d"}'
    assert load_spec(demo, [seen_filter]).notices == ()
    (notice,) = load_spec(demo, [cluster, seen_filter]).notices
    assert notice.startswith("filters.rules.1: 'seen' removes what a user was shown, and a server of target: kserve")
