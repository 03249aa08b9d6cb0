"""Folders of the slates that the steps of models and of ensembles evaluated."""

from pathlib import Path
from types import SimpleNamespace

from shortlist.storage.artefacts import write_json
from shortlist.training.ensembles import find_slate_folders


def test_the_slates_of_candidates_and_ensembles_are_found_by_name(tmp_path: Path) -> None:
    ensembles = SimpleNamespace(path=str(tmp_path / "ensembles"))
    (tmp_path / "ensembles").mkdir()
    write_json(tmp_path / "ensembles/ensembles.json", {"models": [{"model": "both", "role": "candidate"}]})
    slates = [
        SimpleNamespace(path=str(tmp_path / "1"), metadata={"model": "trees", "role": "candidate"}),
        SimpleNamespace(path=str(tmp_path / "2"), metadata={"model": "popularity", "role": "baseline"}),
    ]
    assert find_slate_folders(slates, ensembles) == {
        "trees": tmp_path / "1/trees", "both": tmp_path / "ensembles/both/slates/both",
    }  # fmt: skip
    assert find_slate_folders(slates, None) == {"trees": tmp_path / "1/trees"}
    assert find_slate_folders([], ensembles) == {}  # no retrieval is declared
