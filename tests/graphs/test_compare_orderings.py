"""`shortlist compare-orderings` on a finished run: formulas are evaluated only on the validation days."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shortlist.cli.commands import app
from shortlist.cli.compare_orderings import declared_orderings, read_lines, run_folders, scoring_model
from shortlist.contracts import Files, ShortlistError
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.spec.split import split_days
from shortlist.storage.tables import DayTable
from shortlist.training.tuning.ordered_model import RunFolders
from shortlist.training.tuning.orderings import DeclaredOrdering, compare_orderings

pytestmark = pytest.mark.long

POPULAR, UNPOPULAR = "0 - rank_of_popular", "rank_of_popular"
STAGES: dict[str, Any] = {
    "retrieval": {"candidates": 100, "sources": {"popular": {"kind": "popular", "window_days": None}}},
    "ordering": {"value": POPULAR, "explore": {"kind": "epsilon", "epsilon": 1.0}},
}


@pytest.fixture
def declared(finished: Any) -> Spec:
    return parse_spec(yaml.safe_dump({**finished.spec, **STAGES}))


def declare(spec: Spec, lines: list[str]) -> list[DeclaredOrdering]:
    return declared_orderings(
        spec, lambda text: parse_spec(yaml.safe_dump(spec.model_dump(mode="json")), "", [text]), lines
    )


def test_lines_are_formulas_or_changes_of_the_section(declared: Spec) -> None:
    orderings = declare(declared, ["score", "ordering.explore.epsilon=0.5 ordering.value=score+1"])
    assert [ordering.ordering.value for ordering in orderings] == [POPULAR, "score", "score+1"]
    assert orderings[2].ordering.explore.epsilon == 0.5


def without_test_days(folders: RunFolders, spec: Spec, folder: Path) -> RunFolders:
    """The same log, the files of whose test days are gone."""
    shutil.copytree(folders.log, folder)
    log = DayTable.open(folder, Files.LOG)
    test = split_days(log.rows_by_day, spec.data).test
    for path in log.paths(frozenset(test)):
        path.unlink()
    return folders._replace(log=folder)


def test_formulas_are_compared_without_a_row_of_a_test_day(declared: Spec, finished: Any, tmp_path: Path) -> None:
    folders = without_test_days(run_folders(declared, finished.runs, "demo", None), declared, tmp_path / "log")
    (tmp_path / "scratch").mkdir()
    comparison = compare_orderings(
        declared, "xgboost", declare(declared, [UNPOPULAR, "score"]), folders, tmp_path / "scratch"
    )
    log = DayTable.open(folders.log, Files.LOG)
    split = split_days(log.rows_by_day, declared.data)
    assert comparison.days == tuple(day.isoformat() for day in split.validation)
    popular, unpopular, _ = comparison.orderings
    # What is popular is shown and taken: the order of the ranks, and not the declared exploration, is what is measured.
    assert popular.lead is None and popular.ndcg_at_10 > 2 * unpopular.ndcg_at_10  # this world shows what is popular
    assert popular.value is not None and popular.value.low is not None and popular.value.high is not None
    assert popular.truth is not None and popular.value.low <= popular.truth <= popular.value.high
    assert unpopular.lead is not None and not comparison.problem


def test_the_command_prints_the_best_first_and_refuses_a_formula_that_does_not_fit(
    finished: Any, tmp_path: Path
) -> None:
    written, formulas = tmp_path / "small.yaml", tmp_path / "formulas.txt"
    written.write_text(yaml.safe_dump({**finished.spec, **STAGES}))
    command = ["compare-orderings", str(written), str(formulas), "--runs", str(finished.runs)]
    formulas.write_text(f"# worse\n{UNPOPULAR}\n")
    invocation = CliRunner().invoke(app, command)
    assert invocation.exit_code == 0, invocation.output
    printed = invocation.output.splitlines()
    (heading,) = (number for number, line in enumerate(printed) if "minus the declared" in line)
    lines = printed[heading + 1 : heading + 3]
    assert [line.split()[-1] for line in lines] == ["rank_of_popular", "rank_of_popular"]
    assert sum("declared" in line for line in lines) == 1
    formulas.write_text("score * prize\n")
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, ShortlistError)
    wrong = "ordering: 'score * prize' reads 'prize', which is no column of candidates"
    assert str(refused.exception).startswith(wrong)


def test_a_file_without_a_formula_and_an_unknown_model_are_refused(declared: Spec, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing yet\n\n")
    with pytest.raises(ShortlistError, match=r"empty\.txt: has no formula; wanted one a line"):
        read_lines(tmp_path / "empty.txt")
    with pytest.raises(ShortlistError, match=r"none\.txt: cannot be read"):
        read_lines(tmp_path / "none.txt")
    with pytest.raises(ShortlistError, match="no model is called 'xgbost'; did you mean 'xgboost'"):
        scoring_model(declared, "xgbost")


def test_what_cannot_be_ordered_is_refused(finished: Any, declared: Spec, tmp_path: Path) -> None:
    bare = parse_spec(yaml.safe_dump(finished.spec))
    with pytest.raises(ShortlistError, match="declares no retrieval"):
        compare_orderings(bare, "xgboost", declare(bare, []), run_folders(bare, finished.runs, "demo", None), tmp_path)
    with pytest.raises(ShortlistError, match="wrote a feature table here"):
        run_folders(declared, tmp_path, "demo", None)
