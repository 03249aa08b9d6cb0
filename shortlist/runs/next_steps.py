"""Last lines of a finished run: trained models, their quality, and the commands to run next."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shortlist.contracts import Files
from shortlist.evaluation.metrics.records import LOWER_IS_BETTER, TITLES, Metric
from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.registry import kind_of
from shortlist.storage.artefacts import read_json

_TUNE: Final = "make tune SPEC={spec} MODEL={model} MINUTES=10"
_CHECK: Final = ".venv/bin/shortlist check {spec}{log}"
_WIDEST: Final = 80
"""Longest command, in characters, that has its purpose beside it."""
_READS_LOG: Final = frozenset(("ingest", "validate"))
_PAIRS_HELP: Final = "rates of pairs help most (docs/tutorial.md)"
_ADVICE: Final = {
    "data": (_CHECK, "list what is wrong with the log; then give more rows, or SET=data.split.test_days="),
    "skew": ("{page}#features", "the rows whose features differ between training and Feast"),
    "absolute": (_TUNE, f"search for better settings; {_PAIRS_HELP}"),
    "champion": (_TUNE, "search for better settings; the champion keeps serving"),
    "calibration": ("{again} SET=models.{model}.calibration=isotonic", "fit a calibration on the validation days"),
    "slices": ("{page}#slices", "the slices that are behind, with their rows"),
    "labels": ("{page}#gates", "the further labels that are behind"),
    "queries": ("{page}#gates", "the numbers of the queries"),
    "retrieval": ("{again} SET=retrieval.candidates={more}", "twice as many candidates; or add a source"),
    "slates": ("{page}#candidates", "the stages; then change filters or ordering.rules"),
    "value": ("{page}#value", "what each list would earn; then change ordering.value or ordering.diversity"),
    "infra": ("{again}", "measure again on an idle machine, or declare the limits you need in gates.infra"),
    "parity": ("{page}#gates", "the differences between training, the exported graph and Triton"),
    "unknown_values": ("{page}#gates", "the columns whose unknown values move the scores, and what to declare"),
    "integrity": ("{again}", "write the files again"),
}
"""Command or page section, and its purpose, by the gate that the best candidate failed."""


_MORE_ROWS: Final = _CHECK, "count the rows of the days: too few were compared, and none differs"
"""Advice for gate `skew` where it compared too few rows."""


def next_steps(
    run: Path, spec_argument: str, page: Path, notes: Sequence[str] = (), champion: int | None = None
) -> str:
    """Return the trained models of a run, their quality against the best baseline, and the commands to run next.

    Args:
        run: The run's folder.
        spec_argument: The spec as the user named it, by name or path; empty: the spec's name.
        page: Path of the run's page, relative to the user's folder.
        notes: Sentences of the run's steps, among them that of the rollout.
        champion: The version that `make serve` serves; None where it is not known.
    """
    summary = json.loads((run / Files.SUMMARY).read_text())
    arguments, best = _run_arguments(run), _best_model(summary, "candidate")
    trained = sorted(name for name, model in summary["models"].items() if model.get("role") != "champion")
    lines = [f"Trained: {', '.join(trained) or 'no model'}. Features are in Feast, runs and models in MLflow."]
    lines += filter(None, (_quality_line(summary, best), _slates_line(summary)))
    spec = spec_argument or summary["spec"]
    rollout = _after_rollout(summary, shlex.quote(spec), notes) if arguments.get("with_rollout", True) else None
    # A version that was rolled out already does not wait for its rollout.
    commands = _next_commands(summary, best, spec, arguments, page, None if rollout else champion)
    if rollout:
        commands[0] = rollout
    width = max((len(command) for command, _ in commands if len(command) <= _WIDEST), default=0)
    return "\n".join([*lines, "Next:", *(_format_command(command, purpose, width) for command, purpose in commands)])


def _format_command(command: str, purpose: str, width: int) -> str:
    """Return a command with its purpose beside it, or below it where the command is long."""
    separator = "   " if len(command) <= width else f"\n  {'':<{width}}   "
    return f"  {command:<{width}}{separator}{purpose}"


def advice_after_failure(run: Path, spec_argument: str, failed: Collection[str]) -> str:
    """Return the command that lists all problems of a log, if a step failed at one of them; empty otherwise.

    Args:
        run: The run's folder.
        spec_argument: The spec as the user named it; empty where the run does not read the whole log.
        failed: Names of the steps that failed with a message.
    """
    if not spec_argument or not _READS_LOG & set(failed):
        return ""
    location = _run_arguments(run).get("log", {}).get("location")
    data = f" --data {shlex.quote(location)}" if location else ""
    command = _CHECK.format(spec=shlex.quote(spec_argument), log=data)
    if _section(_run_arguments(run).get("data")).get("live", {}).get("collect"):
        command += " (of the files alone; the quarantine on the run's page holds the collected rows)"
    return f"A run stops at its first problem; this command lists all problems of the log: {command}"


def describe_held_run(runs: Path, spec: str) -> str:
    """Return that the newest finished run of a spec held its candidates, and by which gates; empty when it did not.

    Args:
        runs: Folder of the runs.
        spec: Name of the spec.
    """
    for summary_file in sorted(runs.glob(f"*-{spec}*/{Files.SUMMARY}"), reverse=True):
        summary = read_json(summary_file)
        if summary["spec"] != spec or summary.get("failed"):
            continue
        if summary["blessed"]:
            return ""
        gates_by_model: dict[str, list[str]] = {}
        for gate in summary["gates"]:
            if not gate["passed"]:
                gates_by_model.setdefault(gate["model"], []).append(gate["name"])
        failed_gates = "; ".join(f"{model}: {', '.join(gates)}" for model, gates in gates_by_model.items())
        return f"The newest run, {summary_file.parent}, held its candidates ({failed_gates})."
    return ""


def _run_arguments(run: Path) -> dict[str, Any]:
    arguments = run / "arguments.json"
    return json.loads(arguments.read_text()) if arguments.is_file() else {}


def _best_model(summary: Mapping[str, Any], role: str) -> str:
    """Return the blessed model, else the best model of a role by the deciding metric; empty when there is none."""
    if role == "candidate" and summary["blessed"]:
        return str(summary["blessed"]["model"])
    metric = _deciding_metric(summary)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    values = {
        name: sign * model[metric]
        for name, model in summary["models"].items()
        if model.get("role", "candidate") == role and model.get(metric) is not None
    }
    return max(values, key=lambda name: values[name], default="")


def _deciding_metric(summary: Mapping[str, Any]) -> Metric:
    """Return the deciding metric; AUC for a run that failed before the gates."""
    return summary.get("metric") or "auc"


def _quality_line(summary: Mapping[str, Any], best: str) -> str:
    compared = _compare_to_baseline(summary, best)
    if compared is None:
        return ""
    baseline, metric, candidate_value, baseline_value = compared
    state = f"blessed as version {summary['blessed']['version']}" if summary["blessed"] else "held"
    return (
        f"Quality: {best} ({state}) has a test {TITLES[metric]} of {candidate_value:.4f}, against"
        f" {baseline_value:.4f} of '{baseline}', the best baseline ({candidate_value - baseline_value:+.4f})."
    )


def _slates_line(summary: Mapping[str, Any]) -> str:
    """Return the value of the shown candidate's slates, beside the most popular items and the best possible."""
    value = summary.get("value")
    if not value:
        return ""
    blessed = (summary["blessed"] or {}).get("model")
    slates = [line for line in value["lists"] if line["list"] == "slates"]
    shown = next((line for line in slates if line["model"] == blessed), next(iter(slates), None))
    problem = value["problem"] or (shown or {}).get("problem", "")
    if shown is None or problem:
        return f"Slates: their value is unknown: {problem}."
    others = {line["list"]: line for line in value["lists"] if line["model"] is None}
    comparisons = [f"Slates: those of '{shown['model']}' earn {_format_value(shown)} a request ({value['reward']})"]
    if popular := others.get("popular"):
        comparisons.append(f"the most popular items {_format_value(popular)}")
    if best := others.get("best_possible"):
        comparisons.append(f"the best possible {best['truth']:.2f}")
    return f"{'; '.join(comparisons)}."


