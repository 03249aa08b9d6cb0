"""The last lines of a finished run: what was trained, how good it is, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from models.base import DeclaredModel
from models.registry import kind_of
from shortlist.contracts import Files
from shortlist.evaluation.records import LOW_IS_GOOD, TITLES, Metric

_TUNE: Final = "make tune SPEC={spec} MODEL={model} MINUTES=10"
_CHECK: Final = ".venv/bin/shortlist check {spec}{log}"
_WIDEST: Final = 80
"""Characters of a command with a text beside it."""
_READS_LOG: Final = frozenset(("ingest", "ingest_files", "join_raw_log", "validate", "validate_days", "join_valid_log"))
_ADVICE: Final = {
    "data": (_CHECK, "list what is wrong with the log; then give more rows, or SET=data.split.test_days="),
    "skew": ("{page}#features", "the rows whose features differ between training and Feast"),
    "absolute": (_TUNE, "search for better settings; rates of pairs help most (docs/tutorial-ml-engineer.md)"),
    "champion": (_TUNE, "search for better settings; the champion keeps serving"),
    "calibration": ("{again} SET=models.{model}.calibration=isotonic", "fit a calibration on the validation days"),
    "slices": ("{page}#slices", "the slices that are behind, with their rows"),
    "labels": ("{page}#gates", "the further labels that are behind"),
    "retrieval": ("{again} SET=retrieval.candidates={more}", "twice as many candidates; or add a source"),
    "slates": ("{page}#candidates", "the stages; then change ordering.value or ordering.diversity"),
    "infra": ("{again}", "measure again on an idle machine, or declare the limits you need in gates.infra"),
    "parity": ("{page}#gates", "the differences between training, the exported graph and Triton"),
    "integrity": ("{again}", "write the files again"),
}
"""By the gate that holds the best candidate: a command or a place, and what it is for."""


def next_steps(run: Path, asked: str, page: Path) -> str:
    """Return what a run made, how good it is beside the best baseline, and commands that go on from there.

    Args:
        run: The run's folder.
        asked: What the user calls the spec, a name or a path; empty: the spec's name.
        page: The run's page, as the user reaches it.
    """
    summary = json.loads((run / Files.SUMMARY).read_text())
    given, best = _given(run), _best_of(summary, "candidate")
    trained = sorted(name for name, model in summary["models"].items() if model.get("role") != "champion")
    lines = [f"Trained: {', '.join(trained) or 'no model'}. Features are in Feast, runs and models in MLflow."]
    lines += filter(None, (_quality(summary, best), _slates(summary)))
    commands = _commands(summary, best, asked or summary["spec"], given, page)
    width = max((len(command) for command, _ in commands if len(command) <= _WIDEST), default=0)
    return "\n".join([*lines, "Next:", *(_command(command, what, width) for command, what in commands)])


def _command(command: str, what: str, width: int) -> str:
    """Return a command with what it is for beside it; below it, where the command is long."""
    between = "   " if len(command) <= width else f"\n  {'':<{width}}   "
    return f"  {command:<{width}}{between}{what}"


def after_failure(run: Path, asked: str, failed: Collection[str]) -> str:
    """Return the command that lists all problems of a log at once, where a step stopped at one; empty elsewhere.

    Args:
        run: The run's folder.
        asked: What the user calls the spec; empty where the run is not of the whole log.
        failed: Names of the steps that stopped with a message.
    """
    if not asked or not _READS_LOG & set(failed):
        return ""
    location = _given(run).get("log", {}).get("location")
    command = _CHECK.format(spec=asked, log=f" --data {location}" if location else "")
    return f"A run stops at its first problem; this lists those of the log at once: {command}"


def _given(run: Path) -> dict[str, Any]:
    arguments = run / "arguments.json"
    return json.loads(arguments.read_text()) if arguments.is_file() else {}


def _best_of(summary: Mapping[str, Any], role: str) -> str:
    """Return the blessed model, else the model of a role that is best by the deciding metric; empty without any."""
    if role == "candidate" and summary["blessed"]:
        return str(summary["blessed"]["model"])
    metric = _metric(summary)
    sign = -1 if metric in LOW_IS_GOOD else 1
    values = {
        name: sign * model[metric]
        for name, model in summary["models"].items()
        if model.get("role", "candidate") == role and model.get(metric) is not None
    }
    return max(values, key=lambda name: values[name], default="")


def _metric(summary: Mapping[str, Any]) -> Metric:
    """Return what decides; of a run that stopped before the gates, the AUC."""
    return summary.get("metric") or "auc"


def _quality(summary: Mapping[str, Any], best: str) -> str:
    compared = _beside_baseline(summary, best)
    if compared is None:
        return ""
    baseline, metric, ours, theirs = compared
    state = f"blessed as version {summary['blessed']['version']}" if summary["blessed"] else "held"
    return (
        f"Quality: {best} ({state}) has a test {TITLES[metric]} of {ours:.4f}, against {theirs:.4f} of '{baseline}',"
        f" the best baseline ({ours - theirs:+.4f})."
    )


def _slates(summary: Mapping[str, Any]) -> str:
    """Return how good the slates are, beside those of the best source and, where it is known, the best possible."""
    found = [one for one in summary.get("stages", ()) if one["ndcg_at_10"] is not None]
    shown = next((one["ndcg_at_10"] for one in found if one["stage"] == "ordering" and one["source"] is None), None)
    if shown is None:
        return ""
    beside = []
    if possible := next((one["ndcg_at_10"] for one in found if one["stage"] == "best_possible"), None):
        beside.append(f"{shown / possible:.0%} of the best possible ({possible:.4f})")
    sources = [one for one in found if one["stage"] == "retrieval" and one["source"]]
    if source := max(sources, key=lambda one: one["ndcg_at_10"], default=None):
        beside.append(f"{source['ndcg_at_10']:.4f} of '{source['source']}', the best single source")
    return f"{'; '.join([f'Slates: nDCG@10 of what users see is {shown:.4f}', *beside])}."


def _commands(
    summary: Mapping[str, Any], best: str, spec: str, given: Mapping[str, Any], page: Path
) -> list[tuple[str, str]]:
    location = given.get("log", {}).get("location")
    again = f"make run SPEC={spec}" + (f" DATA={location}" if location else "")
    ui = "make ui", "every run, curve and model in MLflow"
    if not summary["blessed"]:
        holding = next((one["name"] for one in summary["gates"] if one["model"] == best and not one["passed"]), "")
        command, what = _ADVICE.get(holding, (_CHECK, "check the spec again, and list what is wrong"))
        candidates = _section(given.get("retrieval")).get("candidates", 500)
        values = {"spec": spec, "log": f" --data {location}" if location else "", "model": best, "page": page}
        advised = command.format(**values, again=again, more=2 * candidates)
        return [(advised, f"gate '{holding}': {what}" if holding else what), ui, (again, _AGAIN)]
    stages = bool(summary.get("stages"))
    serve = f"make serve SPEC={spec}", f"serve it here; prints a curl that {'recommends' if stages else 'ranks'}"
    tune = _TUNE.format(spec=spec, model=best), "no candidate beats the best baseline: search for better settings"
    funnel = [(f"{page}#candidates", "how many relevant items each stage of a request keeps")]
    behind = [*_baseline_as_candidate(summary, given, again), tune] if _is_behind(summary, best) else []
    return [serve, *(funnel if stages else []), *behind, ui, (again, _AGAIN)]


def _is_behind(summary: Mapping[str, Any], best: str) -> bool:
    """Whether the best candidate is among those that do not beat the best baseline."""
    compared = _beside_baseline(summary, best)
    if compared is None or not summary.get("notice"):
        return False
    _, metric, ours, theirs = compared
    return ours > theirs if metric in LOW_IS_GOOD else ours < theirs


def _beside_baseline(summary: Mapping[str, Any], best: str) -> tuple[str, Metric, float, float] | None:
    """Return the best baseline, the deciding metric, and its values of the best candidate and of that baseline."""
    baseline, metric = _best_of(summary, "baseline"), _metric(summary)
    ours, theirs = (summary["models"].get(name, {}).get(metric) for name in (best, baseline))
    return None if ours is None or theirs is None else (baseline, metric, ours, theirs)


def _baseline_as_candidate(
    summary: Mapping[str, Any], given: Mapping[str, Any], again: str
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Give the command that lets the best baseline be served, with its own settings, where its kind can be."""
    name = _best_of(summary, "baseline")
    for model in map(DeclaredModel.read, given.get("models", ())):
        kind = kind_of(model.kind)
        if model.name == name and kind.export:
            section = kind.section.model_validate(model.section)
            own = section.model_dump(mode="json", exclude_defaults=True, exclude={"kind", "role"})
            settings = ", ".join(f"{key}: {json.dumps(value)}" for key, value in own.items())
            change = f"models.{name}={{kind: {model.kind}, role: candidate, {settings}}}"
            yield f"{again} SET='{change}'", f"let '{name}' be a candidate itself, which may be served"


_AGAIN: Final = "after an edit of the spec; unchanged steps are reused"


def _section(text: str | None) -> Mapping[str, Any]:
    return json.loads(text) or {} if text else {}