def _format_value(line: Mapping[str, Any]) -> str:
    planted = "" if line["truth"] is None else f", planted {line['truth']:.2f}"
    interval = "unknown" if line["low"] is None else f"{line['estimate']:.2f} [{line['low']:.2f}, {line['high']:.2f}]"
    return f"{interval}{planted}"


def _next_commands(
    summary: Mapping[str, Any], best: str, spec: str, arguments: Mapping[str, Any], page: Path, champion: int | None
) -> list[tuple[str, str]]:
    location = arguments.get("log", {}).get("location")
    spec, data = shlex.quote(spec), shlex.quote(location) if location else ""
    run_command = f"make run SPEC={spec}" + (f" DATA={data}" if data else "")
    ui = "make ui", "every run, curve and model in MLflow"
    if not summary["blessed"]:
        best = _nearest_candidate(summary, best)
        failed_gate, cause = next(
            (
                (gate["name"], gate.get("cause", ""))
                for gate in summary["gates"]
                if gate["model"] == best and not gate["passed"]
            ),
            ("", ""),
        )
        unlisted_gate = ("{page}#gates", "what it measured") if failed_gate else (_CHECK, "list what is wrong")
        command, purpose = _ADVICE.get(failed_gate, unlisted_gate)
        if failed_gate == "skew" and cause == "few_rows":
            command, purpose = _MORE_ROWS
        if retirement := _retirement(summary, best):
            failed_gate = "champion"
            command, purpose = retirement, "compare with the baselines, if the champion is no yardstick any more"
        candidates = _section(arguments.get("retrieval")).get("candidates", 500)
        model = best
        if command == _TUNE and not (model := _tunable_model(summary, arguments, best)):
            command, purpose = "{again}", f"after an edit of the features; {_PAIRS_HELP}"
        values = {"spec": spec, "log": f" --data {data}" if data else "", "model": model, "page": page}
        advised = command.format(**values, again=run_command, more=2 * candidates)
        return [
            (advised, f"gate '{failed_gate}': {purpose}" if failed_gate else purpose),
            ui,
            (run_command, _RUN_PURPOSE),
        ]
    stages = bool(summary.get("stages"))
    version, waiting = summary["blessed"]["version"], []
    serve = f"make serve SPEC={spec}", f"serve it here; prints a curl that {'recommends' if stages else 'ranks'}"
    is_behind_champion = champion is not None and str(champion) != str(version)
    if is_behind_champion and any(model.get("role") == "champion" for model in summary["models"].values()):
        serve = serve[0], f"serve the champion, version {champion}, here"
        waiting = [(f"make deploy-canary SPEC={spec}", f"then roll out version {version}, which is blessed and waits")]
    tune = _TUNE.format(spec=spec, model=best), "no candidate beats the best baseline: search for better settings"
    funnel = [(f"{page}#candidates", "how many relevant items each stage of a request keeps")]
    behind = [*_baseline_as_candidate(summary, arguments, run_command), tune] if _is_behind(summary, best) else []
    return [serve, *waiting, *(funnel if stages else []), *behind, ui, (run_command, _RUN_PURPOSE)]


def _after_rollout(summary: Mapping[str, Any], spec: str, notes: Sequence[str]) -> tuple[str, str] | None:
    """Return what to do after the rollout of a blessed version in a running stack; None where there was none."""
    version = (summary["blessed"] or {}).get("version")
    sentence = next((note for note in notes if note.startswith(f"Version {version} ")), "is not served")
    if "is not served" in sentence:
        return None
    if sentence.startswith((f"Version {version} was promoted", f"Version {version} serves already")):
        return f"make status SPEC={spec}", "what serves, to whom, and a curl that asks it"
    return f"make deploy-canary SPEC={spec}", f"roll version {version} out again, once its reason is gone"


def _tunable_model(summary: Mapping[str, Any], arguments: Mapping[str, Any], best: str) -> str:
    """Return the best candidate of a kind that can be searched, or the best candidate if its kind is not known."""
    kinds = {model.name: model.kind for model in map(DeclaredModel.read, arguments.get("models", ()))}
    untunable = {name for name, kind in kinds.items() if not kind_of(kind).tuning.space}
    if best not in untunable:
        return best
    tunable = {name: model for name, model in summary["models"].items() if name not in untunable}
    return _best_model({**summary, "models": tunable}, "candidate")


def _nearest_candidate(summary: Mapping[str, Any], best: str) -> str:
    """Return the candidate that the fewest gates hold; of several the best model if it is one, else the first."""
    failures = Counter(gate["model"] for gate in summary["gates"] if not gate["passed"])
    judged = dict.fromkeys(gate["model"] for gate in summary["gates"] if gate["model"] in summary["models"])
    return min(judged, key=lambda name: (failures[name], name != best), default=best)


def _retirement(summary: Mapping[str, Any], best: str) -> str:
    """Return the command that retires the champion where the champion's gate names it; empty otherwise."""
    reasons = (gate["reason"] for gate in summary["gates"] if (gate["model"], gate["name"]) == (best, "champion"))
    match = re.search(r"`([^`]* retire-champion [^`]*)`", next(reasons, ""))
    return match[1] if match else ""


def _is_behind(summary: Mapping[str, Any], best: str) -> bool:
    """Whether the best candidate does not beat the best baseline."""
    compared = _compare_to_baseline(summary, best)
    if compared is None or not summary.get("notice"):
        return False
    _, metric, candidate_value, baseline_value = compared
    return candidate_value > baseline_value if metric in LOWER_IS_BETTER else candidate_value < baseline_value


def _compare_to_baseline(summary: Mapping[str, Any], best: str) -> tuple[str, Metric, float, float] | None:
    """Return the best baseline, the deciding metric, and its values for the best candidate and for that baseline."""
    baseline, metric = _best_model(summary, "baseline"), _deciding_metric(summary)
    candidate_value, baseline_value = (summary["models"].get(name, {}).get(metric) for name in (best, baseline))
    return (
        None
        if candidate_value is None or baseline_value is None
        else (baseline, metric, candidate_value, baseline_value)
    )


def _baseline_as_candidate(
    summary: Mapping[str, Any], arguments: Mapping[str, Any], run_command: str
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield the command that makes the best baseline a candidate with the same settings, if its kind can be served."""
    name = _best_model(summary, "baseline")
    for model in map(DeclaredModel.read, arguments.get("models", ())):
        kind = kind_of(model.kind)
        if model.name == name and kind.export:
            section = kind.section.model_validate(model.section)
            changed_settings = section.model_dump(mode="json", exclude_defaults=True, exclude={"kind", "role"})
            settings = ", ".join(f"{key}: {json.dumps(value)}" for key, value in changed_settings.items())
            change = f"models.{name}={{kind: {model.kind}, role: candidate, {settings}}}"
            yield f"{run_command} SET='{change}'", f"make '{name}' a candidate, which may be served"


_RUN_PURPOSE: Final = "after an edit of the spec; unchanged steps are reused"


def _section(text: str | None) -> Mapping[str, Any]:
    return json.loads(text) or {} if text else {}
